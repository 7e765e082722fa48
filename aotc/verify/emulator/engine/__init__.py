"""The execution engine: decoder, register file, warps, segments, barriers and scheduler.

Instruction rules build on it and register in its tables.
"""
