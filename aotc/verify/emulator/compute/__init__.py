"""Purely computing instructions: functions from the bits of operands to the bits of results.

They know no lanes, no memory and no schedule.
"""
