"""Many runs as one question: sweeps over settings and seeds, their tables, and comparisons."""
