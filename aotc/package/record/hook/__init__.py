"""What runs inside a program that is recorded: its folder goes before PYTHONPATH.

Nothing but the standard library is imported: the program's Python need not have aotc.
"""
