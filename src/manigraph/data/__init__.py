"""From images to batches: sources, split, preprocessing, augmentation. Knows no method."""
