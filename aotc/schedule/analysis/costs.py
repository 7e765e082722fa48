"""Costs of moving data, in one unit: quarter cycles of one SM, for all warps of a CTA.

An SM issues four vector instructions a cycle, one from each of its sub-cores, so an instruction of
a warp costs 1. Shuffles and accesses to shared memory go through units shared by the sub-cores: one
a cycle. Ways to move a tile are compared by the sum, and a latency is added once where threads wait
for the data.

Costs are relative: they rank ways for one tile, and predict no time.
"""

from __future__ import annotations

SELECT_COST = 2
"""Choose between two registers: two instructions, for the condition and the select."""

PACK_COST = 2
"""Pack narrow elements into a register, or take them out: two instructions."""

SHUFFLE_COST = 4
"""A shuffle of a warp occupies the unit for a cycle."""

SHUFFLE_LATENCY = 100
"""A first shuffle comes back after some 25 cycles."""

SHARED_ACCESS_COST = 2
"""Issue a load or store of a warp, and compute its address."""

WAVEFRONT_COST = 4
"""A wavefront, up to 128 bytes of distinct banks, occupies shared memory for a cycle."""

SHARED_LATENCY = 120
"""What is written to shared memory comes back after some 30 cycles."""

BARRIER_COST = 80
"""The warps of a CTA meet after some 20 cycles."""

GLOBAL_ACCESS_COST = 4
"""Issue a load or store of a warp to global memory, with 64 bits of address."""

SECTOR_COST = 6
"""A sector of 32 bytes takes about 1.5 cycles of an SM's share of memory bandwidth: 4.8 TB/s over
132 SMs at 1.7 GHz, an H200's."""
