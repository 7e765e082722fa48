"""Kernels around matrix products and atomics: inputs, boundary shapes and the right answers.

As in `kernel_cases`, a case makes launches and is independent of how they run. Blocks are small, so
that small arrays exercise loops and edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aotc.ir.types import BF16, FP16, FP32, I32, SCALARS, ScalarType
from aotc.verify.interpreter.numerics import dtype_of
from tests.support import references
from tests.support.kernel_cases import Launch
from tests.support.references import Expected
from tests.support.tensors import Array, Tensor, normal, poison, tensor, wide

KERNELS = Path(__file__).resolve().parents[2] / "kernels"

Shape = tuple[int, ...]
Constants = Mapping[str, Any]
Args = dict[str, Tensor | int | float]
Grid = Callable[[Mapping[str, Any]], tuple[int, ...]]


@dataclass(frozen=True)
class MatrixCase:
    """One kernel: launches, shapes and constants.

    `grid` gets arguments and constants by name.
    """

    name: str
    source: str
    make: Callable[[np.random.Generator, ScalarType, Shape, Constants], Launch]
    grid: Grid
    shapes: tuple[Shape, ...]
    builds: tuple[Constants, ...]
    dtypes: tuple[ScalarType, ...] = (FP16, BF16, FP32)
    not_constants: tuple[str, ...] = field(default=())

    @property
    def path(self) -> str:
        """The path of the source file."""
        return str(KERNELS / self.source)

    def constants(self, build: Constants) -> dict[str, Any]:
        """Return the kernel's constants; the rest of a build is for its launches."""
        return {name: value for name, value in build.items() if name not in self.not_constants}

    def grid_of(self, launch: Launch, build: Constants) -> tuple[int, ...]:
        """Return the grid of a launch."""
        return self.grid({**launch.args, **build})


def signature_of(launch: Launch, *, promised: bool) -> dict[str, str]:
    """Return the argument types; with `promised`, with all promises true of the values."""
    types: dict[str, str] = {}
    for name, arg in launch.args.items():
        if isinstance(arg, Tensor):
            scalar = next(s for s in SCALARS.values() if dtype_of(s) == arg.view.dtype)
            aligned = arg.offset_elems * arg.view.itemsize % 16 == 0
            types[name] = f"*{scalar}" + (":16" if promised and aligned else "")
        elif isinstance(arg, float):
            types[name] = "fp32"
        elif promised and arg == 1 and name.startswith("stride"):
            types[name] = "i32=1"
        else:
            types[name] = "i32:16" if promised and arg % 16 == 0 else "i32"
    return types


def values_of(launch: Launch, names: Iterable[str]) -> list[Any]:
    """Return the arguments of the parameters `names`, as the interpreter takes them."""
    args = launch.args
    return [arg.view if isinstance(arg := args[name], Tensor) else arg for name in names]


