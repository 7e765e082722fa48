"""Prove a compiled kernel against the meaning of its tile IR, without a GPU.

Four packages: `interpreter` (what it means), `emulator` (what its PTX does), `checks` and `sass`.
"""
