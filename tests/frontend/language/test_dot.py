"""`tl.dot`: values, types, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.dialects import tile
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import DTYPES, RNG, Sources, kernel_of

KERNEL = """
@triton.jit
def k(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], {})
"""


def _operand(shape: tuple[int, int], kind: str) -> np.ndarray:
    return RNG.integers(-5, 6, shape).astype(DTYPES[kind])


@pytest.mark.parametrize(
    ("kind", "expression", "result"),
    [
        ("fp16", "tl.dot(a, b)", "fp32"),
        ("fp16", "tl.dot(a, b, out_dtype=tl.float16)", "fp16"),
        ("fp16", "tl.dot(a, b, out_dtype=tl.float32)", "fp32"),
        ("fp16", "tl.dot(a, b, acc=tl.zeros((M, N), tl.float16))", "fp16"),
        ("bf16", "tl.dot(a, b, tl.zeros((M, N), tl.float32))", "fp32"),
        ("bf16", "tl.dot(a, b, out_dtype=tl.float16)", "fp32"),
        ("fp32", "tl.dot(a, b, input_precision='ieee')", "fp32"),
        ("fp64", "tl.dot(a, b, out_dtype=tl.float32)", "fp64"),
        ("i8", "tl.dot(a, b)", "i32"),
        ("i8", "tl.dot(a, b, tl.zeros((M, N), tl.int32))", "i32"),
        ("i8", "tl.dot(a, b, out_dtype=tl.int8)", "i32"),
        ("fp16", "tl.dot(tl.trans(a), b, trans_a=True)", "fp32"),
        ("fp16", "tl.dot(a, tl.trans(b), trans_b=True)", "fp32"),
    ],
)
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 8, 16)])
def test_values_and_types(
    sources: Sources, kind: str, expression: str, result: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    signature = {"a_ptr": f"*{kind}", "b_ptr": f"*{kind}", "out_ptr": f"*{result}"}
    translation = sources.translate(KERNEL.format(expression), signature, {"M": m, "N": n, "K": k})
    a, b = _operand((m, k), kind), _operand((k, n), kind)
    out = np.zeros((m, n), DTYPES[result])
    run(translation.kernel, (1,), [a, b, out])
    # Small integers: every sum is exact in every type.
    assert (out.astype(float) == a.astype(float) @ b.astype(float)).all()
    (dot,) = [op for op in translation.kernel.walk() if isinstance(op, tile.Dot)]
    assert str(dot.out.type) == f"tile<{m}x{n}x{result}>"


def test_an_accumulator_and_a_batch(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(a_ptr, out_ptr):
            i = tl.arange(0, 4)
            square = i[None, :, None] * 4 + i[None, None, :]
            batch = tl.arange(0, 2)[:, None, None] * 16
            a = tl.load(a_ptr + batch + square)
            acc = tl.full((2, 4, 4), 3.0, tl.float32)
            for _ in range(2):
                acc = tl.dot(a, tl.trans(a, (0, 2, 1)), acc)
            tl.store(out_ptr + batch + square, acc)
        """,
        {"a_ptr": "*fp16", "out_ptr": "*fp32"},
    )
    a = RNG.integers(-5, 6, (2, 4, 4)).astype(np.float16)
    out = np.zeros((2, 4, 4), np.float32)
    run(translation.kernel, (1,), [a, out])
    wide = a.astype(np.float64)
    assert (out == 3 + 2 * wide @ wide.transpose(0, 2, 1)).all()


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("", "tf32"),
        (", allow_tf32=True", "tf32"),
        (", allow_tf32=False", "ieee"),
        (", input_precision='TF32x3'", "tf32x3"),
        (", input_precision='bf16x6'", "bf16x6"),
        (", input_precision='ieee'", "ieee"),
    ],
)
def test_input_precision(sources: Sources, argument: str, expected: str) -> None:
    body = f"x = tl.zeros((16, 16), tl.float32)\ny = tl.dot(x, x{argument})"
    kernel = sources.translate(kernel_of(body)).kernel
    (dot,) = [op for op in kernel.walk() if isinstance(op, tile.Dot)]
    assert dot.input_precision == expected


