"""The kernels of kernels/functions.toml, interpreted: documented behaviour."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aotc.frontend import translate
from aotc.verify.interpreter.run import run

KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.mark.parametrize("n_tokens", [1, 3, 9])
def test_route(n_tokens: int) -> None:
    rng = np.random.default_rng(n_tokens)
    logits = rng.standard_normal((n_tokens, 16)).astype(np.float32)
    logits[0, 3:7] = logits[0].max() + 1  # equal ones: the lower number first
    weights, experts = np.zeros((n_tokens, 4), np.float32), np.zeros((n_tokens, 4), np.int32)
    types = ("*fp32", "*fp32", "*i32", "i32", "i32")
    names = ("logits_ptr", "weights_ptr", "experts_ptr", "stride", "n_tokens")
    constants = {"N_EXPERTS": 16, "TOP_K": 4, "BLOCK": 2}
    signature = dict(zip(names, types, strict=True))
    kernel = translate(str(KERNELS / "routing.py"), "route_kernel", signature, constants).kernel
    flat = [logits.reshape(-1), weights.reshape(-1), experts.reshape(-1)]
    run(kernel, (-(-n_tokens // 2),), [*flat, 16, n_tokens])
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :4]
    assert (experts == expected).all()
    power = np.exp(np.take_along_axis(logits.astype(np.float64), expected, 1))
    np.testing.assert_allclose(weights, power / power.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 100, 257])
def test_count(n: int) -> None:
    chosen = np.random.default_rng(n).integers(0, 8, max(n, 1)).astype(np.int32)
    counts = np.arange(8, dtype=np.int32)
    signature = {"experts_ptr": "*i32", "counts_ptr": "*i32", "n": "i32"}
    constants = {"N_EXPERTS": 8, "BLOCK": 64}
    kernel = translate(str(KERNELS / "routing.py"), "count_kernel", signature, constants).kernel
    run(kernel, (-(-n // 64),), [chosen, counts, n])
    assert (counts == np.arange(8) + np.bincount(chosen[:n], minlength=8)).all()


@pytest.mark.parametrize("n_cols", [1, 2, 31, 32])
def test_median(n_cols: int) -> None:
    x = np.random.default_rng(n_cols).standard_normal((3, n_cols)).astype(np.float32)
    out = np.zeros(3, np.float32)
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "n_cols": "i32"}
    kernel = translate(
        str(KERNELS / "routing.py"), "median_kernel", signature, {"BLOCK": 32}
    ).kernel
    run(kernel, (3,), [x.reshape(-1).copy(), out, n_cols, n_cols])
    assert (out == np.sort(x, axis=1)[:, (n_cols - 1) // 2]).all()


def test_dropout_keeps_its_rate() -> None:
    x = np.ones(4096, ml_dtypes.bfloat16)
    signature = {"x_ptr": "*bf16", "out_ptr": "*bf16", "n": "i32", "p": "fp32", "seed": "i64"}
    kernel = translate(
        str(KERNELS / "dropout.py"), "dropout_kernel", signature, {"BLOCK": 512}
    ).kernel
    rates = []
    for p in (0.0, 0.25, 0.9):
        out = np.zeros_like(x)
        run(kernel, (8,), [x.copy(), out, 4096, p, 7])
        assert set(out.tolist()) <= {0.0, float(ml_dtypes.bfloat16(1 / (1 - p)))}
        rates.append((out != 0).mean())
    np.testing.assert_allclose(rates, [1, 0.75, 0.1], atol=0.03)


@pytest.mark.parametrize("n_cols", [1, 4, 5, 33])
@pytest.mark.parametrize(("dtype", "zero_point"), [(np.int8, -3), (np.uint8, 128)])
def test_average_pool(n_cols: int, dtype: type, zero_point: int) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(n_cols).integers(info.min, info.max + 1, (3, n_cols), dtype)
    out = np.zeros_like(x)
    element = "i8" if dtype == np.int8 else "u8"
    scalars = dict.fromkeys(("stride", "n_rows", "n_cols", "zero_point"), "i32")
    signature = {"x_ptr": f"*{element}", "out_ptr": f"*{element}", **scalars}
    kernel = translate(
        str(KERNELS / "pooling.py"), "average_pool_kernel", signature, {"WINDOW": 5, "BLOCK": 16}
    ).kernel
    arguments = [x.reshape(-1).copy(), out.reshape(-1), n_cols, 3, n_cols, zero_point]
    run(kernel, (3, -(-n_cols // 16)), arguments)
    for row in range(3):
        for col in range(n_cols):
            near = x[row, max(0, col - 2) : col + 3].astype(np.float64) - zero_point
            mean = near.mean()
            rounded = np.trunc(mean + np.copysign(0.5, mean))
            assert out[row, col] == int(rounded) + zero_point


@pytest.mark.parametrize("n_cols", [1, 15, 16, 40])
def test_linear_recurrence(n_cols: int) -> None:
    rng = np.random.default_rng(n_cols)
    decay, x = rng.random((2, 3, n_cols)).astype(np.float32)
    out = np.full_like(x, np.nan)
    names = ("decay_ptr", "x_ptr", "out_ptr", "stride", "n_rows", "n_cols")
    signature = dict(zip(names, [*["*fp32"] * 3, *["i32"] * 3], strict=True))
    kernel = translate(
        str(KERNELS / "sequence.py"), "linear_recurrence_kernel", signature, {"BLOCK": 16}
    ).kernel
    arrays = [decay.reshape(-1).copy(), x.reshape(-1).copy(), out.reshape(-1)]
    run(kernel, (3,), [*arrays, n_cols, 3, n_cols])
    state = np.zeros(3)
    for col in range(n_cols):
        state = decay[:, col] * state + x[:, col]
        np.testing.assert_allclose(out[:, col], state, rtol=1e-5)


@pytest.mark.parametrize("n_cols", [1, 7, 16, 37])
@pytest.mark.parametrize("shift", [0, 1, 3, -2, -41])
def test_roll_rows(n_cols: int, shift: int) -> None:
    x = np.random.default_rng(n_cols).standard_normal((2, n_cols)).astype(np.float32)
    out = np.full_like(x, np.nan)
    names = ("x_ptr", "out_ptr", "stride", "n_rows", "n_cols", "shift")
    signature = dict(zip(names, ["*fp32", "*fp32", *["i32"] * 4], strict=True))
    kernel = translate(
        str(KERNELS / "sequence.py"), "roll_rows_kernel", signature, {"BLOCK": 16}
    ).kernel
    arrays = [x.reshape(-1).copy(), out.reshape(-1)]
    run(kernel, (2, -(-n_cols // 16)), [*arrays, n_cols, 2, n_cols, shift])
    assert (out == np.roll(x, shift, axis=1)).all()


def test_replace_nan() -> None:
    x = np.array([1.5, np.nan, -np.inf, 0.0, -np.nan, np.inf, -2.0], np.float32)
    out = np.zeros_like(x)
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "value": "fp32"}
    kernel = translate(
        str(KERNELS / "sequence.py"), "replace_nan_kernel", signature, {"BLOCK": 16}
    ).kernel
    run(kernel, (1,), [x.copy(), out, 7, 0.25])
    assert (out == np.where(np.isnan(x), 0.25, x)).all()
