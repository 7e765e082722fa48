"""Triton's own language tests, run through aotc."""
