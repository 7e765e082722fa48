"""Target-independent optimizations: folding, CSE, code motion, unrolling, predication."""
