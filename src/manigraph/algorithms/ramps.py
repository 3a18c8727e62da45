"""How a weight grows in a straight line, as in Pseudo-Label and MixMatch; `parts.ramp_up` is the bent one."""


def linear_ramp(progress: float, start: float, end: float) -> float:
    """0 up to `start`, then a straight line to 1 at `end`, both being shares of the run; then 1.

    An end of 0 means no ramp.
    """
    if progress >= end:
        return 1.0
    return 0.0 if progress <= start else (progress - start) / (end - start)
