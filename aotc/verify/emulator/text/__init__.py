"""PTX text to kernels: tokens, declarations, instructions, and the control-flow graph.

Nothing here runs; what a register or an opcode does to state is not known yet.
"""
