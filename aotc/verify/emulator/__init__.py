"""Run PTX over NumPy arrays to find faults that hardware hides: races, proxy misuse, deadlocks.

The entry point is `run.emulate`; packages build up from `text` to the rules listed in
`instructions`.
"""
