"""Train an image classifier from a few labels and many unlabelled images."""

__version__ = "0.1.0"
