"""Numbers without files or recipes: flat vectors, random streams, labels, priors and the loss."""
