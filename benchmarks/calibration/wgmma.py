"""`wgmma` from registers and from shared memory, with every swizzle, major and type.

Shared memory is filled with random elements, and descriptors point anywhere into it. Both sides
multiply the elements at the same addresses, so results agree only if every address does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.calibration import elements
from benchmarks.calibration.case import EXACT, Argument, Array, Case, Group, Output
from benchmarks.calibration.matrices import bound_of, row_of

_THREADS = 128
_A_BYTES, _B_BYTES = 16384, 49152
_IMAGE_BYTES = _A_BYTES + _B_BYTES
_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}  # bytes to the descriptor's code

_Draw = Callable[[str, int, np.random.Generator], Array]


@dataclass(frozen=True, slots=True)
class Place:
    """Describe an operand in shared memory: the fields of its descriptor, in bytes."""

    swizzle: int = 0
    leading: int = 128
    stride: int = 256
    offset: int = 0
    transposed: bool = False

    @property
    def high(self) -> int:
        """The descriptor's upper 48 bits: all but the address."""
        return (self.leading >> 4) << 16 | (self.stride >> 4) << 32 | _SWIZZLES[self.swizzle] << 62

    def __str__(self) -> str:
        major = "MN" if self.transposed else "K"
        return f"{major} {self.swizzle}B {self.leading}/{self.stride}+{self.offset}"


@dataclass(frozen=True, slots=True)
class Product:
    """Describe one instruction; `a_place` is None where A is in registers."""

    a: str
    b: str
    result: str
    n: int
    a_place: Place | None = Place()
    b_place: Place = Place()
    scale_d: bool = True
    a_sign: int = 1
    b_sign: int = 1
    words: str = ""

    @property
    def k(self) -> int:
        """Columns of A."""
        return 256 // elements.BITS[self.a]

    @property
    def num_registers(self) -> int:
        """Result registers of a thread."""
        return self.n * elements.BITS[self.result] // 64

    @property
    def mnemonic(self) -> str:
        """The instruction's name."""
        tail = ".and.popc" if self.a == "b1" else ""
        return (
            f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}{self.words}"
            f".{self.result}.{self.a}.{self.b}{tail}"
        )

    def __str__(self) -> str:
        signs = "" if self.a_sign == self.b_sign == 1 else f" signs {self.a_sign} {self.b_sign}"
        first = "registers" if self.a_place is None else str(self.a_place)
        zero = "" if self.scale_d else " from zero"
        return f"{self.mnemonic} A {first} B {self.b_place}{signs}{zero}"

    @property
    def text(self) -> str:
        """The instruction with its operands."""
        d = ", ".join(f"d{i}" for i in range(self.num_registers))
        first = "{a0, a1, a2, a3}" if self.a_place is None else "da"
        tail: list[str] = []
        if self.a not in elements.INTEGERS:
            tail += [str(self.a_sign), str(self.b_sign)]
        if elements.BITS[self.a] == 16:
            tail += [] if self.a_place is None else [str(int(self.a_place.transposed))]
            tail.append(str(int(self.b_place.transposed)))
        operands = ", ".join([f"{{{d}}}", first, "db", "yes" if self.scale_d else "no", *tail])
        return f"{self.mnemonic} {operands};"


def case(
    product: Product, draw: _Draw = elements.exact, suffix: str = "", repeats: int = 1
) -> Case:
    """Return a case of a product, summed up `repeats` times."""
    floats = draw is not elements.exact and product.a not in elements.INTEGERS
    bound = bound_of("wgmma", product.a, product.result) if floats else EXACT
    return Case(
        f"{product}{suffix}",
        _text(product, repeats),
        partial(_operands, product, draw),
        (Output(2, product.result, bound),),
        shared_bytes=_IMAGE_BYTES,
        magnitudes=partial(_magnitudes, product) if floats else None,
        row=row_of("wgmma", product.a, product.result),
    )


