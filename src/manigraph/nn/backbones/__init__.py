"""Networks from images (or vectors) to features."""
