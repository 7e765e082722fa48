"""Run PTX over NumPy arrays and find what hardware hides: races, unordered proxies, deadlocks.

`run.emulate` is its face; the packages go from `text` up to the instructions that `instructions` lists.
"""
