"""Floating-point formats of at most 8 bits, used only by conversions, as tables.

A format has so few numbers that decoding is a table look-up, and rounding a search among the
midpoints of neighbours. Encoding saturates: values too large, infinity included, become the largest
number.

Source: PTX ISA 5.2.3 "Alternate Floating-Point Data Formats"; OCP Microscaling Formats 1.0.
"""

# The stubs leave the type of an array shifted by a NumPy scalar unknown.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import copied
from aotc.verify.emulator.compute.registry import Bits
from aotc.verify.emulator.compute.rounding import Floats
from aotc.verify.emulator.errors import Unsupported

_Table = npt.NDArray[np.float64]


class SmallFormat:
    """Describe a format by the values of its codes.

    `values` are those of the non-negative codes in order, without infinity and NaN. `codes` holds
    all values, indexed by code. `nan` is NaN's code in encoding.
    """

    def __init__(
        self, values: _Table, codes: _Table, nan: int, *, sign: int, rounds_up: bool = False
    ) -> None:
        self.codes = codes
        self.nan = np.uint8(nan)
        self.sign = np.uint8(sign)
        middles = (values[:-1] + values[1:]) / 2
        # A tie goes to the even code, so an odd code's midpoint counts as above.
        odd = np.arange(middles.size) % 2 == 1
        self._nearest = np.where(odd, np.nextafter(middles, 0), middles)
        self._values = values
        self._rounds_up = rounds_up

    def decode(self, codes: Bits) -> Floats:
        """Return exact values as float64; bits above a code's width are ignored."""
        return self.codes[codes & np.uint8(self.codes.size - 1)]

    def encode(self, values: Floats, mode: str = "rn") -> Bits:
        """Return the codes of values rounded to nearest even, or in `mode`, and saturated."""
        size = np.abs(values)
        if mode == "rn":
            code = np.searchsorted(self._nearest, size, side="left")
        elif mode == "rz":
            code = np.searchsorted(self._values[1:], size, side="right")
        elif mode == "rp" and self.sign == 0:
            code = np.searchsorted(self._values[:-1], size, side="left")
            code = np.minimum(code, self._values.size - 1)
        else:
            raise Unsupported(f".{mode}")
        signs = np.where(np.signbit(values), self.sign, np.uint8(0))
        return np.where(np.isnan(values), self.nan, code.astype(np.uint8) | signs)


def _ieee_like(exponent_bits: int, mantissa_bits: int) -> _Table:
    """Return the values of all non-negative codes, as if all were finite."""
    bias = (1 << (exponent_bits - 1)) - 1
    code = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    normal = np.ldexp(1 + fraction, exponent - bias)
    return np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)


def _signed(
    exponent_bits: int, mantissa_bits: int, *, infinity: int | None = None, nans: int = 0
) -> SmallFormat:
    """Return a signed format; its last `nans` codes are NaN, after an optional infinity."""
    values = _ieee_like(exponent_bits, mantissa_bits)
    codes = copied(values)
    codes[codes.size - nans :] = np.nan
    finite = values.size - nans
    if infinity is not None:
        codes[infinity] = np.inf
        finite = infinity
    # Without a code for NaN, it is encoded as the largest number.
    sign = values.size
    return SmallFormat(values[:finite], np.concatenate([codes, -codes]), sign - 1, sign=sign)


def _scale() -> SmallFormat:
    values = np.ldexp(1.0, np.arange(255) - 127)
    return SmallFormat(values, np.append(values, np.nan), 0xFF, sign=0)


SMALL_FORMATS = {
    "e4m3": _signed(4, 3, nans=1),
    "e5m2": _signed(5, 2, infinity=0x7C, nans=3),
    "e2m3": _signed(2, 3),
    "e3m2": _signed(3, 2),
    "e2m1": _signed(2, 1),
    "ue8m0": _scale(),
}
"""Formats by the name of their element's PTX type."""
