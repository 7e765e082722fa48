"""Synchronising instructions: barriers, mbarriers and fences.

They record happens-before in the vector clocks.
"""
