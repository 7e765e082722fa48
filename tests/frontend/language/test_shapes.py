"""Creation and reshaping of tiles, run on tile IR against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources, X, evaluate

SHAPES = [
    ("tl.trans(x)", X.T),
    ("x.T", X.T),
    ("x.reshape(8, 4)", X.reshape(8, 4)),
    ("tl.ravel(x)", X.reshape(-1)),
    ("tl.view(x, (2, 16))", X.reshape(2, 16)),
    ("x.reshape(2, 2, 8).permute(2, 0, 1)", X.reshape(2, 2, 8).transpose(2, 0, 1)),
    ("tl.trans(x.reshape(2, 2, 8), 1, 0, 2)", X.reshape(2, 2, 8).transpose(1, 0, 2)),
    ("tl.join(x, x * 2)", np.stack([X, X * 2], -1)),
    ("tl.split(x.reshape(4, 4, 2))[1]", X.reshape(4, 4, 2)[..., 1]),
    ("tl.interleave(x, -x)", np.stack([X, -X], -1).reshape(4, 16)),
    ("tl.cat(x, -x)", np.concatenate([X, -X], 0)),
    ("tl.cat(x, -x, dim=1)", np.concatenate([X, -X], 1)),
    ("tl.cat(x, -x, can_reorder=True, dim=-1)", np.concatenate([X, -X], 1)),
    ("tl.flip(x)", X[:, ::-1]),
    ("tl.flip(x, 0)", X[::-1]),
    ("tl.expand_dims(x, (0, 3))", X[None, :, :, None]),
    ("x[:, None, :]", X[:, None, :]),
    ("tl.broadcast_to(x[:, None, :], 4, 2, 8)", np.broadcast_to(X[:, None], (4, 2, 8))),
    ("tl.broadcast_to(3.5, (4, 2))", np.full((4, 2), 3.5)),
    ("tl.zeros_like(x) + tl.full((8,), 2, tl.float32)", np.full((4, 8), 2.0)),
    ("tl.squeeze(x[None], 0)", X),
    ("tl.unsqueeze(x, -1)", X[..., None]),
    ("tl.sum(x, 1)[:, None] + x", X.sum(1, keepdims=True) + X),
]


@pytest.mark.parametrize(("expression", "expected"), SHAPES, ids=[label for label, _ in SHAPES])
def test_shapes(sources: Sources, expression: str, expected: np.ndarray) -> None:
    actual = evaluate(sources, expression, X, "fp32", expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_a_colon_for_an_axis_that_is_not_there_does_nothing(sources: Sources) -> None:
    """Existing kernels index program ids like tiles."""
    translation = sources.translate(
        """
        @triton.jit
        def k(out, n):
            i, j = tl.program_id(0), tl.program_id(1)
            places = i[:, None] * 4 + j[None, :] + tl.arange(0, 2)[:, None, :]
            tl.store(out + places, n[None, :, None] + places, mask=i[:, None] < n)
        """,
        {"out": "*i32", "n": "i32"},
    )
    out = np.zeros(16, np.int32)
    run(translation.kernel, (3, 3), [out, 2])
    expected = np.zeros(16, np.int32)
    for i in range(2):
        expected[4 * i : 4 * i + 4] = 2 + np.arange(4 * i, 4 * i + 4)
    assert out.tolist() == expected.tolist()
