"""Draft a manifest from kernel sources alone, for `aotc init`.

Sources are read, never executed. Values missing from the source are marked TODO.
"""
