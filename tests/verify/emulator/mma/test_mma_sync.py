"""`mma.sync` and `movmatrix` on hand-made registers against NumPy, in every shape and type."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import aotc.verify.emulator.mma.mma_sync  # noqa: F401 - registers the rules
from aotc.verify.emulator.engine.registry import EXECUTES
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.mma.fragments import Fragment, accumulator, operand_a, operand_b
from aotc.verify.emulator.syntax import Instruction, Operand, Register, Vector

WARPS = 3
Array = npt.NDArray[Any]


def _vector(name: str, fragment: Fragment) -> Vector:
    return Vector(
        tuple(
            Register(f"{name}{row}", fragment.register_bits, row)
            for row in range(fragment.num_registers)
        )
    )


class _Warps:
    """Registers of some whole warps, by name: as much of a context as these rules need."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.registers: dict[str, Array] = {}

    def fill(self, operand: Vector, fragment: Fragment, elements: Array) -> None:
        by_register = np.swapaxes(fragment.scatter(elements), 0, 1)
        for register, words in zip(operand.elements, by_register, strict=True):
            assert isinstance(register, Register)
            self.registers[register.name] = words

    def read_warps(self, operand: Operand, bits: int) -> Array:
        assert isinstance(operand, Register)
        words = self.registers[operand.name]
        assert words.shape == (WARPS, 32)
        assert words.dtype.itemsize * 8 == bits
        return words

    def write_warps(self, operand: Operand, value: Array) -> None:
        assert isinstance(operand, Register)
        assert value.shape == (WARPS, 32)
        assert value.dtype.itemsize * 8 == operand.bits
        self.registers[operand.name] = value

    def read_each(self, operands: Sequence[Operand], bits: int) -> Array:
        return np.stack([self.read_warps(operand, bits) for operand in operands], axis=1)

    def write_each(self, operands: Sequence[Operand], values: Array) -> None:
        for index, operand in enumerate(operands):
            self.write_warps(operand, values[:, index])

    def require_whole_warps(self) -> None:
        pass


def _instruction(text: str, *operands: Operand) -> Instruction:
    opcode, *modifiers = text.split(".")
    return Instruction(opcode, tuple(modifiers), operands, None, 1, text)


def _run(
    text: str, a: Array, b: Array, c: Array, bits: tuple[int, int], d_bits: int | None = None
) -> Array:
    """Return D's bits (warps, M, 8) of an mma on the bits of A, B and C."""
    (_, m, k), a_bits, c_bits = a.shape, bits[0], bits[1]
    fragments = (
        accumulator(m, 8, d_bits or c_bits),
        operand_a(m, k, a_bits),
        operand_b(k, a_bits),
        accumulator(m, 8, c_bits),
    )
    operands = tuple(_vector(name, f) for name, f in zip("dabc", fragments, strict=True))
    instruction = _instruction(text, *operands)
    warps = _Warps(instruction)
    for operand, fragment, value in zip(operands[1:], fragments[1:], (a, b, c), strict=True):
        warps.fill(operand, fragment, value)
    EXECUTES["mma"](instruction)(warps)  # type: ignore[arg-type]
    results = [warps.registers[register.name] for register in operands[0].elements]  # type: ignore[union-attr]
    return fragments[0].gather(np.stack(results, axis=1))


FLOATS = {
    "f16": (np.float16, ("m16n8k8", "m16n8k16")),
    "bf16": (ml_dtypes.bfloat16, ("m16n8k8", "m16n8k16")),
    "e4m3": (ml_dtypes.float8_e4m3fn, ("m16n8k16", "m16n8k32")),
    "e5m2": (ml_dtypes.float8_e5m2, ("m16n8k16", "m16n8k32")),
    "tf32": (np.float32, ("m16n8k4", "m16n8k8")),
    "f64": (np.float64, ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")),
}
RESULTS = {"f16": ("f32", "f16"), "e4m3": ("f32", "f16"), "e5m2": ("f32", "f16"), "f64": ("f64",)}
CASES = [
    (name, shape, result)
    for name, (_, shapes) in FLOATS.items()
    for shape in shapes
    for result in RESULTS.get(name, ("f32",))
]


def _extents(shape: str) -> tuple[int, int]:
    m, _, k = shape[1:].replace("n", " ").replace("k", " ").split()
    return int(m), int(k)


@pytest.mark.parametrize(("name", "shape", "result"), CASES)
def test_floats(name: str, shape: str, result: str) -> None:
    dtype = FLOATS[name][0]
    m, k = _extents(shape)
    rng = np.random.default_rng(len(shape) * 31 + k)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((WARPS, m, k), (WARPS, k, 8)))
    if name == "tf32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    result_dtype = {"f32": np.float32, "f16": np.float16, "f64": np.float64}[result]
    c = rng.standard_normal((WARPS, m, 8)).astype(result_dtype)
    expected = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(result_dtype)
    d = _run(
        f"mma.sync.aligned.{shape}.row.col.{result}.{name}.{name}.{result}",
        *(x.view(f"u{x.dtype.itemsize}") for x in (a, b, c)),
        (8 * np.dtype(dtype).itemsize, 8 * np.dtype(result_dtype).itemsize),
    )
    if name == "f64":
        np.testing.assert_allclose(d.view(result_dtype), expected, rtol=1e-13, atol=1e-13)
    else:
        np.testing.assert_array_equal(d.view(result_dtype), expected)


INTEGERS = [
    ("s8", "u8", 8, ("m8n8k16", "m16n8k16", "m16n8k32")),
    ("u8", "s8", 8, ("m16n8k32",)),
]


