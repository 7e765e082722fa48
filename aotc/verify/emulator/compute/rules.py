"""All modules with rules of purely computing instructions; importing this one registers them."""

from aotc.verify.emulator.compute import (
    bit_fields,
    bits,
    comparisons,
    conversions,
    float_arithmetic,
    integer_arithmetic,
)

RULE_MODULES = (bit_fields, bits, comparisons, conversions, float_arithmetic, integer_arithmetic)
