"""Warp roles: producers issue loads, consumers compute, mbarriers synchronize them."""
