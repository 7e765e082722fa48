"""Every rule for an instruction that only computes: importing this declares them all."""

from aotc.verify.emulator.compute import (
    bit_fields,
    bits,
    comparisons,
    conversions,
    float_arithmetic,
    integer_arithmetic,
)

RULE_MODULES = (bit_fields, bits, comparisons, conversions, float_arithmetic, integer_arithmetic)
