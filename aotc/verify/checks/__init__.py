"""Check one variant for `aotc verify`: choose launches, draw inputs, bound errors, compare.

The interpreter computes the expected results; the emulator or a GPU the actual ones.
"""
