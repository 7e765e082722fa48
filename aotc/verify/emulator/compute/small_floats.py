"""Floating-point formats of 8 bits and fewer, which only conversions know: by tables.

A format has so few numbers that its decoding is a list, and rounding to it is a search among the
middles between neighbours. They are encoded saturating: what is too large, infinity too, becomes
the largest number.

Source: PTX ISA 5.2.3 "Alternate Floating-Point Data Formats"; OCP Microscaling Formats 1.0.
"""

# Shifts of arrays by NumPy scalars have results that the stubs leave unknown.
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

    `values` are those of the codes without a sign, in order, infinities and NaN left out; `codes`
    are all of them, indexed by code. `nan` is the code that NaN is encoded as.
    """

    def __init__(
        self, values: _Table, codes: _Table, nan: int, *, sign: int, rounds_up: bool = False
    ) -> None:
        self.codes = codes
        self.nan = np.uint8(nan)
        self.sign = np.uint8(sign)
        middles = (values[:-1] + values[1:]) / 2
        # A tie goes to the even code: just above an odd code's middle already means the next one.
        odd = np.arange(middles.size) % 2 == 1
        self._nearest = np.where(odd, np.nextafter(middles, 0), middles)
        self._values = values
        self._rounds_up = rounds_up

    def decode(self, codes: Bits) -> Floats:
        """Return the exact values as float64; what lies above a code's bits does not count."""
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
    """Return the values of all codes without a sign, as if none stood for infinity or NaN."""
    bias = (1 << (exponent_bits - 1)) - 1
    code = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    normal = np.ldexp(1 + fraction, exponent - bias)
    return np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)


def _signed(
    exponent_bits: int, mantissa_bits: int, *, infinity: int | None = None, nans: int = 0
) -> SmallFormat:
    """Return a format whose last `nans` codes are NaN, after a code for infinity if there is one."""
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
