"""Single `wgmma` instructions: types, shapes, operand locations, and forbidden accesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from aotc.verify.emulator.errors import EmulationError, Fault
from aotc.verify.emulator.mma.fragments import accumulator, operand_a
from aotc.verify.emulator.run import emulate
from aotc.verify.fp8_sums import fp8_step

Array = npt.NDArray[Any]
BASE = 1024  # where shared memory starts
THREADS = 128
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "f32": np.float32,
    "s32": np.int32,
}


def _names(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"{prefix}{i}" for i in range(count)) + "}"


@dataclass
class Kernel:
    """One warpgroup: fill shared memory, load registers, run `lines`, store the result."""

    lines: Sequence[str]
    image: npt.NDArray[np.uint8]
    c: Array  # (128, registers) of the result, u32
    a: Array = field(default_factory=lambda: np.zeros((THREADS, 1), np.uint32))
    proxy_fence: str = "fence.proxy.async;"
    load_c: bool = True
    warps: int = 4

    def ptx(self) -> str:
        registers, a_registers = self.c.shape[1], self.a.shape[1]
        threads = 32 * self.warps
        copies = "\n".join(
            f"ld.global.v4.u32 {{w0, w1, w2, w3}}, [image+{offset}];\n"
            f"st.shared.v4.u32 [place+{offset}], {{w0, w1, w2, w3}};"
            for offset in range(0, self.image.size, 16 * THREADS)
        )
        loads = [f"ld.global.u32 a{i}, [pa+{4 * i}];" for i in range(a_registers)]
        if self.load_c:
            loads += [f"ld.global.u32 d{i}, [pc+{4 * i}];" for i in range(registers)]
        stores = [f"st.global.u32 [pc+{4 * i}], d{i};" for i in range(registers)]
        body = "\n".join([*loads, *self.lines, *stores])
        return f"""
