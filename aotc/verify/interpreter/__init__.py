"""Interpret tile IR and gpu IR op by op over NumPy arrays: the meaning of a kernel.

It is the oracle, and knows no PTX except for inline assembly, which the emulator runs.
"""
