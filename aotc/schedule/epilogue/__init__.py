"""Stores of results: staged by TMA, overlapped with the next tile's mainloop, or cut to fit registers."""
