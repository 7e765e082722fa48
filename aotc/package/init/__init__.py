"""A manifest from kernel sources alone: what `aotc init` writes.

What a source says of a kernel is gathered, never executed, and what it does not say is marked.
"""
