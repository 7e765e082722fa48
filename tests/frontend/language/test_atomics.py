"""The atomic functions of the language: values, types, order, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.dialects import tile
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import DTYPES, Sources, kernel_of


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("i32", "add", [13, 15, 17, 6]),
        ("u32", "max", [7, 8, 9, 6]),
        ("i32", "min", [3, 4, 5, 6]),
        ("i32", "and", [3 & 7, 4 & 8, 5 & 9, 6]),
        ("u32", "or", [3 | 7, 4 | 8, 5 | 9, 6]),
        ("i32", "xor", [3 ^ 7, 4 ^ 8, 5 ^ 9, 6]),
        ("fp32", "xchg", [7, 8, 9, 6]),
        ("fp16", "add", [10, 12, 14, 6]),
        ("bf16", "add", [10, 12, 14, 6]),
        ("fp64", "max", [7, 8, 9, 6]),
        ("fp32", "min", [3, 4, 5, 6]),
    ],
)
def test_tiles(sources: Sources, kind: str, name: str, expected: list[float]) -> None:
    translation = sources.translate(
        f"""
        @triton.jit
        def k(p, old, n):
            i = tl.arange(0, 4)
            before = tl.atomic_{name}(p + i, i + 7, mask=i < n)
            tl.store(old + i, before, mask=i < n)
        """,
        {"p": f"*{kind}", "old": f"*{kind}", "n": "i32"},
    )
    cells = np.array([3, 4, 5, 6], DTYPES[kind])
    old = np.zeros(4, DTYPES[kind])
    if name == "add" and kind == "i32":
        cells[:3] = [6, 7, 8]
        expected_old = [6, 7, 8, 0]
    else:
        expected_old = [3, 4, 5, 0]
    run(translation.kernel, (1,), [cells, old, 3])
    assert cells.astype(float).tolist() == expected
    assert old.astype(float).tolist() == expected_old


def test_scalars_methods_and_literals(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(p, wide):
            ticket = p.atomic_add(1)
            tl.atomic_max(p + 1, ticket * 10)
            tl.atomic_cas(wide, 0, ticket + 5)
        """,
        {"p": "*i32", "wide": "*i64"},
    )
    cells, wide = np.zeros(2, np.int32), np.zeros(1, np.int64)
    run(translation.kernel, (4,), [cells, wide])
    assert (cells.tolist(), wide.item()) == ([4, 30], 5)


