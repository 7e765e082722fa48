"""Matrix instructions: fragments, `ldmatrix`, `mma.sync`, and `wgmma` with its chains.

Fragments follow the PTX ISA, independent of the layouts they check.
"""
