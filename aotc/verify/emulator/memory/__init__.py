"""State spaces as bytes, the vector clocks of warps, and shadow memory for race detection.

Nothing here knows instructions, only addresses and lanes.
"""
