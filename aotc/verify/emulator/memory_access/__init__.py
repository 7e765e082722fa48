"""Plain and atomic accesses to memory, and their synchronisation.

Every access goes through `spaces`, which checks it against the shadows.
"""
