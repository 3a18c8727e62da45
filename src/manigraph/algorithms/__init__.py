"""One method per file; no method imports another. `base` holds the contract they share."""