def _descriptor(name: str, operand: Place, base: int) -> list[str]:
    return [
        f"add.u32 w0, base, {base + operand.offset};",
        "shr.u32 w0, w0, 4;",
        "and.b32 w0, w0, 0x3FFF;",
        f"cvt.u64.u32 {name}, w0;",
        f"or.b64 {name}, {name}, {operand.high};",
    ]


def _text(product: Product, repeats: int) -> str:
    count = product.num_registers
    lines = [
        ".visible .entry {entry}(.param .u64 image, .param .u64 pa, .param .u64 pc)",
        f".reqntid {_THREADS}",
        "{",
        f".reg .pred yes, no; .reg .b32 tid, base, place, w<4>, a<4>, d<{count}>;",
        ".reg .b64 p, wide, da, db;",
        "mov.u32 tid, %tid.x; setp.eq.u32 yes, tid, tid; setp.ne.u32 no, tid, tid;",
        "mov.b32 base, calibration_dynamic; mad.lo.u32 place, tid, 16, base;",
        "ld.param.u64 p, [image]; mul.wide.u32 wide, tid, 16; add.u64 p, p, wide;",
    ]
    for offset in range(0, _IMAGE_BYTES, 16 * _THREADS):
        lines += [
            f"ld.global.v4.u32 {{w0, w1, w2, w3}}, [p+{offset}];",
            f"st.shared.v4.u32 [place+{offset}], {{w0, w1, w2, w3}};",
        ]
    lines += ["ld.param.u64 p, [pa]; add.u64 p, p, wide;"]
    lines += ["ld.global.v4.u32 {a0, a1, a2, a3}, [p];"]
    lines += [f"ld.param.u64 p, [pc]; mul.wide.u32 wide, tid, {4 * count}; add.u64 p, p, wide;"]
    lines += [f"ld.global.u32 d{i}, [p+{4 * i}];" for i in range(count)]
    lines += _descriptor("da", product.a_place or Place(), 0)
    lines += _descriptor("db", product.b_place, _A_BYTES)
    lines += ["fence.proxy.async;", "bar.sync 0;", "wgmma.fence.sync.aligned;"]
    lines += [product.text]
    lines += [replace(product, scale_d=True).text] * (repeats - 1)
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    lines += [f"st.global.u32 [p+{4 * i}], d{i};" for i in range(count)]
    return "\n".join([*lines, "ret;", "}", ""])


