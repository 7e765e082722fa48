"""Every kernel of `kernels.toml` with inputs, boundary shapes and the right answer.

A case makes launches: arguments with fresh random data, and the expected outputs. It is independent
of how a kernel runs, so the interpreter on a CPU and a cubin on a GPU meet the same bounds.
Source, signature, types and grid are the manifest's own. A test may lower the block sizes: every
kernel must be right at those too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from aotc.ir import expression
from aotc.ir.types import FP32, I8, I64, SCALARS, ScalarType
from aotc.package.manifest import read as manifest
from aotc.verify.interpreter.numerics import dtype_of
from tests.support import references
from tests.support.references import Expected
from tests.support.shapes import boundary_extents, boundary_matrices
from tests.support.tensors import Array, Tensor, normal, poison, tensor

MANIFEST = Path(__file__).resolve().parents[2] / "kernels.toml"

Shape = tuple[int, ...]
Constants = Mapping[str, int]


@dataclass(frozen=True)
class Launch:
    """The arguments of one launch by parameter name, in order, and the expected outputs."""

    args: dict[str, Tensor | int | float]
    expected: dict[str, Expected]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensor arguments."""
        return {name: arg for name, arg in self.args.items() if isinstance(arg, Tensor)}

    def values(self) -> list[Array | int | float]:
        """Return the arguments as the interpreter takes them."""
        return [arg.view if isinstance(arg, Tensor) else arg for arg in self.args.values()]

    def check(self) -> None:
        """Check the outputs, and assert no other write."""
        for name, expected in self.expected.items():
            expected.check(name, self.tensors[name].view)
        outputs = [self.tensors[name] for name in self.expected]
        for name, array in self.tensors.items():
            array.check_surroundings()
            if not any(array is output for output in outputs):
                assert array.base.tobytes() == array.before.tobytes(), f"wrote to {name}"


@dataclass(frozen=True)
class Arrangement:
    """Layout of a launch's tensors: slack between rows, misalignment, `out` being `x`."""

    padding_elems: int = 0
    misaligned_elems: int = 0
    in_place: bool = False


DENSE = Arrangement()
Make = Callable[[np.random.Generator, ScalarType, Shape, Arrangement], Launch]


@dataclass(frozen=True)
class KernelCase:
    """One kernel of the manifest: launches and shapes.

    `builds` are small block sizes, so that the interpreter sees loops and edges on small arrays.
    """

    name: str
    make: Make
    shapes: Callable[[Constants], Iterator[Shape]]
    builds: tuple[Constants, ...]
    arrangements: tuple[Arrangement, ...] = (DENSE,)

    @property
    def spec(self) -> manifest.KernelSpec:
        """The kernel's entry in the manifest."""
        return next(spec for spec in _manifest().kernels if spec.name == self.name)

    @property
    def source(self) -> tuple[str, str]:
        """The path of the source file and the name of the function in it."""
        return self.spec.source, self.spec.function.name

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types of the kernel in the manifest."""
        return self.spec.types["T"]

    def admits(self, launch: Launch, constants: Constants) -> bool:
        """Return whether the manifest's `where` lets `launch` use `constants`."""
        where = self.spec.where
        return where is None or bool(
            expression.evaluate(where.root, self._known(launch, constants))
        )

    def launches(
        self, rng: np.random.Generator, dtype: str, arrangement: Arrangement, constants: Constants
    ) -> Iterator[tuple[Shape, Launch]]:
        """Yield a launch for every boundary shape of a build with `constants`."""
        for shape in self.shapes(constants):
            launch = self.make(rng, SCALARS[dtype], shape, arrangement)
            if self.admits(launch, constants):
                yield shape, launch

    def grid(self, launch: Launch, constants: Constants) -> tuple[int, ...]:
        """Return the manifest's grid for `launch`."""
        assert self.spec.grid is not None
        values = self._known(launch, constants)
        return tuple(expression.evaluate(extent.root, values) for extent in self.spec.grid)

    def _known(self, launch: Launch, constants: Constants) -> dict[str, int]:
        scalars = {name: arg for name, arg in launch.args.items() if isinstance(arg, int)}
        return {**constants, **scalars}

    def signature(self, dtype: str, launch: Launch, *, promised: bool) -> dict[str, str]:
        """Return the argument types; with `promised`, with all promises of the manifest true of the launch."""
        types: dict[str, str] = {}
        for name, kind in self.spec.signature.items():
            arg = launch.args[name]
            value = arg.offset_elems * arg.view.itemsize if isinstance(arg, Tensor) else arg
            holds = promised and kind.divisor > 1 and value % kind.divisor == 0
            element = dtype if kind.element == "T" else kind.element
            star = "*" if kind.kind == "pointer" else ""
            types[name] = f"{star}{element}" + (f":{kind.divisor}" if holds else "")
        return types


