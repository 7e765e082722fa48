"""Epilogues: stores staged for TMA, overlapped with the next mainloop, or sliced for registers."""
