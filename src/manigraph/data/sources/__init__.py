"""Where images come from; each source is a function that returns a `Dataset`."""
