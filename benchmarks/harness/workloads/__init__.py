"""Workloads by family; each module has ITEMS, and TINY ones for the interpreter."""
