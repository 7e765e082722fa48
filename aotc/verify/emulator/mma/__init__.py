"""Matrix instructions: fragments, `ldmatrix`, `mma.sync`, and `wgmma` with its chains.

Fragments are written from the PTX ISA, not taken from the layouts they are there to check.
"""
