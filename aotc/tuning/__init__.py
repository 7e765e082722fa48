"""Measure kernels on GPUs, for `aotc tune` and `aotc bench`."""