def _cdiv(value: int, by: int) -> int:
    return -(-value // by)


def _tiles(values: Mapping[str, Any]) -> int:
    return _cdiv(values["M"], values["BLOCK_M"]) * _cdiv(values["N"], values["BLOCK_N"])


def _matrix(content: Array, padding_elems: int = 0) -> tuple[Tensor, int]:
    """Return rows with slack between them, and their stride."""
    stride = content.shape[1] + padding_elems
    return tensor(content, stride_elems=stride), stride


def _output(shape: Shape, scalar: ScalarType) -> Tensor:
    return tensor(poison(shape, dtype_of(scalar)))


# ---- matmul -----------------------------------------------------------------------------------


def _matmul(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    m, n, k = shape
    a, b = normal(rng, (m, k), scalar), normal(rng, (k, n), scalar)
    bias, residual = normal(rng, (n,), scalar), normal(rng, (m, n), scalar)
    exact = references.dot(a, b, scalar)
    if constants["BIAS"]:
        exact += wide(bias)
    exact = references.activate(exact, constants["ACTIVATION"])
    if constants["RESIDUAL"]:
        exact += wide(residual)
    a_tensor, stride_am = _matrix(a, 3)
    b_tensor, stride_bk = _matrix(b)
    stride_bn = 1
    if constants.get("TRANSPOSED"):
        b_tensor, stride_bn = _matrix(np.ascontiguousarray(b.T), 1)
        stride_bk = 1
    out, stride_om = _matrix(poison((m, n), dtype_of(scalar)), 5)
    residual_tensor, _ = _matrix(residual, 5)
    args: Args = {
        "a_ptr": a_tensor,
        "b_ptr": b_tensor,
        "bias_ptr": tensor(bias),
        "residual_ptr": residual_tensor,
        "out_ptr": out,
        "M": m, "N": n, "K": k,
        "stride_am": stride_am, "stride_ak": 1, "stride_bk": stride_bk, "stride_bn": stride_bn,
        "stride_om": stride_om, "stride_on": 1,
    }  # fmt: skip
    return Launch(args, {"out_ptr": exact.rounded(scalar)})


_BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 2}
_PLAIN = {"BIAS": False, "RESIDUAL": False, "ACTIVATION": "none", "EVEN_K": False}
_SHAPES = ((1, 1, 1), (16, 32, 16), (17, 31, 5), (5, 7, 0), (33, 40, 47))

# ---- split-K ----------------------------------------------------------------------------------


def _split_k_operands(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape
) -> tuple[Array, Array, Args]:
    m, n, k = shape
    a, b = normal(rng, (m, k), scalar), normal(rng, (k, n), scalar)
    (a_tensor, stride_am), (b_tensor, stride_bk) = _matrix(a, 1), _matrix(b, 2)
    strides = {"stride_am": stride_am, "stride_ak": 1, "stride_bk": stride_bk, "stride_bn": 1}
    return a, b, {"a_ptr": a_tensor, "b_ptr": b_tensor, "M": m, "N": n, "K": k, **strides}


def _split_k_atomic(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    a, b, args = _split_k_operands(rng, scalar, shape)
    before = normal(rng, shape[:2], scalar)
    out, stride_om = _matrix(before.copy(), 3)
    exact = references.dot(a, b, scalar) + wide(before)
    # Every program rounds its part, and the sum so far, to the type of the output.
    size = np.abs(wide(a)) @ np.abs(wide(b)) + np.abs(wide(before))
    error = exact.error + 2 * constants["SPLIT_K"] * 2.0 ** -(scalar.mantissa_bits + 1) * size
    args = _ordered(
        {**args, "out_ptr": out, "stride_om": stride_om},
        "a_ptr b_ptr out_ptr M N K stride_am stride_ak stride_bk stride_bn stride_om",
    )
    return Launch(args, {"out_ptr": Expected(exact.value, error)})


def _split_k(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    a, b, args = _split_k_operands(rng, scalar, shape)
    splits, block_k = constants["SPLIT_K"], constants["BLOCK_K"]
    k = np.arange(shape[2]) // block_k % splits
    parts = [references.dot(a[:, k == part], b[k == part], scalar) for part in range(splits)]
    expected = Expected(
        *(np.stack([getattr(p, field) for p in parts]) for field in ("value", "error"))
    )
    args = _ordered(
        {**args, "workspace_ptr": _output((splits, *shape[:2]), FP32)},
        "a_ptr b_ptr workspace_ptr M N K stride_am stride_ak stride_bk stride_bn",
    )
    return Launch(args, {"workspace_ptr": expected})


def _sum_splits(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    m, n = shape
    workspace = normal(rng, (constants["SPLIT_K"], m, n), FP32)
    bias = normal(rng, (n,), scalar)
    size = np.sum(np.abs(wide(workspace)), axis=0) + np.abs(wide(bias))
    exact = references.Approximate(
        np.sum(wide(workspace), axis=0) + wide(bias), 8 * references.EPS * size
    )
    out, stride_om = _matrix(poison(shape, dtype_of(scalar)), 3)
    args: Args = {
        "workspace_ptr": tensor(workspace), "bias_ptr": tensor(bias), "out_ptr": out,
        "M": m, "N": n, "stride_om": stride_om,
    }  # fmt: skip
    activated = references.activate(exact, constants["ACTIVATION"])
    return Launch(args, {"out_ptr": activated.rounded(scalar)})


def _ordered(args: Args, names: str) -> Args:
    return {name: args[name] for name in names.split()}


# ---- batches ----------------------------------------------------------------------------------


def _batched(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    batch, m, n, k = shape
    a = normal(rng, (batch, m, k), scalar)
    b = normal(rng, (1 if constants.get("ONE_B") else batch, k, n), scalar)
    args: Args = {
        "a_ptr": tensor(a), "b_ptr": tensor(b), "out_ptr": _output((batch, m, n), scalar),
        "M": m, "N": n, "K": k, "stride_ab": m * k, "stride_am": k, "stride_ak": 1,
        "stride_bb": k * n if len(b) == batch else 0, "stride_bk": n, "stride_bn": 1,
        "stride_ob": m * n, "stride_om": n, "stride_on": 1,
    }  # fmt: skip
    return Launch(args, {"out_ptr": references.dot(a, b, scalar).rounded(scalar)})


def _small_matmuls(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    del constants
    batch, m, n, k = shape
    a, b = normal(rng, (batch, m, k), scalar), normal(rng, (batch, k, n), scalar)
    args: Args = {
        "a_ptr": tensor(a), "b_ptr": tensor(b), "out_ptr": _output((batch, m, n), scalar),
        "n_batches": batch, "M": m, "N": n, "K": k,
    }  # fmt: skip
    return Launch(args, {"out_ptr": references.dot(a, b, scalar).rounded(scalar)})


# ---- quantised weights ------------------------------------------------------------------------


def _int8(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    del constants
    m, n, k = shape
    a = normal(rng, (m, k), scalar)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    scale = normal(rng, (n,), scalar)
    (a_tensor, stride_am), (b_tensor, stride_bk) = _matrix(a, 8), _matrix(b, 3)
    out, stride_om = _matrix(poison((m, n), dtype_of(scalar)), 1)
    exact = references.dot(a, b, scalar) * wide(scale)
    args: Args = {
        "a_ptr": a_tensor, "b_ptr": b_tensor, "scale_ptr": tensor(scale), "out_ptr": out,
        "M": m, "N": n, "K": k,
        "stride_am": stride_am, "stride_bk": stride_bk, "stride_om": stride_om,
    }  # fmt: skip
    return Launch(args, {"out_ptr": exact.rounded(scalar)})


def _int4(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    m, n, k = shape
    a = normal(rng, (m, k), scalar)
    nibbles = rng.integers(0, 16, (k + k % 2, n))
    packed = (nibbles[::2] | nibbles[1::2] << 4).astype(np.uint8).view(np.int8)
    groups = np.arange(k) // constants["GROUP_K"]
    scale = normal(rng, (_cdiv(k, constants["GROUP_K"]), n), scalar)
    # The product with the scale is rounded to the type of A, so it is part of the operand.
    b = (wide(nibbles[:k] - 8) * wide(scale)[groups]).astype(dtype_of(scalar))
    (a_tensor, stride_am), (b_tensor, stride_bk) = _matrix(a, 8), _matrix(packed, 3)
    (scale_tensor, stride_sk), out = _matrix(scale, 1), _output((m, n), scalar)
    args: Args = {
        "a_ptr": a_tensor, "b_ptr": b_tensor, "scale_ptr": scale_tensor, "out_ptr": out,
        "M": m, "N": n, "K": k, "stride_am": stride_am, "stride_bk": stride_bk,
        "stride_sk": stride_sk, "stride_om": n,
    }  # fmt: skip
    return Launch(args, {"out_ptr": references.dot(a, b, scalar).rounded(scalar)})


# ---- attention, convolution, groups -----------------------------------------------------------


def _attention(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    batch, heads, group, n_queries, n_keys = shape
    dim = constants["HEAD_DIM"]
    scale = dim**-0.5
    q = normal(rng, (batch, heads, n_queries, dim), scalar)
    k, v = (normal(rng, (batch, heads // group, n_keys, dim), scalar) for _ in range(2))
    out, lse = references.attention(q, k, v, scale, scalar, causal=constants["CAUSAL"])
    args: Args = {
        "q_ptr": tensor(q), "k_ptr": tensor(k), "v_ptr": tensor(v),
        "out_ptr": _output(q.shape, scalar), "lse_ptr": _output(q.shape[:3], FP32),
        "scale": scale, "n_heads": heads, "heads_per_kv_head": group,
        "n_queries": n_queries, "n_keys": n_keys,
    }  # fmt: skip
    for name, array in (("q", q), ("k", k), ("v", v), ("o", q)):
        steps = dict(zip("bhm" if name in "qo" else "bhn", array.strides, strict=False))
        args.update({f"stride_{name}{axis}": s // array.itemsize for axis, s in steps.items()})
    return Launch(args, {"out_ptr": out, "lse_ptr": lse})


def _conv2d(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    images, height, width, channels, filters = shape
    window = constants["KERNEL_H"], constants["KERNEL_W"]
    stride, padding, dilation = constants["STRIDE"], constants["PADDING"], constants["DILATION"]
    x = normal(rng, (images, height, width, channels), scalar)
    w = normal(rng, (*window, channels, filters), scalar)
    bias = normal(rng, (filters,), scalar)
    exact = references.conv2d(x, w, stride, padding, dilation, scalar) + wide(bias)
    out_height, out_width = exact.value.shape[1:3]
    args: Args = {
        "x_ptr": tensor(x), "w_ptr": tensor(w), "bias_ptr": tensor(bias),
        "out_ptr": _output(exact.value.shape, scalar),
        "n_images": images, "height": height, "width": width, "n_channels": channels,
        "out_height": out_height, "out_width": out_width, "n_filters": filters,
        "stride_y": stride[0], "stride_x": stride[1],
        "padding_y": padding[0], "padding_x": padding[1],
        "dilation_y": dilation[0], "dilation_x": dilation[1],
    }  # fmt: skip
    activated = references.activate(exact, constants["ACTIVATION"])
    return Launch(args, {"out_ptr": activated.rounded(scalar)})


def _conv2d_grid(values: Mapping[str, Any]) -> tuple[int, ...]:
    pixels = values["n_images"] * values["out_height"] * values["out_width"]
    return (_tiles({**values, "M": pixels, "N": values["n_filters"]}),)


def _grouped(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    tokens, per_token, experts, n, k = shape
    block_m, n_rows = constants["BLOCK_M"], tokens * per_token
    a, b = normal(rng, (tokens, k), scalar), normal(rng, (experts, k, n), scalar)
    chosen = rng.integers(0, experts, n_rows)
    weight = normal(rng, (n_rows,), FP32)
    rows: list[int] = []
    owners: list[int] = []
    for expert in range(experts):
        mine = np.flatnonzero(chosen == expert).tolist()
        mine += [n_rows] * (-len(mine) % block_m)
        rows += mine
        owners += [expert] * (len(mine) // block_m)
    token_rows = a[np.arange(n_rows) // per_token]
    exact = references.dot(token_rows[:, None, :], b[chosen], scalar)
    exact = references.Approximate(exact.value[:, 0], exact.error[:, 0])
    if constants["WEIGHTED"]:
        exact *= wide(weight)[:, None]
    args: Args = {
        "a_ptr": tensor(a), "b_ptr": tensor(b), "row_ptr": tensor(np.array(rows, np.int32)),
        "expert_ptr": tensor(np.array(owners, np.int32)),
        "weight_ptr": tensor(weight), "out_ptr": _output((n_rows, n), scalar),
        "n_rows": n_rows, "n_blocks": len(owners), "rows_per_token": per_token, "N": n, "K": k,
        "stride_am": k, "stride_be": k * n, "stride_bk": n, "stride_om": n,
    }  # fmt: skip
    return Launch(args, {"out_ptr": exact.rounded(scalar)})


def _grouped_grid(values: Mapping[str, Any]) -> tuple[int, ...]:
    return (values["n_blocks"] * _cdiv(values["N"], values["BLOCK_N"]),)


# ---- atomics and stencils ---------------------------------------------------------------------


def _histogram(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    del scalar, constants
    n_elements, n_bins = shape
    x = rng.integers(-1, n_bins + 2, n_elements).astype(dtype_of(I32))
    before = rng.integers(0, 100, n_bins).astype(dtype_of(I32))
    args: Args = {"x_ptr": tensor(x), "bins_ptr": tensor(before)}
    args.update({"n_elements": n_elements, "n_bins": n_bins})
    return Launch(args, {"bins_ptr": references.histogram(x, before)})


def _row_sums(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    del constants
    x, before = normal(rng, shape, scalar), normal(rng, shape[:1], FP32)
    x_tensor, stride = _matrix(x, 3)
    expected = references.atomic_row_sums(x, before)
    args: Args = {"x_ptr": x_tensor, "out_ptr": tensor(before), "stride": stride}
    return Launch({**args, "n_cols": shape[1]}, {"out_ptr": expected})


def _embedding_bag(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    """Make `shape` (bags, columns): a bag has up to 9 entries, some none, some of them padding."""
    del constants
    bags, dim = shape
    offset = np.cumsum([0, *rng.integers(0, 10, bags)]).astype(dtype_of(I32))
    count = int(offset[-1])
    index = rng.integers(-1, 5, count + 1).astype(dtype_of(I32))
    table, weight = normal(rng, (5, dim), scalar), normal(rng, (count + 1,), FP32)
    rows, stride = _matrix(table, 3)
    args: Args = {"table_ptr": rows, "index_ptr": tensor(index), "weight_ptr": tensor(weight)}
    args.update({"offset_ptr": tensor(offset), "out_ptr": _output(shape, FP32), "stride": stride})
    expected = references.embedding_bag(table, index, weight, offset)
    return Launch({**args, "n_bags": bags, "dim": dim}, {"out_ptr": expected})


_WEIGHTS = (0.25, -1.5, 2.0)  # exact in fp32
_WEIGHT_ARGS = dict(zip(("before", "centre", "after"), _WEIGHTS, strict=True))


def _halo_stencil(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    x, left, right = (normal(rng, extents, scalar) for extents in (shape, shape[:1], shape[:1]))
    ends = [
        column[:, None] if constants[flag] else np.zeros((shape[0], 1), x.dtype)
        for column, flag in ((left, "HAS_LEFT"), (right, "HAS_RIGHT"))
    ]
    expected = references.stencil(np.hstack([ends[0], x, ends[1]]), _WEIGHTS, scalar)
    x_tensor, stride = _matrix(x, 2)
    out, _ = _matrix(poison(shape, dtype_of(scalar)), 2)
    args: Args = {
        "x_ptr": x_tensor, "left_ptr": tensor(left), "right_ptr": tensor(right), "out_ptr": out,
        "stride": stride, "n_cols": shape[1], **_WEIGHT_ARGS,
    }  # fmt: skip
    return Launch(args, {"out_ptr": expected})


def _bordered_stencil(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, constants: Constants
) -> Launch:
    del constants
    x = normal(rng, shape, scalar)
    columns = references.stencil(np.pad(x.T, ((0, 0), (1, 1))), _WEIGHTS, scalar)
    x_tensor, stride = _matrix(x, 2)
    out, _ = _matrix(poison(shape, dtype_of(scalar)), 2)
    args: Args = {
        "x_ptr": x_tensor, "out_ptr": out, "stride": stride,
        "n_rows": shape[0], "n_cols": shape[1], **_WEIGHT_ARGS,
    }  # fmt: skip
    return Launch(args, {"out_ptr": Expected(columns.value.T, columns.bound.T)})


# ---- cases ------------------------------------------------------------------------------------

_HALVES = (FP16, BF16)
_CONV = {**_BLOCKS, "BIAS": True, "ACTIVATION": "relu", "KERNEL_H": 3, "KERNEL_W": 2}

CASES: dict[str, MatrixCase] = {
    case.name: case
    for case in (
        MatrixCase(
            *("matmul", "matmul.py:matmul_kernel", _matmul, lambda values: (_tiles(values),)),
            _SHAPES,
            (
                {**_BLOCKS, **_PLAIN},
                {**_BLOCKS, **_PLAIN, "BIAS": True, "RESIDUAL": True, "ACTIVATION": "silu"},
                {**_BLOCKS, **_PLAIN, "BIAS": True, "ACTIVATION": "gelu", "TRANSPOSED": True},
            ),
            not_constants=("TRANSPOSED",),
        ),
        MatrixCase(
            *(
                "matmul_even_k",
                "matmul.py:matmul_kernel",
                _matmul,
                lambda values: (_tiles(values),),
            ),
            *(((1, 1, 16), (17, 31, 48)), ({**_BLOCKS, **_PLAIN, "EVEN_K": True},), _HALVES),
        ),
        MatrixCase(
            *("matmul_split_k_atomic", "split_k.py:matmul_split_k_atomic_kernel"),
            *(_split_k_atomic, lambda values: (_tiles(values), values["SPLIT_K"])),
            *(_SHAPES, ({**_BLOCKS, "SPLIT_K": 3},)),
        ),
        MatrixCase(
            *("matmul_split_k", "split_k.py:matmul_split_k_kernel"),
            *(_split_k, lambda values: (_tiles(values), values["SPLIT_K"])),
            *(_SHAPES, ({**_BLOCKS, "SPLIT_K": 2},)),
        ),
        MatrixCase(
            *("sum_splits", "split_k.py:sum_splits_kernel", _sum_splits),
            lambda values: (values["M"], _cdiv(values["N"], values["BLOCK"])),
            ((1, 1), (3, 64), (2, 65)),
            ({"BLOCK": 64, "SPLIT_K": 3, "BIAS": True, "ACTIVATION": "relu"},),
        ),
        MatrixCase(
            *("batched_matmul", "batched_matmul.py:batched_matmul_kernel", _batched),
            lambda values: (_tiles(values), values["out_ptr"].view.shape[0]),
            ((1, 1, 1, 1), (3, 17, 33, 15), (2, 16, 32, 16)),
            (_BLOCKS, {**_BLOCKS, "ONE_B": True}),
            not_constants=("ONE_B",),
        ),
        MatrixCase(
            *("small_matmuls", "batched_matmul.py:small_matmuls_kernel", _small_matmuls),
            lambda values: (_cdiv(values["n_batches"], values["BLOCK_B"]),),
            ((1, 1, 1, 1), (5, 16, 16, 16), (9, 13, 5, 11)),
            ({"BLOCK_B": 4, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16},),
        ),
        MatrixCase(
            *("int8_matmul", "quantized_matmul.py:int8_matmul_kernel", _int8),
            lambda values: (_tiles(values),),
            *(_SHAPES, (_BLOCKS,), _HALVES),
        ),
        MatrixCase(
            *("int4_matmul", "quantized_matmul.py:int4_matmul_kernel", _int4),
            lambda values: (_tiles(values),),
            ((1, 1, 1), (16, 32, 64), (17, 31, 35), (50, 65, 129)),
            *(({**_BLOCKS, "GROUP_K": 32},), _HALVES),
        ),
        MatrixCase(
            *("attention", "attention.py:attention_kernel", _attention),
            lambda values: (
                _cdiv(values["n_queries"], values["BLOCK_M"]),
                values["q_ptr"].view.shape[0] * values["n_heads"],
            ),
            ((1, 1, 1, 1, 1), (1, 2, 2, 32, 64), (2, 4, 2, 33, 47), (1, 2, 1, 50, 17)),
            (
                {"HEAD_DIM": 16, "BLOCK_M": 32, "BLOCK_N": 16, "CAUSAL": True},
                {"HEAD_DIM": 32, "BLOCK_M": 16, "BLOCK_N": 32, "CAUSAL": False},
            ),
        ),
        MatrixCase(
            *("conv2d", "convolution.py:conv2d_kernel", _conv2d, _conv2d_grid),
            ((1, 4, 3, 1, 1), (2, 7, 9, 17, 33)),
            (
                {**_CONV, "STRIDE": (1, 1), "PADDING": (1, 0), "DILATION": (1, 1)},
                {**_CONV, "STRIDE": (2, 3), "PADDING": (2, 1), "DILATION": (1, 2)},
            ),
            _HALVES,
            ("STRIDE", "PADDING", "DILATION"),
        ),
        MatrixCase(
            *("grouped_matmul", "grouped_matmul.py:grouped_matmul_kernel"),
            *(_grouped, _grouped_grid, ((1, 1, 1, 1, 1), (13, 2, 3, 33, 17), (40, 3, 5, 32, 16))),
            ({**_BLOCKS, "WEIGHTED": False}, {**_BLOCKS, "WEIGHTED": True}),
            _HALVES,
        ),
        MatrixCase(
            *("histogram", "reduce_atomic.py:histogram_kernel", _histogram),
            lambda values: (_cdiv(values["n_elements"], values["BLOCK"]),),
            *(((1, 1), (64, 3), (200, 17)), ({"BLOCK": 64},), (I32,)),
        ),
        MatrixCase(
            *("row_sums", "reduce_atomic.py:row_sums_kernel", _row_sums),
            lambda values: (
                values["out_ptr"].view.shape[0],
                _cdiv(values["n_cols"], values["COLS"]),
            ),
            ((1, 1), (3, 64), (2, 300)),
            ({"BLOCK": 32, "COLS": 64},),
        ),
        MatrixCase(
            *("embedding_bag", "embedding.py:embedding_bag_kernel", _embedding_bag),
            lambda values: (values["n_bags"], _cdiv(values["dim"], values["BLOCK"])),
            ((1, 1), (4, 63), (7, 64), (3, 65)),
            ({"BLOCK": 64, "UNROLL": 1, "STAGES": 3}, {"BLOCK": 32, "UNROLL": 4, "STAGES": 2}),
        ),
        MatrixCase(
            *("halo_stencil", "stencil.py:halo_stencil_kernel", _halo_stencil),
            lambda values: (
                values["left_ptr"].view.shape[0],
                _cdiv(values["n_cols"], values["BLOCK"]),
            ),
            ((1, 1), (2, 2), (3, 64), (2, 131)),
            (
                {"BLOCK": 64, "HAS_LEFT": True, "HAS_RIGHT": True},
                {"BLOCK": 64, "HAS_LEFT": True, "HAS_RIGHT": False},
                {"BLOCK": 64, "HAS_LEFT": False, "HAS_RIGHT": False},
            ),
        ),
        MatrixCase(
            *("bordered_stencil", "stencil.py:bordered_stencil_kernel", _bordered_stencil),
            lambda values: (values["n_rows"], _cdiv(values["n_cols"], values["BLOCK"])),
            ((1, 1), (2, 64), (5, 65)),
            ({"BLOCK": 64},),
        ),
    )
}
