"""Instructions of plain and atomic accesses to memory, and how they synchronise.

Every access goes through `spaces`, which checks it against the shadows.
"""
