"""Safe reading and writing of files: atomic writes, bounded parsing, temporary folders."""