def test_tiles_that_share_an_address_are_a_histogram(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(x, bins):
            tl.atomic_add(bins + tl.load(x + tl.arange(0, 64)), 1, sem="relaxed")
        """,
        {"x": "*i32", "bins": "*u64"},
    )
    x = np.random.default_rng(3).integers(0, 5, 64).astype(np.int32)
    bins = np.zeros(5, np.uint64)
    run(translation.kernel, (1,), [x, bins])
    assert bins.tolist() == np.bincount(x, minlength=5).tolist()


@pytest.mark.parametrize(
    ("arguments", "sem", "scope"),
    [
        ("", "acq_rel", "gpu"),
        (", None, None, None", "acq_rel", "gpu"),
        (", sem='relaxed', scope='sys'", "relaxed", "sys"),
        (", sem='release', scope='cta'", "release", "cta"),
        (", sem='acquire'", "acquire", "gpu"),
    ],
)
def test_order(sources: Sources, arguments: str, sem: str, scope: str) -> None:
    text = kernel_of(f"tl.atomic_add(p, 1{arguments})", "p")
    kernel = sources.translate(text, {"p": "*i32"}).kernel
    (atomic,) = [op for op in kernel.walk() if isinstance(op, tile.AtomicRmw)]
    assert (atomic.sem, atomic.scope) == (sem, scope)


@pytest.mark.parametrize(
    ("call", "message", "remedy"),
    [
        ("tl.atomic_add(n, 1)", "tl.atomic_add takes a pointer", ""),
        ("tl.atomic_add(p.to(tl.pointer_type(tl.int8)), 1)", "pointer to int8", "int32"),
        ("tl.atomic_max(p.to(tl.pointer_type(tl.float16)), 1)", "pointer to float16", "float32"),
        ("tl.atomic_and(p.to(tl.pointer_type(tl.float32)), 1)", "pointer to float32", "uint64"),
        ("tl.atomic_cas(p.to(tl.pointer_type(tl.uint8)), 1, 1)", "pointer to uint8", "16, 32"),
        ("tl.atomic_add(p, tl.arange(0, 4))", "the value of tl.atomic_add is a tile", "offsets"),
        ("tl.atomic_add(p, 1, mask=n)", "mask of tl.atomic_add must be of truth values", "!= 0"),
        ("tl.atomic_add(p, 1, sem='strong')", "sem must be 'relaxed' or", ""),
        ("tl.atomic_add(p, 1, scope='warp')", "scope must be 'gpu' or 'cta' or 'sys'", ""),
    ],
)
def test_mistakes(sources: Sources, call: str, message: str, remedy: str) -> None:
    error = sources.body_error(call, {"p": "*i32", "n": "i32"}, params="p, n")
    assert message in str(error)
    assert remedy in error.remedy


# ---- loads and stores -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["i32", "u32", "fp32", "fp64"])
def test_loads_and_stores_move_values(sources: Sources, kind: str) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(p, out, n):
            i = tl.arange(0, 4)
            x = tl.atomic_load(p + i, mask=i < n)
            (out + i).atomic_store(x + 1, mask=i < n, sem="relaxed")
            tl.atomic_store(out + 4, tl.atomic_load(p, sem="relaxed", scope="sys"))
        """,
        {"p": f"*{kind}", "out": f"*{kind}", "n": "i32"},
    )
    cells, out = np.array([3, 4, 5, 6], DTYPES[kind]), np.zeros(5, DTYPES[kind])
    run(translation.kernel, (1,), [cells, out, 3])
    assert cells.tolist() == [3, 4, 5, 6]
    assert out.tolist() == [4, 5, 6, 0, 3]


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_a_load_of_16_bits(sources: Sources, kind: str) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(p, out):
            i = tl.arange(0, 4)
            tl.store(out + i, tl.atomic_load(p + i))
        """,
        {"p": f"*{kind}", "out": f"*{kind}"},
    )
    cells, out = np.array([3, -0.0, 5, 6], DTYPES[kind]), np.zeros(4, DTYPES[kind])
    run(translation.kernel, (1,), [cells, out])
    assert out.tobytes() == cells.tobytes()


def test_orders_of_loads_and_stores(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(p):
            tl.atomic_store(p, tl.atomic_load(p + 1))
            tl.atomic_store(p, tl.atomic_load(p + 1, sem="relaxed"), sem="relaxed", scope="cta")
        """,
        {"p": "*i32"},
    )
    updates = [op for op in translation.kernel.walk() if isinstance(op, tile.AtomicRmw)]
    assert [(op.kind, op.sem, op.scope) for op in updates] == [
        ("or", "acquire", "gpu"),
        ("xchg", "release", "gpu"),
        ("or", "relaxed", "gpu"),
        ("xchg", "relaxed", "cta"),
    ]


@pytest.mark.parametrize("kind", ["i32", "u32"])
def test_polling_ends_where_the_number_is_there(sources: Sources, kind: str) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(p, out):
            there = tl.atomic_poll(p + tl.program_id(0), 5)
            tl.store(out + tl.program_id(0), there)
            tl.atomic_store(p + tl.program_id(0) + 1, 5)
        """,
        {"p": f"*{kind}", "out": "*i32"},
    )
    cells, out = np.array([5, 0, 0, 0], DTYPES[kind]), np.zeros(3, np.int32)
    run(translation.kernel, (3,), [cells, out])
    assert out.tolist() == [1, 1, 1]
    assert cells.tolist() == [5] * 4


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tl.atomic_load(p, sem='release')", "sem must be"),
        ("tl.atomic_store(p, 1, sem='acq_rel')", "sem must be"),
        ("tl.atomic_load(b)", "tl.atomic_load does not take a pointer to int8"),
        ("tl.atomic_store(h, 1.0)", "tl.atomic_store does not take a pointer to float16"),
        ("tl.atomic_load(h, mask=True)", "tl.atomic_load does not take a pointer to float16"),
        ("tl.atomic_poll(p + tl.arange(0, 4), 1)", "tl.atomic_poll waits for one integer"),
        ("tl.atomic_poll(h, 1)", "tl.atomic_poll waits for one integer"),
    ],
)
def test_what_loads_and_stores_refuse(sources: Sources, body: str, expected: str) -> None:
    types = {"p": "*i32", "b": "*i8", "h": "*fp16"}
    message = str(sources.error(kernel_of(body, "p, b, h"), types))
    assert expected in message
