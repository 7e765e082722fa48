"""What runs instructions: decoder, register file, warps, segments, barriers and scheduler.

Rules of instructions stand on it and are found through its registries.
"""
