"""Studies: sweeps over settings and seeds, their tables, and comparisons of methods."""
