"""Tools imported by programs."""
