"""Passes that compilers have for any code: folding, CSE, code motion, unrolling, predication."""
