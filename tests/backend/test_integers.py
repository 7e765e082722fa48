"""Sums tracked by component: all results match wrapping arithmetic."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.backend.emitter import Emitter
from aotc.backend.integers import Affine, Component, Integers, wrap
from aotc.ir import gf2
from tests.support.extent import examples

THREADS = 64
NUMBERS = st.integers(-(2**31), 2**31 - 1)


def evaluate(emit: Emitter, component: Component, env: dict[str, Any], bits: int) -> Any:
    """Return a component's value as Python integers modulo 2**bits, running the emitted ops."""
    values = dict(env)
    for line in [*emit.prologue, *emit.lines]:
        name, text = line.strip().split(" = ")
        values[name] = _run(text, values)
    base, offset = Integers.split(component)
    start = values[base] if base else np.zeros(THREADS, object)
    return (start + offset) % (1 << bits)


def _run(text: str, values: dict[str, Any]) -> Any:
    call = re.match(r"(?:call|getelementptr) .*?(smax|ssub|add\.s64|\d+ x i8).*", text)
    if call:
        a, b = (values.get(name, np.full(THREADS, -1, object)) for name in _operands(text))
        if call[1] == "add.s64":
            return (a + b) % 2**64
        if call[1].endswith("x i8"):
            return (a + b * int(call[1].split()[0])) % 2**64
        a, b = (np.array([wrap(int(x), 32) for x in numbers], object) for numbers in (a, b))
        return (
            np.maximum(a, b) if call[1] == "smax" else np.clip(a - b, -(2**31), 2**31 - 1)
        ) % 2**32
    words = text.replace("disjoint ", "").replace("nneg ", "").replace(",", "").split()
    opcode, bits = words[0], int(words[1][1:])
    a = values[words[2]] if words[2] in values else np.full(THREADS, int(words[2]), object)
    if opcode in ("sext", "zext", "trunc"):
        if "nneg" in text:
            assert (a < 1 << (bits - 1)).all(), "nneg of a negative number"
        out_bits = int(words[4][1:])
        if opcode == "sext":
            a = np.array([wrap(int(x), bits) for x in a], object)
        return a % (1 << out_bits)
    b = values[words[3]] if words[3] in values else np.full(THREADS, int(words[3]), object)
    b = b % (1 << bits)
    if "disjoint" in text:
        assert not (a & b).any(), f"{text} is not disjoint"
    functions = {
        "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "or": lambda: a | b,
        "and": lambda: a & b, "xor": lambda: a ^ b, "shl": lambda: a << b, "lshr": lambda: a >> b,
    }  # fmt: skip
    return functions[opcode]() % (1 << bits)


def _operands(text: str) -> list[str]:
    """Return the last two operands of a call or of address arithmetic."""
    return re.findall(r"(%\w+|-1)(?=[,)]|$)", text)[-2:]


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_any_chain_of_operations_is_exact(data) -> None:
    emit = Emitter()
    ints = Integers(emit)
    zeros = data.draw(st.integers(0, 12))
    scalar = data.draw(NUMBERS) >> zeros << zeros
    env: dict[str, Any] = {
        "%tid": np.arange(THREADS).astype(object),
        "%n": np.full(THREADS, scalar % 2**32, object),
    }
    ints.learn("%tid", THREADS - 1)
    ints.learn("%n", 2**32 - (1 << zeros))
    columns = data.draw(st.lists(st.integers(0, 2**12 - 1), min_size=6, max_size=6))
    thread = ints.linear("%tid", columns)
    mapped = np.array([gf2.combine(columns, t) for t in range(THREADS)], object)
    pool: list[tuple[Component, Any]] = [("%n", env["%n"]), (thread or "0", mapped)]
    masks = data.draw(st.lists(st.integers(0, 2**12 - 1), max_size=3))
    pool += [(ints.xor_constant(thread, mask), mapped ^ mask) for mask in masks]
    pool += [
        (str(c), np.full(THREADS, c % 2**32, object))
        for c in data.draw(st.lists(NUMBERS, max_size=2))
    ]
    for _ in range(data.draw(st.integers(1, 5))):
        opcode = data.draw(st.sampled_from(["add", "sub", "mul", "scale"]))
        (left, x), (right, y) = (data.draw(st.sampled_from(pool)) for _ in range(2))
        exact = {"add": x + y, "sub": x - y, "mul": x * y}.get(opcode, x * y) % 2**32
        pool.append((getattr(ints, opcode)(left, right, 32), exact))
    for component, exact in pool:
        assert (evaluate(emit, component, env, 32) == exact).all()
        assert ints.trailing_zeros(component, 32) <= min(
            (int(x) & -int(x)).bit_length() - 1 if x else 32 for x in exact
        )
        if ints.is_non_negative(component, 32):
            assert (exact < 2**31).all()
        whole = ints.materialize(component, 32)
        assert (evaluate(emit, whole, env, 32) == exact).all()
        for signed in (True, False):
            wide = ints.extend(component, 32, 64, signed=signed)
            want = np.array([wrap(int(x), 32) if signed else int(x) for x in exact], object) % 2**64
            assert (evaluate(emit, wide, env, 64) == want).all()
        log2 = data.draw(st.integers(0, 6))
        if (parts := ints.divide(component, log2, 32)) is not None:
            for part, want in zip(parts, (exact >> log2, exact % (1 << log2)), strict=True):
                assert (evaluate(emit, part, env, 32) == want).all()
        narrow = ints.extend(component, 32, 8, signed=True)
        assert (evaluate(emit, narrow, env, 8) == exact % 256).all()


