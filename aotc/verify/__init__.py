"""Prove a compiled kernel against the meaning of its tile IR, without a GPU.

Four packages: `interpreter` runs tile IR, `emulator` runs PTX, `checks` compares them, and
`sass` checks machine code.
"""
