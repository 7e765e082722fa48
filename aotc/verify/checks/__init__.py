"""What `aotc verify` does with one variant: choose launches, draw inputs, bound errors, compare.

It joins the interpreter, which says what must come out, to the emulator or a GPU.
"""
