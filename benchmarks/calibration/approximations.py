"""Functions approximated by the hardware, against their correctly rounded values.

Bounds are from the PTX ISA, "Floating Point Instructions" and "Half Precision Floating Point
Instructions". A subnormal result of `ex2.approx.f16` may be off by one ulp.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.calibration.case import Bound, Case, Group
from benchmarks.calibration.elementwise import elementwise

# Range of the operand, bound. An accuracy of 2^-22 of a number is two steps of fp32 and some.
_FUNCTIONS = (
    ("ex2", "f32", Bound(ulps=2)),
    ("ex2", "exponent", Bound(ulps=2)),
    ("lg2", "f32", Bound(ulps=2, absolute=2**-22)),
    ("rcp", "f32", Bound(ulps=1)),
    ("rsqrt", "f32", Bound(relative=2**-22.9)),
    ("sqrt", "f32", Bound(relative=2**-23)),
    ("sin", "angle", Bound(absolute=2**-20.5)),
    ("cos", "angle", Bound(absolute=2**-20.5)),
    ("sin", "large angle", Bound(absolute=2**-14.7)),
    ("cos", "large angle", Bound(absolute=2**-14.7)),
)


def _single() -> Iterator[Case]:
    for opcode, kind, bound in _FUNCTIONS:
        for flush in ("", ".ftz"):
            # On "f32" the two differ in subnormal numbers alone.
            name = f"{opcode}.approx{flush}.f32" + ("" if kind == "f32" else f" ({kind})")
            yield elementwise(f"{opcode}.approx{flush}.f32", (kind,), "f32", name=name, bound=bound)
    yield elementwise("tanh.approx.f32", ("f32",), "f32", bound=Bound(relative=2**-11))
    for flush in ("", ".ftz"):
        for kind in ("approx", "full"):
            mnemonic = f"div.{kind}{flush}.f32"
            yield elementwise(mnemonic, ("f32", "f32"), "f32", bound=Bound(ulps=2))


def _others() -> Iterator[Case]:
    for kind in ("bf16", "bf16x2"):
        bound = Bound(relative=2**-7)
        yield elementwise(f"ex2.approx.ftz.{kind}", (kind,), kind, bound=bound)
        yield elementwise(f"tanh.approx.{kind}", (kind,), kind, bound=Bound(relative=2**-8))
    for kind in ("f16", "f16x2"):
        bound = Bound(absolute=2**-10.987)
        yield elementwise(f"tanh.approx.{kind}", (kind,), kind, bound=bound)
        bound = Bound(ulps=1, relative=2**-9.9)
        yield elementwise(f"ex2.approx.{kind}", (kind,), kind, bound=bound)
    # "Gross": the upper word alone, at least 20 bits of it.
    for opcode in ("rcp", "rsqrt"):
        bound = Bound(relative=2**-20)
        yield elementwise(f"{opcode}.approx.ftz.f64", ("f64",), "f64", bound=bound)
    yield elementwise("rsqrt.approx.f64", ("f64",), "f64", bound=Bound(relative=2**-47))


GROUPS = (
    Group("approximations", "approximations in fp32", tuple(_single())),
    Group("approximations-other", "approximations in other formats", tuple(_others())),
)
