"""Instructions that order threads: barriers, mbarriers and fences.

What they order is recorded in the vector clocks.
"""
