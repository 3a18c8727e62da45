"""Named, complete configurations. A recipe is a function from an algorithm's name to a `Config`."""
