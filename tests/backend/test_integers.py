"""Sums kept apart: whatever is tracked, the numbers are those of wrapping arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.backend.emitter import Emitter
from aotc.backend.integers import Affine, Component, Integers, wrap
from aotc.ir import gf2

THREADS = 64
NUMBERS = st.integers(-(2**31), 2**31 - 1)


def evaluate(emit: Emitter, component: Component, env: dict[str, Any], bits: int) -> Any:
    """Return the value of a component as Python integers modulo 2**bits, running what was written."""
    values = dict(env)
    for line in [*emit.prologue, *emit.lines]:
        name, text = line.strip().split(" = ")
        values[name] = _run(text, values)
    base, offset = Integers.split(component)
    start = values[base] if base else np.zeros(THREADS, object)
    return (start + offset) % (1 << bits)


def _run(text: str, values: dict[str, Any]) -> Any:
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


@given(st.data())
@settings(max_examples=200, deadline=None)
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
        opcode = data.draw(st.sampled_from(["add", "sub", "mul"]))
        (left, x), (right, y) = (data.draw(st.sampled_from(pool)) for _ in range(2))
        exact = {"add": x + y, "sub": x - y, "mul": x * y}[opcode] % 2**32
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