def test_bits_that_keep_their_distance_are_one_shift() -> None:
    emit = Emitter()
    ints = Integers(emit)
    ints.learn("%tid", 127)
    ints.linear("%tid", [4, 8, 16, 32, 64, 128, 256])
    assert emit.prologue == ["  %v1 = shl i32 %tid, 2"]


def test_an_offset_passes_a_widening_only_if_it_cannot_wrap() -> None:
    emit = Emitter()
    ints = Integers(emit)
    ints.learn("%aligned", 2**32 - 16)
    assert ints.extend(Affine("%aligned", 12), 32, 64, signed=True) == Affine("%v1", 12)
    assert ints.extend(Affine("%aligned", 16), 32, 64, signed=True) == "%v3"
    assert ints.extend(Affine("%any", 1), 32, 64, signed=True) == "%v5"


def test_a_quotient_keeps_its_constant() -> None:
    """Registers with a constant difference share the division of the rest."""
    emit = Emitter()
    ints = Integers(emit)
    ints.learn("%even", 6)
    assert ints.divide(Affine("%even", 1), 1, 32) == ("%v1", Affine("", 1))
    assert ints.divide(Affine("%even", 9), 3, 32) == (Affine("", 1), Affine("%even", 1))
    assert ints.divide(Affine("%any", 1), 1, 32) is None
    assert emit.lines == ["  %v1 = lshr i32 %even, 1"]


# ---- sharing among registers ------------------------------------------------------------------

ROWS = (0, 16, 32, 48)


def test_registers_share_an_address_and_keep_their_distance() -> None:
    """Offsets row * stride + column; each row is the thread's plus a constant."""
    emit = Emitter()
    ints = Integers(emit)
    ints.learn("%tid", 15)
    env: dict[str, Any] = {
        "%tid": np.arange(THREADS).astype(object) % 16,
        "%stride": np.full(THREADS, 2**26 - 8, object),
        "%column": np.arange(THREADS).astype(object) // 16,
        "%p": np.full(THREADS, 2**40, object),
    }
    offsets = tuple(
        ints.add(ints.add(ints.scale(Affine("%tid", row), "%stride", 32), "%column", 32), "5", 32)
        for row in ROWS[:2]
    )
    pointers = ints.add_pointers(("%p",) * 2, offsets, 32, 2, signed=True)
    assert len({ints.origin(Integers.split(pointer)[0])[0] for pointer in pointers}) == 1
    assert {Integers.split(pointer)[1] for pointer in pointers} == {10}
    for row, pointer in zip(ROWS, pointers, strict=False):
        rows = env["%tid"] + row
        want = 2**40 + 2 * (rows * env["%stride"] + env["%column"] + 5)
        fits = rows * env["%stride"] < 2**31 - 64
        assert (evaluate(emit, pointer, env, 64) == want)[fits].all()
    assert sum("mul i32 %tid" in line for line in emit.lines) == 1
    # The address moves for all registers at once, and each keeps its distance.
    shifted = [ints.add_pointer(pointer, "%column", 32, 2, signed=True) for pointer in pointers]
    for before, after in zip(pointers, shifted, strict=True):
        (old, offset), (new, same) = Integers.split(before), Integers.split(after)
        assert ints.origin(new)[1] == ints.origin(old)[1]
        assert ints.origin(new)[0] != ints.origin(old)[0]
        assert offset == same


