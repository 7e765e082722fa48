"""Code run inside a recorded program: this folder is prepended to PYTHONPATH.

Only the standard library is imported: the program's Python need not have aotc.
"""
