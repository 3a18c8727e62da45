"""Measurements of speed: ratios of contenders that take turns in one process."""