@pytest.mark.parametrize("stride", [2**22 - 3, -(2**22) + 3, 0])
@pytest.mark.parametrize("shared", [False, True])
def test_multiples_of_a_stride_are_those_of_the_widened_stride(stride: int, shared: bool) -> None:
    """An address has no product of its own: a multiple of the common one is added with it."""
    emit = Emitter()
    ints = Integers(emit)
    rows = [0, 1, 2, 3, 12, 510]
    env: dict[str, Any] = {
        "%stride": np.full(THREADS, stride % 2**32, object),
        "%column": np.arange(THREADS).astype(object),
        "%p": np.full(THREADS, 2**40, object),
    }
    offsets = tuple(ints.scale(Affine("", row), "%stride", 32, signed=True) for row in rows)
    if shared:
        offsets = tuple(ints.add(offset, "%column", 32) for offset in offsets)
    pointers = ints.add_pointers(("%p",) * len(rows), offsets, 32, 4, signed=True)
    for row, pointer in zip(rows, pointers, strict=True):
        want = 2**40 + 4 * (row * stride + (env["%column"] if shared else 0))
        assert (evaluate(emit, pointer, env, 64) == want % 2**64).all()
    widened = [line.split(" = ")[1] for line in emit.lines if " sext " in line]
    assert set(widened) <= {"sext i32 %stride to i64", "sext i32 %column to i64"}
    assert len(widened) == len(set(widened))


def test_an_unsigned_product_may_wrap_on_its_way_to_an_address() -> None:
    emit = Emitter()
    ints = Integers(emit)
    env: dict[str, Any] = {
        "%a": np.full(THREADS, 2**31 + 5, object),
        "%p": np.full(THREADS, 2**40, object),
    }
    # A cast to a signed type keeps the name.
    product = ints.mul("%a", Affine("", 2), 32)
    pointer = ints.add_pointer("%p", product, 32, 4, signed=True)
    assert (evaluate(emit, pointer, env, 64) == 2**40 + 4 * 10).all()


def test_unsigned_offsets_wrap() -> None:
    emit = Emitter()
    ints = Integers(emit)
    env: dict[str, Any] = {
        name: np.full(THREADS, value, object)
        for name, value in (("%a", 2**32 - 8), ("%b", 16), ("%c", 32), ("%p", 2**40))
    }
    offsets = ints.add("%a", "%b", 32), ints.add("%a", "%c", 32)
    pointers = ints.add_pointers(("%p", "%p"), offsets, 32, 4, signed=False)
    for pointer, offset in zip(pointers, (8, 24), strict=True):
        assert (evaluate(emit, pointer, env, 64) == 2**40 + 4 * offset).all()


EDGES = st.one_of(NUMBERS, st.integers(-130, 130), st.just(-(2**31)), st.just(2**31 - 1))


@given(start=EDGES, other=EDGES, is_signed=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_distance_compares_as_the_sums_do(start: int, other: int, *, is_signed: bool) -> None:
    emit = Emitter()
    ints = Integers(emit)
    possible = (2**31 if is_signed else 2**32) - 1 & ~sum({16, 32})
    start = wrap(start & possible, 32)
    ints.learn("%x", possible)
    env = {
        "%x": np.full(THREADS, start % 2**32, object),
        "%y": np.full(THREADS, other % 2**32, object),
    }
    name = ints.distance("%x", ROWS, "%y", 32)
    assert name is not None
    distance = wrap(int(evaluate(emit, name, env, 32)[0]), 32)
    for constant in ROWS:
        assert (distance < -constant) == (start + constant < other)
        assert (distance <= -constant) == (start + constant <= other)


@pytest.mark.parametrize("constants", [(0, 8), (-16, 0)])
def test_sums_that_may_wrap_have_no_distance(constants: tuple[int, int]) -> None:
    ints = Integers(Emitter())
    ints.learn("%x", 2**32 - 16 | 8)
    assert ints.distance("%x", constants, "%y", 32) is None
