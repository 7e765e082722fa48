"""What a kernel means: tile IR and gpu IR run op by op over NumPy arrays.

It is the oracle; nothing here knows PTX, except inline assembly, which the emulator runs.
"""