def _operands(product: Product, draw: _Draw, rng: np.random.Generator) -> list[Argument]:
    def drawn(kind: str, size_bytes: int) -> Array:
        return draw(kind, size_bytes * 8 // elements.BITS[kind], rng).view(np.uint32)

    image = np.concatenate([drawn(product.a, _A_BYTES), drawn(product.b, _B_BYTES)])
    sums = drawn(product.result, 4 * product.num_registers * _THREADS)
    return [image, drawn(product.a, 16 * _THREADS), sums]


def _magnitudes(product: Product, args: Sequence[Argument]) -> list[Argument]:
    image, registers, sums = args
    assert isinstance(image, np.ndarray)
    assert isinstance(registers, np.ndarray)
    assert isinstance(sums, np.ndarray)
    # The instruction also negates an operand's sign, so this undoes one negation.
    flip = product.a_sign * product.b_sign < 0
    size = _A_BYTES // 4
    first = elements.magnitude(product.a, image[:size])
    registers = elements.magnitude(product.a, registers)
    if flip:
        first, registers = (elements.negative(product.a, draw) for draw in (first, registers))
    second = elements.magnitude(product.b, image[size:])
    return [np.concatenate([first, second]), registers, elements.magnitude(product.result, sums)]


# ---- the cases ----------------------------------------------------------------------------------

_PLACES = {
    False: (
        Place(0, 128, 256),
        Place(0, 272, 304),
        Place(0, 2048, 128),
        Place(32, 16, 256),
        Place(32, 16, 512, 1024),
        Place(64, 16, 512),
        Place(64, 16, 1024, 32),
        Place(128, 16, 1024),
        Place(128, 16, 1024, 32),
        Place(128, 16, 1024, 96),
    ),
    True: (
        Place(0, 128, 1024, transposed=True),
        Place(0, 1024, 128, transposed=True),
        Place(0, 272, 304, transposed=True),
        Place(32, 512, 256, transposed=True),
        Place(32, 256, 1024, transposed=True),
        Place(64, 1024, 512, transposed=True),
        Place(64, 512, 2048, transposed=True),
        Place(128, 2048, 1024, transposed=True),
        Place(128, 1024, 4096, transposed=True),
        Place(128, 4096, 1024, 2048, transposed=True),
    ),
}
_TYPES = (
    ("f16", "f16", "f32"),
    ("f16", "f16", "f16"),
    ("bf16", "bf16", "f32"),
    ("tf32", "tf32", "f32"),
    *((a, b, d) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for d in ("f32", "f16")),
    *((a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8")),
    ("b1", "b1", "s32"),
)


def _addressing() -> Iterator[Case]:
    """Every place of A and of B, each major, on one type of each width."""
    for kind, result in (("bf16", "f32"), ("tf32", "f32"), ("e4m3", "f32"), ("s8", "s32")):
        majors = (False, True) if kind == "bf16" else (False,)
        for transposed in majors:
            for operand in _PLACES[transposed]:
                yield case(Product(kind, kind, result, 64, a_place=operand))
                if operand != Place():
                    yield case(Product(kind, kind, result, 64, b_place=operand))
                yield case(Product(kind, kind, result, 128, a_place=None, b_place=operand))
    for transposed in (False, True):
        swizzled = [
            operand for operand in _PLACES[transposed] if operand.swizzle and not operand.offset
        ]
        for operand in swizzled:
            if operand.stride * 16 <= _B_BYTES:
                yield case(Product("f16", "f16", "f32", 256, a_place=operand, b_place=operand))


def _types() -> Iterator[Case]:
    for a, b, result in _TYPES:
        for n in (8, 24, 64) if a not in elements.INTEGERS else (8, 32, 64):
            for a_place in (Place(), None):
                yield case(Product(a, b, result, n, a_place))
        if result == "s32" and a != "b1":
            yield case(Product(a, b, result, 16, words=".satfinite"))
        if a not in elements.INTEGERS:
            yield case(Product(a, b, result, 16, a_sign=-1))
            yield case(Product(a, b, result, 16, a_sign=-1, b_sign=-1))
        yield case(Product(a, b, result, 16, scale_d=False))
    for n in (40, 136, 192, 248, 256):
        yield case(
            Product("bf16", "bf16", "f32", n, scale_d=False), repeats=3, suffix=" three times"
        )


def _inexact() -> Iterator[Case]:
    draws = {"normal": elements.normal, "spread": elements.spread, "special": elements.special}
    for a, b, result in _TYPES:
        if a not in elements.INTEGERS:
            more = {"fp32 bits": elements.unrounded} if a == "tf32" else {}
            for draw_name, draw in {**draws, **more}.items():
                for a_place in (Place(), None):
                    yield case(Product(a, b, result, 64, a_place), draw, f" ({draw_name})")
            yield case(Product(a, b, result, 64, a_sign=-1), elements.normal, " (normal)")


_DYNAMIC = ".extern .shared .align 1024 .b8 calibration_dynamic[];\n"
GROUPS = (
    Group("wgmma-places", "wgmma: swizzles, majors, strides", tuple(_addressing()), _DYNAMIC),
    Group("wgmma-exact", "wgmma on integers, every type", tuple(_types()), _DYNAMIC),
    Group("wgmma", "wgmma on floats", tuple(_inexact()), _DYNAMIC),
)
