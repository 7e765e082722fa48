"""Analyses of a kernel: addresses, signs, memory order, live registers. They change nothing."""