@lru_cache(maxsize=1)
def _manifest() -> manifest.Manifest:
    return manifest.load(str(MANIFEST))


# ---- launches ---------------------------------------------------------------------------------


def _output(shape: Shape, scalar: ScalarType, misaligned_elems: int = 0) -> Tensor:
    return tensor(poison(shape, dtype_of(scalar)), misaligned_elems=misaligned_elems)


def _rows(x: Array, arrangement: Arrangement) -> tuple[Tensor, int]:
    """Return the rows of `x` laid out as asked, and their stride."""
    stride = x.shape[1] + arrangement.padding_elems
    rows = tensor(x, stride_elems=stride, misaligned_elems=arrangement.misaligned_elems)
    return rows, stride


def _like_rows(x: Tensor, scalar: ScalarType, arrangement: Arrangement) -> Tensor:
    """Return where the result of rows goes: the same memory, or rows of the same stride."""
    if arrangement.in_place:
        return x
    return _rows(poison(x.view.shape, dtype_of(scalar)), arrangement)[0]


def _vector_add(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    x, y = (normal(rng, shape, scalar) for _ in range(2))
    expected = references.vector_add(x, y, scalar)
    x_tensor = tensor(x, misaligned_elems=arrangement.misaligned_elems)
    out = x_tensor if arrangement.in_place else _output(shape, scalar)
    args = {"x_ptr": x_tensor, "y_ptr": tensor(y), "out_ptr": out, "n_elements": shape[0]}
    return Launch(args, {"out_ptr": expected})


def _silu_mul(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    n_rows, n_cols = shape
    x = normal(rng, (n_rows, 2 * n_cols), scalar)
    expected = references.silu_mul(x, scalar)
    x_tensor, stride = _rows(x, arrangement)
    out = _output(shape, scalar)
    args = {"x_ptr": x_tensor, "out_ptr": out, "stride": stride, "n_rows": n_rows, "n_cols": n_cols}
    return Launch(args, {"out_ptr": expected})


def _rotary(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    n_tokens, n_heads, half_dim = shape
    head_dim = 2 * half_dim + arrangement.padding_elems  # features without rotation
    n_positions = 50
    x = normal(rng, (n_tokens, n_heads, head_dim), scalar)
    angles = rng.uniform(0, 100, (n_positions, half_dim))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions = rng.integers(0, n_positions, n_tokens).astype(dtype_of(I64))
    expected = references.rotary(x, cos, sin, positions, scalar)
    args = {
        "x_ptr": tensor(x, misaligned_elems=arrangement.misaligned_elems),
        "cos_ptr": tensor(cos),
        "sin_ptr": tensor(sin),
        "positions_ptr": tensor(positions),
        "token_stride": n_heads * head_dim,
        "head_stride": head_dim,
        "n_tokens": n_tokens,
        "n_heads": n_heads,
        "half_dim": half_dim,
    }
    return Launch(args, {"x_ptr": expected})


def _softmax(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    x = normal(rng, shape, scalar)
    # Masked-out logits, as attention and sampling have them; never a whole row.
    x[:, 1::7] = -np.inf
    expected = references.softmax(x, scalar)
    x_tensor, stride = _rows(x, arrangement)
    out = _like_rows(x_tensor, scalar, arrangement)
    args = {"x_ptr": x_tensor, "out_ptr": out, "stride": stride}
    return Launch({**args, **_extents(shape)}, {"out_ptr": expected})


def _cross_entropy(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    n_rows, n_cols = shape
    ignore_index = -100
    logits = (4 * normal(rng, shape, FP32)).astype(dtype_of(scalar))
    target = rng.integers(0, n_cols, n_rows).astype(dtype_of(I64))
    target[1::3] = ignore_index
    target[4::5] = n_cols  # a mistake of the caller's
    loss, lse = references.cross_entropy(logits, target, ignore_index)
    logits_tensor, stride = _rows(logits, arrangement)
    args = {
        "logits_ptr": logits_tensor,
        "target_ptr": tensor(target),
        "loss_ptr": _output((n_rows,), FP32),
        "lse_ptr": _output((n_rows,), FP32),
        "stride": stride,
        **_extents(shape),
        "ignore_index": ignore_index,
    }
    return Launch(args, {"loss_ptr": loss, "lse_ptr": lse})


def _rmsnorm(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    eps = 1e-5
    x, w = normal(rng, shape, scalar), normal(rng, shape[1:], scalar)
    expected = references.rmsnorm(x, w, eps, scalar)
    x_tensor, stride = _rows(x, arrangement)
    out = _like_rows(x_tensor, scalar, arrangement)
    args = {"x_ptr": x_tensor, "w_ptr": tensor(w), "out_ptr": out, "stride": stride}
    return Launch({**args, **_extents(shape), "eps": eps}, {"out_ptr": expected})


def _layernorm(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    eps = 1e-5
    # Far from zero mean, where a difference of squares would lose everything.
    x = (normal(rng, shape, FP32) + 8).astype(dtype_of(scalar))
    w, b = (normal(rng, shape[1:], scalar) for _ in range(2))
    out_expected, mean, rstd = references.layernorm(x, w, b, eps, scalar)
    x_tensor, stride = _rows(x, arrangement)
    args = {
        "x_ptr": x_tensor,
        "w_ptr": tensor(w),
        "b_ptr": tensor(b),
        "out_ptr": _like_rows(x_tensor, scalar, arrangement),
        "mean_ptr": _output(shape[:1], FP32),
        "rstd_ptr": _output(shape[:1], FP32),
        "stride": stride,
        **_extents(shape),
        "eps": eps,
    }
    return Launch(args, {"out_ptr": out_expected, "mean_ptr": mean, "rstd_ptr": rstd})


def _transpose2d(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    x = normal(rng, shape, scalar)
    x_tensor, x_stride = _rows(x, arrangement)
    out, out_stride = _rows(poison(shape[::-1], dtype_of(scalar)), arrangement)
    args = {"x_ptr": x_tensor, "out_ptr": out, "x_stride": x_stride, "out_stride": out_stride}
    return Launch({**args, **_extents(shape)}, {"out_ptr": references.transpose2d(x)})


def _argmax_rows(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    x = normal(rng, shape, scalar)
    x[::2] = np.round(x[::2].astype(np.float32))  # many equal elements
    x[2::4, shape[1] // 2 :: 5] = np.nan
    if shape[0] > 1:
        x[1] = -np.inf
    expected = references.argmax_rows(x)
    x_tensor, stride = _rows(x, arrangement)
    args = {"x_ptr": x_tensor, "out_ptr": _output(shape[:1], I64), "stride": stride}
    return Launch({**args, **_extents(shape)}, {"out_ptr": expected})


def _cumsum_rows(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    x = normal(rng, shape, scalar)
    expected = references.cumsum_rows(x, scalar)
    x_tensor, stride = _rows(x, arrangement)
    out = _like_rows(x_tensor, scalar, arrangement)
    args = {"x_ptr": x_tensor, "out_ptr": out, "stride": stride}
    return Launch({**args, **_extents(shape)}, {"out_ptr": expected})


def _quantize_int8_rows(
    rng: np.random.Generator, scalar: ScalarType, shape: Shape, arrangement: Arrangement
) -> Launch:
    x = normal(rng, shape, scalar)
    if shape[0] > 1:
        x[1] = 0.0
    quantised, scale = references.quantize_int8_rows(x)
    x_tensor, stride = _rows(x, arrangement)
    args = {
        "x_ptr": x_tensor,
        "out_ptr": _output(shape, I8),
        "scale_ptr": _output(shape[:1], FP32),
        "stride": stride,
        **_extents(shape),
    }
    return Launch(args, {"out_ptr": quantised, "scale_ptr": scale})


def _extents(shape: Shape) -> dict[str, int]:
    return {"n_rows": shape[0], "n_cols": shape[1]}


# ---- cases ------------------------------------------------------------------------------------


def _vectors(constants: Constants) -> Iterator[Shape]:
    yield from ((extent,) for extent in (0, *boundary_extents(constants["BLOCK"])))


def _matrices(constants: Constants) -> Iterator[Shape]:
    yield from boundary_matrices(constants["BLOCK"])


def _heads(constants: Constants) -> Iterator[Shape]:
    heads, half = constants["BLOCK_HEADS"], constants["BLOCK_HALF"]
    yield from [(0, heads, half), (3, 1, half), (2, heads + 1, half - 1), (1, 2 * heads, 1)]
    yield from [(2, heads - 1, half // 2), (5, heads, half)]


def _tiles(constants: Constants) -> Iterator[Shape]:
    rows, cols = constants["BLOCK_M"], constants["BLOCK_N"]
    yield from [(0, cols), (1, 1), (rows, cols), (rows - 1, cols + 1), (17, 3 * cols + 5)]
    yield from [(2 * rows, 1), (2 * rows + 1, 2 * cols - 1)]


PADDED = Arrangement(padding_elems=3)
WIDE = Arrangement(padding_elems=16)
MISALIGNED = Arrangement(misaligned_elems=1)
IN_PLACE = Arrangement(in_place=True)
_BLOCK = ({"BLOCK": 64},)
_LOOP = ({"BLOCK": 64, "LOOP": False}, {"BLOCK": 64, "LOOP": True})

CASES: dict[str, KernelCase] = {
    case.name: case
    for case in (
        KernelCase("vector_add", _vector_add, _vectors, _BLOCK, (DENSE, MISALIGNED, IN_PLACE)),
        KernelCase("silu_mul", _silu_mul, _matrices, _BLOCK, (DENSE, PADDED, WIDE, MISALIGNED)),
        KernelCase(
            "rotary",
            *(_rotary, _heads, ({"BLOCK_HEADS": 4, "BLOCK_HALF": 16},)),
            (DENSE, PADDED, WIDE, MISALIGNED),
        ),
        KernelCase(
            *("softmax", _softmax, _matrices, _LOOP),
            (DENSE, PADDED, WIDE, MISALIGNED, IN_PLACE),
        ),
        KernelCase("cross_entropy", _cross_entropy, _matrices, _BLOCK, (DENSE, PADDED, MISALIGNED)),
        KernelCase(
            *("rmsnorm", _rmsnorm, _matrices, _LOOP),
            (DENSE, PADDED, WIDE, MISALIGNED, IN_PLACE),
        ),
        KernelCase(
            *("layernorm", _layernorm, _matrices, _LOOP),
            (DENSE, PADDED, WIDE, MISALIGNED, IN_PLACE),
        ),
        KernelCase(
            *("transpose2d", _transpose2d, _tiles, ({"BLOCK_M": 16, "BLOCK_N": 32},)),
            (DENSE, PADDED, WIDE, MISALIGNED),
        ),
        KernelCase("argmax_rows", _argmax_rows, _matrices, _BLOCK, (DENSE, PADDED, MISALIGNED)),
        KernelCase(
            *("cumsum_rows", _cumsum_rows, _matrices, _BLOCK),
            (DENSE, PADDED, MISALIGNED, IN_PLACE),
        ),
        KernelCase(
            *("quantize_int8_rows", _quantize_int8_rows, _matrices, _BLOCK),
            (DENSE, PADDED, WIDE, MISALIGNED),
        ),
    )
}
