"""A Flower app of one's own, with the re-weighted softmax."""
