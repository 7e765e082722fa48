"""Every rule for an instruction that only computes: importing this declares them all."""

from aotc.verify.emulator import (
    compute_bits,
    compute_compare,
    compute_convert,
    compute_fields,
    compute_float,
    compute_integer,
)

__all__ = [
    "compute_bits",
    "compute_compare",
    "compute_convert",
    "compute_fields",
    "compute_float",
    "compute_integer",
]
