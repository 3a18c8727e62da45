"""Tables of results as grids of runs."""
