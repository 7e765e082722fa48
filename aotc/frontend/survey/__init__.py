"""Check the kernels of a file without compiling them."""
