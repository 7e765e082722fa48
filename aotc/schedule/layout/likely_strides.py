"""The likely order of axes in memory where strides are arguments of unknown value.

An inner stride is likely no multiple of 16, while an outer one is the size of a row. Strides are passed
from the outermost to the innermost. So lanes are along the axis whose stride has fewer known factors
of two, and of those along the one whose stride comes last.
"""

from __future__ import annotations

from functools import cached_property
from math import gcd

from aotc.ir.core import Kernel, Value
from aotc.ir.tiles import tile_shape
from aotc.schedule.analysis.affine import AffineAnalysis, axis_symbol
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.polynomial import Polynomial


class LikelyStrides:
    """The strides of the accesses of a kernel."""

    def __init__(self, kernel: Kernel, facts: AxisAnalysis) -> None:
        self._kernel = kernel
        self._facts = facts

    def order(self, pointer: Value) -> tuple[int, ...] | None:
        """Return the axes of a tile of pointers, the likely innermost first.

        None if facts tell the order, or strides are unknown.
        """
        facts = self._facts
        if max(facts[pointer].contiguity) > 1 or max(facts.likely(pointer).contiguity) > 1:
            return None
        offset = self._analysis[pointer].offset
        keys: dict[int, tuple[int, int]] = {}
        for axis, extent in enumerate(tile_shape(pointer)):
            stride = offset.coefficient_of(axis_symbol(axis))
            if extent == 1 or not stride or not all(map(self._analysis.is_launch, stride.symbols)):
                return None
            keys[axis] = self._key(stride)
        return tuple(sorted(keys, key=lambda axis: (*keys[axis], -axis)))

    @cached_property
    def _analysis(self) -> AffineAnalysis:
        return AffineAnalysis(self._kernel)

    def _key(self, stride: Polynomial) -> tuple[int, int]:
        """Return a divisor of a stride, and how far from the end its argument is passed."""
        divisor, last = 0, -1
        for symbols, factor in stride.terms:
            product = factor
            for symbol in symbols:
                source = self._analysis.sources[symbol]
                assert isinstance(source, Value)
                product *= self._kernel.params[source.index].divisibility
                last = max(last, source.index)
            divisor = gcd(divisor, product)
        return divisor, -last
