"""Schedule, loop and evaluation. Drives any method through its contract and knows none."""
