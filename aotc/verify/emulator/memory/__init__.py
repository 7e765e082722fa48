"""State spaces as bytes, the vector clocks of warps, and the shadows that find races.

It knows addresses and lanes, and no instruction.
"""
