"""Gradients of row kernels, interpreted, against finite differences in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.frontend import translate
from aotc.verify.interpreter.run import run

KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.mark.parametrize("n_cols", [1, 31, 64])
def test_gradients_of_cross_entropy_are_slopes(n_cols: int) -> None:
    """Against finite differences of the loss in float64, with targets inside, outside and ignored."""
    rng = np.random.default_rng(n_cols)
    ignored, scale, target = 0, 0.25, np.array([n_cols - 1, 0, n_cols, n_cols // 2], np.int64)
    logits = rng.standard_normal((4, n_cols)).astype(np.float32)
    grad, loss, lse = np.zeros_like(logits), np.zeros(4, np.float32), np.zeros(4, np.float32)
    signature = {
        "logits_ptr": "*fp32",
        "target_ptr": "*i64",
        "grad_ptr": "*fp32",
        "loss_ptr": "*fp32",
        "lse_ptr": "*fp32",
        "stride": "i32",
        "n_rows": "i32",
        "n_cols": "i32",
        "ignore_index": "i32",
        "scale": "fp32",
    }
    source = str(KERNELS / "softmax.py")
    translation = translate(source, "cross_entropy_grad_kernel", signature, {"BLOCK": 64})
    numbers = (n_cols, 4, n_cols, ignored, scale)
    run(
        translation.kernel,
        (4,),
        [logits.reshape(-1), target, grad.reshape(-1), loss, lse, *numbers],
    )

    def losses(x: np.ndarray) -> np.ndarray:
        inside = np.clip(target, 0, n_cols - 1)
        return np.log(np.exp(x).sum(1)) - x[np.arange(4), inside]

    wide = logits.astype(np.float64)
    counts = (target != ignored) & (target < n_cols)
    expected = np.where(target == ignored, 0.0, np.where(target < n_cols, losses(wide), np.nan))
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)
    for column in range(n_cols):
        step = np.zeros_like(wide)
        step[:, column] = 1e-5
        slope = (losses(wide + step) - losses(wide - step)) / 2e-5 * scale
        np.testing.assert_allclose(grad[counts, column], slope[counts], rtol=1e-4, atol=1e-6)
    assert (grad[target == ignored] == 0).all()


def _norm(name: str, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the forward pass on rows in float64."""
    if name == "rmsnorm":
        return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * w
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6) * w + b


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(("n_rows", "n_cols", "programs"), [(1, 1, 1), (5, 31, 2), (7, 64, 9)])
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_gradients_of_norms_are_slopes(
    name: str, n_rows: int, n_cols: int, programs: int, stages: int
) -> None:
    """Against finite differences, in float64, of sum(y * dy): for rows, weights and biases."""
    rng = np.random.default_rng(n_cols)
    x, dy = rng.standard_normal((2, n_rows, n_cols))
    w, b = rng.standard_normal((2, n_cols))
    mean = x.mean(1) if name == "layernorm" else np.zeros(n_rows)
    rstd = 1 / np.sqrt(((x - mean[:, None]) ** 2).mean(1) + 1e-6)
    statistics = {"mean_ptr": mean, "rstd_ptr": rstd} if name == "layernorm" else {"rstd_ptr": rstd}
    sums = ["dw_ptr", "db_ptr"] if name == "layernorm" else ["dw_ptr"]
    inputs = {"dy_ptr": dy, "x_ptr": x, "w_ptr": w, **statistics}
    arrays = {key: value.astype(np.float32).reshape(-1) for key, value in inputs.items()}
    arrays["dx_ptr"] = np.full(n_rows * n_cols, np.nan, np.float32)
    arrays |= {key: np.full(programs * n_cols, np.nan, np.float32) for key in sums}
    numbers = {"stride": n_cols, "n_rows": n_rows, "n_cols": n_cols, "n_programs": programs}
    signature = dict.fromkeys(arrays, "*fp32") | dict.fromkeys(numbers, "i32")
    source, constants = str(KERNELS / "norm_backward.py"), {"BLOCK": 64, "STAGES": stages}
    translation = translate(source, f"{name}_backward_kernel", signature, constants)
    run(translation.kernel, (programs,), [*arrays.values(), *numbers.values()])
    gradients = [arrays["dx_ptr"].reshape(n_rows, n_cols)]
    for key in sums:
        out = np.full(n_cols, np.nan, np.float32)
        kinds = {"partial_ptr": "*fp32", "out_ptr": "*fp32", "n_partials": "i32", "n_cols": "i32"}
        blocks = {"BLOCK_M": 4, "BLOCK_N": 16}
        summed = translate(source, "partial_sums_kernel", kinds, blocks)
        run(summed.kernel, (-(-n_cols // 16),), [arrays[key], out, programs, n_cols])
        gradients.append(out)

    step = 1e-5
    for array, grad in zip((x, w, b), gradients, strict=False):
        for index in np.ndindex(array.shape):
            array[index] += step
            above = (_norm(name, x, w, b) * dy).sum()
            array[index] -= 2 * step
            below = (_norm(name, x, w, b) * dy).sum()
            array[index] += step
            slope = (above - below) / (2 * step)
            np.testing.assert_allclose(grad[index], slope, rtol=2e-4, atol=2e-4)
