"""The files of data sets in their publishers' layouts. Light: no torch, so that a list of them comes at once."""
