"""PTX text to kernels: tokens, declarations, instructions, and the control-flow graph.

Nothing here executes, or knows the effect of a register or an opcode on state.
"""
