"""Planted compiler bugs for `verify` to find."""

import os

# Read when NumPy is loaded: kernels are small, and a second thread of BLAS only spins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
