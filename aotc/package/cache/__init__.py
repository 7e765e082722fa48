"""The cache of compiled kernels, on this machine and on others."""