def _pack_nibbles_or_bits(values: Array, element_bits: int, fragment: Fragment) -> list[Array]:
    """Return the registers of elements narrower than a byte: `scatter` knows whole bytes only."""
    parts = values.reshape(len(values), -1)[:, fragment.positions].astype(np.uint32)
    shifts = np.arange(32 // element_bits, dtype=np.uint32) * np.uint32(element_bits)
    words = np.bitwise_or.reduce(parts << shifts, axis=-1)
    return [words[:, register] for register in range(fragment.num_registers)]


@pytest.mark.parametrize(("a_name", "b_name", "bits", "shapes"), INTEGERS)
def test_integers(a_name: str, b_name: str, bits: int, shapes: tuple[str, ...]) -> None:
    dtypes = {"s8": np.int8, "u8": np.uint8}
    for shape in shapes:
        m, k = _extents(shape)
        rng = np.random.default_rng(k)
        a = rng.integers(0, 256, (WARPS, m, k), np.uint8).view(dtypes[a_name])
        b = rng.integers(0, 256, (WARPS, k, 8), np.uint8).view(dtypes[b_name])
        c = rng.integers(-(2**31), 2**31, (WARPS, m, 8), np.int32)
        c[0] = 2**31 - 1
        total = a.astype(np.int64) @ b.astype(np.int64) + c
        for suffix, expected in (
            ("", total.astype(np.int32)),
            (".satfinite", np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)),
        ):
            d = _run(
                f"mma.sync.aligned.{shape}.row.col{suffix}.s32.{a_name}.{b_name}.s32",
                a.view(np.uint8),
                b.view(np.uint8),
                c.view(np.uint32),
                (8, 32),
            )
            np.testing.assert_array_equal(d.view(np.int32), expected)


@pytest.mark.parametrize(
    ("name", "bits", "shape", "operation"),
    [
        *(("s4", 4, shape, "") for shape in ("m8n8k32", "m16n8k32", "m16n8k64")),
        ("u4", 4, "m16n8k64", ""),
        *(("b1", 1, shape, "and") for shape in ("m8n8k128", "m16n8k128", "m16n8k256")),
        ("b1", 1, "m16n8k256", "xor"),
    ],
)
def test_elements_narrower_than_a_byte(name: str, bits: int, shape: str, operation: str) -> None:
    m, k = _extents(shape)
    rng = np.random.default_rng(k)
    a, b = (rng.integers(0, 1 << bits, s, np.uint8) for s in ((WARPS, m, k), (WARPS, k, 8)))
    fragments = (accumulator(m, 8, 32), operand_a(m, k, bits), operand_b(k, bits))
    d, x, y = (_vector(letter, f) for letter, f in zip("dab", fragments, strict=True))
    suffix = f".{operation}.popc" if operation else ""
    text = f"mma.sync.aligned.{shape}.row.col.s32.{name}.{name}.s32{suffix}"
    warps = _Warps(_instruction(text, d, x, y, d))
    c = rng.integers(-100, 100, (WARPS, m, 8), np.int32)
    warps.fill(d, fragments[0], c.view(np.uint32))
    for operand, fragment, value in ((x, fragments[1], a), (y, fragments[2], b)):
        words = _pack_nibbles_or_bits(value, bits, fragment)
        for register, word in zip(operand.elements, words, strict=True):
            warps.registers[register.name] = word  # type: ignore[union-attr]
    EXECUTES["mma"](warps.instruction)(warps)  # type: ignore[arg-type]
    results = [warps.registers[f"d{i}"] for i in range(len(d.elements))]
    result = fragments[0].gather(np.stack(results, axis=1))
    wide = [v.astype(np.int64) for v in (a, b)]
    if name == "s4":
        wide = [(v ^ 8) - 8 for v in wide]
    if operation == "xor":
        expected = (wide[0][..., None] ^ wide[1][:, None]).sum(2) + c
    else:
        expected = wide[0] @ wide[1] + c
    np.testing.assert_array_equal(result.view(np.int32), expected)


def test_infinity_times_zero_is_nan() -> None:
    a = np.zeros((WARPS, 16, 8), np.float16)
    b = np.zeros((WARPS, 8, 8), np.float16)
    a[:, 3, 2] = np.inf
    d = _run(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        a.view(np.uint16),
        b.view(np.uint16),
        np.zeros((WARPS, 16, 8), np.uint32),
        (16, 32),
    )
    assert (d[:, 3] == 0x7FFFFFFF).all()
    assert not d[:, :3].any()


def test_movmatrix_transposes() -> None:
    fragment = operand_a(8, 8, 16)
    elements = np.arange(WARPS * 64, dtype=np.uint16).reshape(WARPS, 8, 8)
    text = "movmatrix.sync.aligned.m8n8.trans.b16"
    d, s = _vector("d", fragment), _vector("s", fragment)
    warps = _Warps(_instruction(text, d.elements[0], s.elements[0]))
    warps.fill(s, fragment, elements)
    EXECUTES["movmatrix"](warps.instruction)(warps)  # type: ignore[arg-type]
    result = fragment.gather(warps.registers["d0"][:, None])
    np.testing.assert_array_equal(result, elements.transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32", "kind::f8f6f4"),
        ("mma.sync.aligned.m16n8k16.col.row.f32.f16.f16.f32", "other than .row.col"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "m16n8k32 of f16"),
        ("mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16", "a result of f16"),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s4.s32", "s8 times s4"),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "modifier .sp"),
        ("mma.sync.aligned.row.col.f32.f16.f16.f32", "a shape is missing"),
        ("movmatrix.sync.aligned.m8n8.b16", "other than"),
    ],
)
def test_unsupported_forms_are_named(text: str, message: str) -> None:
    operands = tuple(SimpleNamespace() for _ in range(4))
    instruction = _instruction(text, *operands)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=message):
        EXECUTES[instruction.opcode](instruction)
