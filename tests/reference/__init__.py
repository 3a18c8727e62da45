"""The equations of METHOD, written out with loops in float64; nothing here imports the package.

Slow on purpose. Every function is differentiable, so gradients can be compared as well as values.
"""
