"""Evaluate the Python of kernels: names, expressions, statements, calls."""
