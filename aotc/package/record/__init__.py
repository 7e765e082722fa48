"""Record the launches of a running Triton program, and write their manifest.

`hook` runs inside the program, `launches` merges its records, `manifest` writes them as tables.
"""
