"""The part of Python that kernels are written in: names, expressions, statements, calls."""
