"""Allocation of shared buffers and mbarriers, and the barriers that order accesses to them."""
