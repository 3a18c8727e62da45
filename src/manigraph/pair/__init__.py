"""A run and its control: the same labels, split and network, with and without the unlabelled images."""
