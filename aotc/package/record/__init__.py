"""Record what a running Triton program launches, and write a manifest of it.

`hook` runs inside the program, `launches` keeps its records, `manifest` writes them as tables.
"""
