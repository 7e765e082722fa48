"""Measuring kernels on GPUs: what `aotc tune` does."""