@pytest.mark.parametrize(
    ("call", "message", "remedy"),
    [
        ("tl.dot(n, x)", "the first operand of tl.dot must be a tile, got int32", ""),
        ("tl.dot(x, 2)", "the second operand of tl.dot must be a tile, got 2", ""),
        ("tl.dot(x, x)", "takes (M, K) and (K, N), got (16, 32) and (16, 32): K is 32", "trans"),
        ("tl.dot(tl.trans(x), tl.trans(x))", "K is 16 and 32", ""),
        (
            "tl.dot(x, tl.arange(0, 32))",
            "two tiles of 2 axes, or two of as many more",
            "[None, :, :]",
        ),
        (
            "tl.dot(tl.zeros((2, 4, 4), tl.float16), tl.zeros((4, 4, 4), tl.float16))",
            "batches of one size",
            "",
        ),
        ("tl.dot(x, y.to(tl.float16))", "float32 by float16", "cast one operand"),
        ("tl.dot(x.to(tl.int32), y.to(tl.int32))", "int32 by int32", "int8"),
        ("tl.dot(x, y, tl.zeros((16, 8), tl.float32))", "must be float32[16, 16]", "tl.zeros"),
        ("tl.dot(x, y, 0)", "must be float32[16, 16], got 0", "tl.zeros((16, 16), tl.float32)"),
        ("tl.dot(x, y, out_dtype=tl.bfloat16)", "does not sum in bfloat16", ".to(tl.bfloat16)"),
        (
            "tl.dot(x, y, input_precision='fp8')",
            "'tf32' or 'tf32x3' or 'bf16x3' or 'bf16x6' or 'ieee', got 'fp8'",
            "",
        ),
        ("tl.dot(x, y, input_precision='ieee', allow_tf32=False)", "not both", "leave"),
        (
            "tl.dot(x.to(tl.float8e5), y.to(tl.float8e5), max_num_imprecise_acc=64)",
            "from 0 to K = 32, got 64",
            "",
        ),
        ("tl.dot_scaled(x, y)", "tl.dot_scaled is missing the argument 'lhs_format'", ""),
    ],
)
def test_mistakes(sources: Sources, call: str, message: str, remedy: str) -> None:
    body = f"x = tl.zeros((16, 32), tl.float32)\ny = tl.zeros((32, 16), tl.float32)\nz = {call}"
    error = sources.body_error(body, {"n": "i32"}, params="n")
    assert message in str(error)
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("kind", "limit", "imprecise"),
    [
        *(("float8e4nv", "None", 0), ("float8e4nv", "0", 1), ("float8e5", "1", 1)),
        *(("float8e5", "31", 31), ("float8e4nv", "32", 32)),
        # All other sums are precise at any setting.
        *(("float16", "16", 0), ("bfloat16", "64", 0), ("float32", "0", 0)),
    ],
)
def test_how_many_products_are_summed_imprecisely(
    sources: Sources, kind: str, limit: str, imprecise: int
) -> None:
    translation = sources.translate(
        f"""
@triton.jit
def k(out_ptr):
    x = tl.load(out_ptr + tl.arange(0, 32)[:, None] + tl.arange(0, 32)[None, :]).to(tl.{kind})
    out = tl.dot(x, x, max_num_imprecise_acc={limit})
    tl.store(out_ptr + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :], out)
""",
        {"out_ptr": "*fp32"},
    )
    (dot,) = [op for op in translation.kernel.walk() if isinstance(op, tile.Dot)]
    assert dot.max_num_imprecise_acc == imprecise


def test_batches_of_several_axes(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(a_ptr, b_ptr, out_ptr):
            a = tl.load(a_ptr + tl.arange(0, 128)).reshape(2, 2, 2, 4, 4)
            b = tl.load(b_ptr + tl.arange(0, 256)).reshape(2, 2, 2, 4, 8)
            acc = tl.full((2, 2, 2, 4, 8), 1.0, tl.float32)
            tl.store(out_ptr + tl.arange(0, 256), tl.dot(a, b, acc).reshape(256))
        """,
        {"a_ptr": "*fp16", "b_ptr": "*fp16", "out_ptr": "*fp32"},
    )
    a, b = _operand((8, 16), "fp16"), _operand((8, 32), "fp16")
    out = np.zeros(256, np.float32)
    run(translation.kernel, (1,), [a.reshape(-1), b.reshape(-1), out])
    expected = a.reshape(8, 4, 4).astype(float) @ b.reshape(8, 4, 8).astype(float) + 1
    assert (out.reshape(8, 4, 8) == expected).all()