.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 sm[];
.visible .entry k(.param .u64 p_image, .param .u64 p_a, .param .u64 p_c)
.reqntid {threads}
{{
.reg .pred yes, no;
.reg .b32 tid, w<4>, place, d<{registers}>, e<{registers}>, a<{a_registers}>;
.reg .b64 image, pa, pc, wide;
mov.u32 tid, %tid.x;
setp.eq.u32 yes, tid, tid;
setp.ne.u32 no, tid, tid;
ld.param.u64 image, [p_image];
ld.param.u64 pa, [p_a];
ld.param.u64 pc, [p_c];
mul.wide.u32 wide, tid, 16;
add.u64 image, image, wide;
mul.wide.u32 wide, tid, {4 * a_registers};
add.u64 pa, pa, wide;
mul.wide.u32 wide, tid, {4 * registers};
add.u64 pc, pc, wide;
mov.u32 place, sm;
mad.lo.u32 place, tid, 16, place;
{copies}
{self.proxy_fence}
bar.sync 0;
{body}
ret;
}}
"""

    def run(self, seed: int = 0) -> Array:
        """Return the registers of the result, (128, registers)."""
        image = np.zeros(-(-self.image.size // 2048) * 2048, np.uint8)
        image[: self.image.size] = self.image
        self.image = image
        c = self.c.copy()
        emulate(self.ptx(), 1, [image, self.a, c], shared_bytes=image.size, seed=seed)
        return c


FENCE = "wgmma.fence.sync.aligned;"
END = ("wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;")


def _image_k_major(tiles: Sequence[Array]) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Lay out matrices (rows, k) of 32-byte rows without a swizzle; return them and descriptors.

    Pieces of 8 rows x 16 bytes: the next 8 rows 256 bytes on, the other half of k 128.
    """
    image = np.zeros(0, np.uint8)
    descriptors: list[int] = []
    for tile in tiles:
        rows = tile.view(np.uint8).reshape(len(tile) // 8, 8, 2, 16)
        start = BASE + image.size
        image = np.concatenate((image, rows.transpose(0, 2, 1, 3).ravel()))
        descriptors.append(start >> 4 | (128 >> 4) << 16 | (256 >> 4) << 32)
    return image, descriptors


def _image_mn_major(tiles: Sequence[Array]) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Lay out matrices (rows, 16) of 16-bit elements, transposed and without a swizzle.

    Pieces of 8 k x 8 rows: the next 8 rows 128 bytes on (stride), the next 8 k after all of them.
    """
    image = np.zeros(0, np.uint8)
    descriptors: list[int] = []
    for tile in tiles:
        pieces = tile.view(np.uint16).reshape(len(tile) // 8, 8, 2, 8)  # rows, row, k, k
        start = BASE + image.size
        data = np.ascontiguousarray(pieces.transpose(2, 0, 3, 1))
        image = np.concatenate((image, data.view(np.uint8).ravel()))
        leading = 16 * len(tile)
        descriptors.append(start >> 4 | (leading >> 4) << 16 | (128 >> 4) << 32)
    return image, descriptors


def _random(name: str, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    dtype = np.dtype(DTYPES[name])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    value = rng.standard_normal(shape).astype(dtype)
    if name == "tf32":
        return (value.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return value


def _registers(elements: Array, bits: int) -> Array:
    """Return (128, registers) of a 64-row matrix of sums."""
    fragment = accumulator(16, elements.shape[1], bits)
    words = fragment.scatter(elements.reshape(4, 16, -1))
    return np.ascontiguousarray(np.swapaxes(words, 1, 2).reshape(THREADS, -1))


def _elements(registers: Array, n: int, bits: int) -> Array:
    fragment = accumulator(16, n, bits)
    words = [registers[:, i].reshape(4, 32) for i in range(registers.shape[1])]
    return fragment.gather(np.stack(words, axis=1)).reshape(64, n)


def _sums(product: Array, c: Array, result: str) -> Array:
    if result == "s32":
        return (product + c.astype(np.int64)).astype(np.int64).astype(np.int32)
    return (product + c.astype(np.float64)).astype(DTYPES[result])


CASES = [
    ("f32", "f16", "f16", 8),
    ("f32", "bf16", "bf16", 24),
    ("f32", "bf16", "bf16", 256),
    ("f16", "f16", "f16", 16),
    ("f32", "tf32", "tf32", 40),
    ("f32", "e4m3", "e5m2", 64),
    ("f16", "e5m2", "e4m3", 72),
    ("s32", "s8", "u8", 32),
    ("s32", "u8", "s8", 48),
]


@pytest.mark.parametrize("a_in_registers", [False, True])
@pytest.mark.parametrize(("result", "a_name", "b_name", "n"), CASES)
def test_types_and_shapes(
    result: str, a_name: str, b_name: str, n: int, a_in_registers: bool
) -> None:
    rng = np.random.default_rng(n)
    k = 32 // np.dtype(DTYPES[a_name]).itemsize
    a, b = _random(a_name, (64, k), rng), _random(b_name, (n, k), rng)
    c = _random(result, (64, n), rng)
    if result == "s32":
        c[0] = 2**31 - 1
    wide = np.int64 if result == "s32" else np.float64
    expected = _sums(a.astype(wide) @ b.astype(wide).T, c, result)
    if result != "s32" and a.itemsize == 1:
        kinds = a_name, b_name
        narrow = fp8_step(a.astype(wide), b.astype(wide).T, c.astype(wide), kinds)
        narrow = narrow.astype(DTYPES[result])
        assert (narrow != expected).any()
        expected = narrow
    image, (a_descriptor, b_descriptor) = _image_k_major([a, b])
    bits = 8 * np.dtype(DTYPES[result]).itemsize
    start = _registers(c.view(f"u{bits // 8}"), bits)
    a_words = operand_a(16, k, 256 // k).scatter(a.view(f"u{a.itemsize}").reshape(4, 16, k))
    a_registers = np.ascontiguousarray(np.swapaxes(a_words, 1, 2).reshape(THREADS, -1))
    suffix = "" if result == "s32" else ", 1, 1"
    if a.itemsize == 2:
        suffix += ", 0" if a_in_registers else ", 0, 0"
    first = _names("a", a_registers.shape[1]) if a_in_registers else str(a_descriptor)
    name = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{result}.{a_name}.{b_name}"
    operands = f"{_names('d', start.shape[1])}, {first}, {b_descriptor}, yes{suffix}"
    lines = [FENCE, f"{name} {operands};", *END]
    actual = Kernel(lines, image, start, a_registers).run(seed=n % 3)
    elements = _elements(actual, n, bits).view(DTYPES[result])
    np.testing.assert_array_equal(elements, expected)


def _bf16_case(n: int = 16) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(7)
    a, b = _random("bf16", (64, 16), rng), _random("bf16", (n, 16), rng)
    c = _random("f32", (64, n), rng)
    return a, b, c, a.astype(np.float64) @ b.astype(np.float64).T


def _start(
    n: int, a: object, b: int, *, d: str = "d", scale: str = "yes", rest: str = "1, 1, 0, 0"
) -> str:
    return (
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 "
        f"{_names(d, n // 2)}, {a}, {b}, {scale}, {rest};"
    )


@pytest.mark.parametrize("a_transposed", [0, 1])
@pytest.mark.parametrize("b_transposed", [0, 1])
def test_either_dimension_may_be_contiguous(a_transposed: int, b_transposed: int) -> None:
    a, b, c, product = _bf16_case()
    image = np.zeros(0, np.uint8)
    descriptors: list[int] = []
    for tile, transposed in ((a, a_transposed), (b, b_transposed)):
        part, (descriptor,) = (_image_mn_major if transposed else _image_k_major)([tile])
        descriptors.append(descriptor + (image.size >> 4))
        image = np.concatenate((image, part))
    rest = f"1, 1, {a_transposed}, {b_transposed}"
    lines = [FENCE, _start(16, descriptors[0], descriptors[1], rest=rest), *END]
    actual = Kernel(lines, image, _registers(c.view(np.uint32), 32)).run()
    expected = (product + c).astype(np.float32)
    np.testing.assert_array_equal(_elements(actual, 16, 32).view(np.float32), expected)


@pytest.mark.parametrize(("a_sign", "b_sign"), [(1, -1), (-1, 1), (-1, -1)])
def test_operands_may_be_negated(a_sign: int, b_sign: int) -> None:
    a, b, c, product = _bf16_case()
    image, (x, y) = _image_k_major([a, b])
    lines = [FENCE, _start(16, x, y, rest=f"{a_sign}, {b_sign}, 0, 0"), *END]
    actual = Kernel(lines, image, _registers(c.view(np.uint32), 32)).run()
    expected = (a_sign * b_sign * product + c).astype(np.float32)
    np.testing.assert_array_equal(_elements(actual, 16, 32).view(np.float32), expected)


@pytest.mark.parametrize("a_in_registers", [False, True])
def test_bits(a_in_registers: bool) -> None:
    rng = np.random.default_rng(11)
    a, b = (rng.integers(0, 2, (rows, 256), np.uint8) for rows in (64, 16))
    packed = [np.packbits(bits, axis=1, bitorder="little") for bits in (a, b)]
    image, (x, y) = _image_k_major(packed)
    c = rng.integers(-100, 100, (64, 16), np.int32)
    # Word w of a row is in register w // 4 * 2 + (row of the upper half), quad lane w % 4.
    words = packed[0].view(np.uint32).reshape(4, 2, 8, 2, 4)  # warp, half, row, block, lane
    a_registers = words.transpose(0, 2, 4, 3, 1).reshape(THREADS, 4)
    first = _names("a", 4) if a_in_registers else str(x)
    name = "wgmma.mma_async.sync.aligned.m64n16k256.s32.b1.b1.and.popc"
    lines = [FENCE, f"{name} {_names('d', 8)}, {first}, {y}, yes;", *END]
    kernel = Kernel(
        lines, image, _registers(c.view(np.uint32), 32), np.ascontiguousarray(a_registers)
    )
    actual = _elements(kernel.run(), 16, 32).view(np.int32)
    np.testing.assert_array_equal(actual, a.astype(np.int64) @ b.astype(np.int64).T + c)


def test_saturation() -> None:
    a, b = np.full((64, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    image, (x, y) = _image_k_major([a, b])
    c = np.full((64, 8), 2**31 - 5, np.int32)
    name = "wgmma.mma_async.sync.aligned.m64n8k32.satfinite.s32.s8.s8"
    lines = [FENCE, f"{name} {_names('d', 4)}, {x}, {y}, yes;", *END]
    actual = Kernel(lines, image, _registers(c.view(np.uint32), 32)).run()
    assert (actual == 2**31 - 1).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_chain_without_accumulation(seed: int) -> None:
    """Registers never written, then two multiplications into them, waited for one by one."""
    a, b, c, product = _bf16_case()
    image, (x, y) = _image_k_major([a, b])
    lines = [
        FENCE,
        _start(16, x, y, scale="no"),
        END[0],
        _start(16, x, y),
        END[0],
        "wgmma.wait_group.sync.aligned 1;",
        "wgmma.wait_group.sync.aligned 0;",
    ]
    kernel = Kernel(lines, image, _registers(c.view(np.uint32), 32), load_c=False)
    actual = _elements(kernel.run(seed), 16, 32).view(np.float32)
    expected = (product.astype(np.float32) + product).astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("seed", [0, 1])
def test_copies_of_registers_in_flight_get_the_result(seed: int) -> None:
    """A compiler's phi nodes: moved while in flight, continued, and moved back."""
    a, b, c, product = _bf16_case()
    image, (x, y) = _image_k_major([a, b])
    lines = [
        FENCE,
        _start(16, x, y),
        END[0],
        *(f"mov.b32 e{i}, d{i};" for i in range(8)),
        _start(16, x, y, d="e"),
        END[0],
        *(f"mov.b32 d{i}, e{i};" for i in range(8)),
        END[1],
    ]
    actual = Kernel(lines, image, _registers(c.view(np.uint32), 32)).run(seed)
    expected = ((product + c).astype(np.float32) + product).astype(np.float32)
    np.testing.assert_array_equal(_elements(actual, 16, 32).view(np.float32), expected)


FAULTS: dict[str, tuple[list[str], str, str]] = {
    "no fence at all": (["{start}", *END], "wgmma", "no wgmma.fence came before"),
    "a register written after the fence": (
        [FENCE, "mov.b32 d3, 0;", "{start}", *END],
        "wgmma",
        "d3 was written with no wgmma.fence between",
    ),
    "a sum read in flight": (
        [FENCE, "{start}", END[0], "add.u32 tid, d2, 1;", END[1]],
        "wgmma",
        "d2 is read while a wgmma is yet to write it",
    ),
    "a sum written in flight": (
        [FENCE, "{start}", END[0], "mov.b32 d2, 0;", END[1]],
        "wgmma",
        "d2 is written while a wgmma is yet to write it",
    ),
    "a sum read after another group": (
        [FENCE, "{start}", END[0], "wgmma.wait_group.sync.aligned 1;", "add.u32 tid, d2, 1;"],
        "wgmma",
        "d2 is read while",
    ),
    "an operand in registers written in flight": (
        [FENCE, "{from_registers}", END[0], "mov.b32 a1, 0;", END[1]],
        "wgmma",
        "a1 is written while a wgmma is yet to read it",
    ),
    "sums that overlap": (
        [FENCE, "{start}", "{other_shape}", *END],
        "wgmma",
        "another shape|not all",
    ),
    "sums in registers that another one reads": (
        [FENCE, "{from_registers}", "{into_a}", *END],
        "wgmma",
        "a0 is still read by another wgmma",
    ),
    "an operand overwritten in flight": (
        [FENCE, "{start}", END[0], "st.shared.u32 [place], tid;", END[1]],
        "in-flight",
        "which an asynchronous operation reads",
    ),
    "an operand outside shared memory": (
        [FENCE, "{outside}", *END],
        "bounds",
        "out of bounds",
    ),
    "a descriptor of one lane's own": (
        [FENCE, "mul.wide.u32 wide, tid, 1;", "{own}", *END],
        "wgmma",
        "different descriptors of A",
    ),
    "a descriptor with bits that mean nothing": (
        [FENCE, "{reserved}", *END],
        "wgmma",
        "bits set that mean nothing",
    ),
    "different instructions in a warpgroup": (
        [
            FENCE,
            "setp.lt.u32 yes, tid, 32;",
            "@yes bra ELSE;",
            "{start}",
            "bra JOIN;",
            "ELSE:",
            "{start}",
            "JOIN:",
            *END,
        ],
        "wgmma",
        "start different multiplications",
    ),
    "a warp that does not come": (
        [FENCE, "setp.lt.u32 yes, tid, 32;", "@yes bra JOIN;", "{start}", "JOIN:", *END],
        "deadlock",
        "all warps wait",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_misuse_is_found(name: str) -> None:
    a, b, c, _ = _bf16_case()
    image, (x, y) = _image_k_major([a, b])
    lines, kind, message = FAULTS[name]
    words = {
        "start": _start(16, x, y),
        "from_registers": _start(16, _names("a", 4), y, rest="1, 1, 0"),
        "other_shape": _start(8, x, y),
        "into_a": _start(8, x, y, d="a", scale="no"),
        "outside": _start(16, (1 << 14) - 1, y),
        "own": _start(16, "wide", y),
        "reserved": _start(16, x | 1 << 15, y),
    }
    body = [line.removeprefix("{").removesuffix("}") for line in lines]
    body = [words.get(line, line) for line in body]
    a_registers = np.zeros((THREADS, 4), np.uint32)
    kernel = Kernel(body, image, _registers(c.view(np.uint32), 32), a_registers)
    with pytest.raises(Fault, match=message) as caught:
        kernel.run()
    assert caught.value.kind == kind


def test_the_proxy_fence_is_asked_for() -> None:
    a, b, c, _ = _bf16_case()
    image, (x, y) = _image_k_major([a, b])
    lines = [FENCE, _start(16, x, y), *END]
    kernel = Kernel(lines, image, _registers(c.view(np.uint32), 32), proxy_fence="")
    with pytest.raises(Fault, match=r"no fence.proxy.async between") as caught:
        kernel.run()
    assert caught.value.kind == "proxy"


def test_one_thread_may_speak_for_its_warpgroup() -> None:
    """After its own wait, a warpgroup's first thread may signal free operands."""
    a, b, c, product = _bf16_case()
    image, (x, y) = _image_k_major([a, b])
    lines = [
        FENCE,
        _start(16, x, y),
        *END,
        "setp.ge.u32 no, tid, 32;",
        "@no bra DONE;",
        f"st.shared.u32 [{BASE + 1024}], 0;",
        "DONE:",
    ]
    kernel = Kernel(lines, image, _registers(c.view(np.uint32), 32))
    for seed in range(4):
        actual = _elements(kernel.run(seed), 16, 32).view(np.float32)
        np.testing.assert_array_equal(actual, (product + c).astype(np.float32))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m64n12k16.f32.bf16.bf16 {0}, 0, 0, yes, 1, 1, 0, 0", "m64n12k16"),
        ("m64n16k32.f32.bf16.bf16 {8}, 0, 0, yes, 1, 1, 0, 0", "m64n16k32"),
        ("m64n16k16.f16.bf16.bf16 {8}, 0, 0, yes, 1, 1, 0, 0", "a result of f16"),
        ("m64n16k16.f32.bf16.f16 {8}, 0, 0, yes, 1, 1, 0, 0", "bf16 times f16"),
        ("m64n16k32.f32.e4m3.e4m3 {8}, 0, 0, yes, 1, 1, 0, 0", "4 operands after scale-d"),
        ("m64n16k16.f32.bf16.bf16 {7}, 0, 0, yes, 1, 1, 0, 0", "7 registers for 64x16"),
        ("m64n16k16.f32.bf16.bf16 {8}, 0, 0, yes, 2, 1, 0, 0", "operands after scale-d"),
        ("m64n40k32.s32.s8.s8 {20}, 0, 0, yes", "m64n40k32"),
        ("sp.m64n16k32.f32.bf16.bf16 {8}, 0, 0, yes, 1, 1, 0, 0", "sparse"),
    ],
)
def test_forms_outside_the_isa_are_refused(text: str, message: str) -> None:
    count = int(text[text.index("{") + 1 : text.index("}")])
    text = text.replace(f"{{{count}}}", _names("d", count or 1))
    c = np.zeros((THREADS, max(count, 1)), np.uint32)
    start = f"wgmma.mma_async.sync.aligned.{text};"
    if text.startswith("sp."):
        start = f"wgmma.mma_async.sp.sync.aligned.{text[3:]};"
    with pytest.raises(EmulationError, match=message):
        Kernel([FENCE, start, *END], np.zeros(16, np.uint8), c).run()
