"""The workloads of benchmarks/hopper.py: operands, the right answer, and the library's own product.

A workload names its arguments after the kernels' parameters, so one table serves every kernel
for it, compiled by either compiler. Operands are normally distributed. There are enough sets of
them to miss the L2 on every launch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from llm_shapes import SHAPES
from torch.nn.functional import silu

from aotc.weights import repack_int4

L2_BYTES = 60 << 20
MAX_SETS = 8
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn

Arguments = dict[str, Any]


@dataclass
class Work:
    """A workload on the GPU: `products` of (M, K) and (K, N).

    `make` makes a set of arguments, `exact` is its result in fp64, `library` binds arguments to
    the library's product into the argument `out`. A set may be of several "layers", each with
    arguments for its own launch. `kernels` are from the archive, and `triton` is the subset
    compiled by Triton too. Arguments for the library alone, such as weights converted to a
    supported type, are `library_alone`: they do not count as bytes read. A result may be off by
    `relative` of itself, for rounding to bf16. It may also be off by `tolerance` of the typical
    result, for the order of summation.
    """

    name: str
    m: int
    n: int
    k: int
    kernels: tuple[str, ...]
    make: Callable[[], Arguments]
    exact: Callable[[Arguments], torch.Tensor]
    library: Callable[[Arguments], Callable[[], object]]
    triton: tuple[str, ...] = ()
    out: str = "c"
    products: int = 1
    library_alone: tuple[str, ...] = ()
    relative: float = 2**-8
    tolerance: float = 0.02
    sets: list[Arguments] = field(init=False)
    turns: Iterator[int] = field(default_factory=itertools.count, init=False)
    """Of sets: peers take them in one turn, or one would find in the L2 what the last one read."""

    def __post_init__(self) -> None:
        first = self.make()
        read = [layer.items() for layer in layers_of(first)]
        values = [
            value
            for arguments in read
            for name, value in arguments
            if name not in self.library_alone
        ]
        tensors = {v.data_ptr(): v for v in values if isinstance(v, torch.Tensor)}
        self.nbytes = sum(tensor.nbytes for tensor in tensors.values())
        count = max(2, min(MAX_SETS, math.ceil(2.5 * L2_BYTES / self.nbytes)))
        self.sets = [first, *(self.make() for _ in range(count - 1))]
        self.expected = self.exact(first)

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.products * self.m * self.n * self.k

    def wrong(self, result: torch.Tensor) -> float:
        """Return how far a result is off, as a multiple of how far it may be."""
        typical = self.expected.square().mean().sqrt()
        bound = self.expected.abs() * self.relative + self.tolerance * typical
        worst = ((result.double() - self.expected).abs() / bound).max().item()
        return math.inf if math.isnan(worst) else worst


def layers_of(args: Arguments) -> list[Arguments]:
    """Return the arguments of each launch for a set."""
    return args.get("layers", [args])


def _normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def _empty(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=BF16)


def _scales(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device="cuda") + 0.5


def _linear_arguments(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> Arguments:
    (m, k), n = x.shape, w.shape[0]
    descriptors = {"a": x, "b": w, "c": out, "c_rest": out, "w": w, "x": x}
    pointers = {"w_ptr": w, "x_ptr": x, "out_ptr": out}
    strides = {"stride_wn": k, "stride_xm": k, "stride_om": n}
    return {**descriptors, **pointers, "M": m, "N": n, "K": k, **strides}


def _linear(
    name: str,
    shape: tuple[int, int, int],
    kernels: tuple[str, ...],
    triton: tuple[str, ...] = (),
) -> Work:
    """Return rows times the transpose of weights, in bf16: a linear layer."""
    m, n, k = shape

    return Work(
        *(name, m, n, k, kernels),
        make=lambda: _linear_arguments(_normal(m, k), _normal(n, k), _empty(m, n)),
        exact=lambda args: args["a"].double() @ args["b"].double().T,
        library=lambda args: partial(torch.mm, args["a"], args["b"].T, out=args["c"]),
        triton=triton,
    )


def _descriptors(size: int) -> Work:
    kernels = ("linear", "linear_columns")
    return _linear(f"descriptors {size}", (size, size, size), kernels, kernels)


def _shape(index: int) -> Work:
    shape = SHAPES[index]
    few = ("small_descriptor", "small_pointer") if shape.m <= 256 else ()
    many = ("linear", "linear_columns", "split_tail", "split_tail_columns")
    return _linear(shape.name, (shape.m, shape.n, shape.k), (*few, *many))


def _small(m: int) -> Work:
    kernels = ("small_descriptor", "small_pointer", *(("matvec",) if m == 1 else ()))
    return _linear(f"small {m}", (m, 8192, 8192), kernels, kernels)


def _chain(m: int, size: int = 8192, count: int = 8) -> Work:
    """Return layers of few rows, each with its own weights and the last one's output as input."""

    def make() -> Arguments:
        rows, layers = _normal(m, size), []
        for _ in range(count):
            w, out = (torch.randn(size, size, device="cuda") * size**-0.5).to(BF16), _empty(m, size)
            layers.append(_linear_arguments(rows, w, out))
            rows = out
        return {"layers": layers, "c": rows}

    def exact(args: Arguments) -> torch.Tensor:
        rows = args["layers"][0]["a"].double()
        for layer in args["layers"]:
            rows = (rows @ layer["b"].double().T).to(BF16).double()
        return rows

    def library(args: Arguments) -> Callable[[], object]:
        return partial(torch.mm, args["a"], args["b"].T, out=args["c"])

    kernels = ("small_descriptor", "small_pointer", *(("matvec",) if m == 1 else ()))
    return Work(
        *(f"chain {m}", m, size, size, kernels, make, exact, library, kernels),
        products=count,
        tolerance=0.1,  # every layer rounds its bf16 input again
    )


def _pointers(size: int) -> Work:
    """Return the plain source with pointers; B is stored by rows."""

    def make() -> Arguments:
        a, b, out = _normal(size, size), _normal(size, size), _empty(size, size)
        pointers = {"a_ptr": a, "b_ptr": b, "bias_ptr": out, "residual_ptr": out, "out_ptr": out}
        strides = dict.fromkeys(("stride_am", "stride_bk", "stride_om"), size)
        unit_strides = dict.fromkeys(("stride_ak", "stride_bn", "stride_on"), 1)
        return {**pointers, "M": size, "N": size, "K": size, **strides, **unit_strides}

    return Work(
        *(f"pointers {size}", size, size, size, ("matmul",), make),
        exact=lambda args: args["a_ptr"].double() @ args["b_ptr"].double(),
        library=lambda args: partial(torch.mm, args["a_ptr"], args["b_ptr"], out=args["out_ptr"]),
        triton=("matmul",),
        out="out_ptr",
    )


def _fp8_operands(size: int) -> Arguments:
    x, w = _normal(size, size, dtype=FP8), _normal(size, size, dtype=FP8)
    out = _empty(size, size)
    return {"a": x, "b": w, "c": out, "c_rest": out, "M": size, "N": size, "K": size}


def _fp8(size: int) -> Work:
    """Return a product of fp8 with one scale for each tensor."""

    def exact(args: Arguments) -> torch.Tensor:
        scale = args["scale_a_ptr"].double() * args["scale_b_ptr"].double()
        return args["a"].double() @ args["b"].double().T * scale

    def library(args: Arguments) -> Callable[[], object]:
        return partial(
            torch._scaled_mm,  # noqa: SLF001 - the library has no other name for it
            args["a"], args["b"].T, args["scale_a_ptr"], args["scale_b_ptr"],
            out_dtype=BF16, use_fast_accum=True, out=args["c"],
        )  # fmt: skip

    kernels = ("linear_fp8", "linear_fp8_columns")
    return Work(
        *(f"fp8 {size}", size, size, size, kernels),
        make=lambda: _fp8_operands(size) | {f"scale_{name}_ptr": _scales(1) for name in "ab"},
        exact=exact,
        library=library,
        triton=kernels,
        tolerance=0.05,  # tensor cores keep some 13 bits of a sum of fp8 products
    )


def _blockwise(size: int) -> Work:
    """Return a product of fp8 with a scale for 1 x 128 of A and 128 x 128 of B."""
    blocks = size // 128

    def make() -> Arguments:
        scale_a = _scales(blocks, size)
        scales = {
            "scale_a": scale_a,
            "scale_a_ptr": scale_a,
            "scale_b_ptr": _scales(blocks, blocks),
        }
        return _fp8_operands(size) | scales | {"stride_sa": size, "stride_sb": blocks}

    def exact(args: Arguments) -> torch.Tensor:
        scale_a = args["scale_a"].double().T.repeat_interleave(128, 1)
        scale_b = args["scale_b_ptr"].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (args["a"].double() * scale_a) @ (args["b"].double() * scale_b).T

    def library(args: Arguments) -> Callable[[], object]:
        return partial(
            torch._scaled_mm,  # noqa: SLF001
            args["a"], args["b"].T, args["scale_a"].T, args["scale_b_ptr"].T,
            out_dtype=BF16, out=args["c"],
        )  # fmt: skip

    kernels = ("blockwise_fp8", "blockwise_fp8_parts")
    return Work(
        *(f"blockwise {size}", size, size, size, kernels, make, exact, library),
        triton=("blockwise_fp8",),
    )


def _weight_only(size: int) -> Work:
    """Return a product with weights of 8 bits; the library is given them scaled, in bf16."""

    def make() -> Arguments:
        w = torch.randint(-128, 128, (size, size), device="cuda", dtype=torch.int8)
        operands = {"x": _normal(size, size), "w": w, "c": _empty(size, size)}
        scale = _scales(size) / 64
        wide = (w * scale[:, None]).to(BF16)
        return {**operands, "scale_ptr": scale, "wide": wide, "M": size, "N": size, "K": size}

    return Work(
        *(f"weight-only int8 {size}", size, size, size, ("weight_only_int8",), make),
        exact=lambda args: args["x"].double() @ args["w"].double().T * args["scale_ptr"].double(),
        library=lambda args: partial(torch.mm, args["x"], args["wide"].T, out=args["c"]),
        triton=("weight_only_int8",),
        library_alone=("wide",),
    )


def _int4(m: int, size: int = 8192, group: int = 128) -> Work:
    """Return few rows times 4-bit weights, with a scale for each group; see `unpacked_int4`."""

    def make() -> Arguments:
        numbers = torch.randint(0, 16, (size, size // 8, 8), device="cuda")
        element = torch.arange(8, device="cuda")
        words = (numbers << element // 2 * 4 + element % 2 * 16).sum(2)
        scales = (_scales(size // group, size) / 8).to(BF16)
        wide = (numbers.reshape(size, -1) - 8) * scales.T.repeat_interleave(group, 1)
        x, out = _normal(m, size), _empty(m, size)
        operands = {"w": _wrapped(words), "x": x, "scales": scales, "out_ptr": out}
        return {**operands, "wide": wide, "M": m, "N": size, "K": size, "stride_om": size}

    return Work(
        *(f"int4 {m}", m, size, size, ("small_int4",), make),
        exact=lambda args: args["x"].double() @ args["wide"].double().T,
        library=lambda args: partial(torch.mm, args["x"], args["wide"].T, out=args["out_ptr"]),
        triton=("small_int4",),
        library_alone=("wide",),
        out="out_ptr",
    )


@cache
def _awq(size: int, group: int) -> tuple[torch.Tensor, ...]:
    """Return words of an AWQ checkpoint's weights, repacked, its zeros and scales, and the weights in bf16."""
    words = np.random.default_rng(0).integers(0, 1 << 32, (size, size // 8), np.uint32)
    packed = torch.from_numpy(repack_int4(words, "awq")).cuda()
    zeros = torch.randint(0, 16, (size // group, size), device="cuda").to(BF16)
    scales = (_scales(size // group, size) / 8).to(BF16)
    element = torch.arange(8, device="cuda")
    numbers = (packed[:, :, None] >> element // 2 * 4 + element % 2 * 16 & 15).reshape(size, size)
    each_zero, scale_of = (of.T.repeat_interleave(group, 1) for of in (zeros, scales))
    return packed, zeros, scales, (numbers - each_zero) * scale_of


def _int4_zeros(m: int, size: int = 8192, group: int = 128) -> Work:
    """Return rows times weights of 4 bits with zeros and scales, of an AWQ checkpoint through `repack_int4`."""

    def make() -> Arguments:
        packed, zeros, scales, wide = _awq(size, group)
        # Other sets are the same weights in another order.
        by = int(torch.randint(0, size, ()))
        w, wide = packed.roll(by, 0), wide.roll(by, 0)
        x, out = _normal(m, size), _empty(m, size)
        operands = {"w": w, "x": x, "scales": scales.roll(by, 1), "zeros": zeros.roll(by, 1)}
        sizes = {"M": m, "N": size, "K": size, "stride_om": size}
        return {**operands, "out_ptr": out, "wide": wide, **sizes}

    return Work(
        *(f"int4 zeros {m}", m, size, size, ("small_int4_zeros",), make),
        exact=lambda args: args["x"].double() @ args["wide"].double().T,
        library=lambda args: partial(torch.mm, args["x"], args["wide"].T, out=args["out_ptr"]),
        triton=("small_int4_zeros",),
        library_alone=("wide",),
        out="out_ptr",
    )


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _mxfp4(m: int, size: int = 8192) -> Work:
    """Return rows times weights of mxfp4: bf16 holds their values exactly."""

    def make() -> Arguments:
        table = torch.tensor((*_E2M1, *(-value for value in _E2M1)), device="cuda", dtype=BF16)
        w = torch.randint(0, 256, (size, size // 2), device="cuda", dtype=torch.uint8)
        exponents = torch.randint(118, 126, (size, size // 32), device="cuda", dtype=torch.uint8)
        numbers = torch.stack((table[(w & 15).int()], table[(w >> 4).int()]), 2).reshape(size, size)
        wide = numbers * torch.exp2(exponents.float() - 127).to(BF16).repeat_interleave(32, 1)
        x, out = _normal(m, size), _empty(m, size)
        scales = exponents.view(torch.int32).T.contiguous()
        results = {"out_ptr": out, "c": out, "stride_om": size}
        operands = {"w": w, "x": x, "scales": scales, "wide": wide}
        return {**operands, **results, "M": m, "N": size, "K": size}

    kernel = "mxfp4" if m > 64 else "small_mxfp4"
    return Work(
        *(f"mxfp4 {m}", m, size, size, (kernel,), make),
        exact=lambda args: args["x"].double() @ args["wide"].double().T,
        library=lambda args: partial(torch.mm, args["x"], args["wide"].T, out=args["c"]),
        triton=(kernel,),
        library_alone=("wide",),
    )


def _wrapped(words: torch.Tensor) -> torch.Tensor:
    """Return unsigned 32-bit words, stored as int64, as int32."""
    return torch.where(words < 1 << 31, words, words - (1 << 32)).to(torch.int32)


def _swiglu(m: int, n: int, k: int) -> Work:
    """Return the first half of a feed-forward layer; the library multiplies, then torch gates."""

    def make() -> Arguments:
        x, w = _normal(m, k), _normal(2 * n, k) * k**-0.5
        operands = {"a": x, "b": w, "c": _empty(m, n), "both": _empty(m, 2 * n)}
        return {**operands, "M": m, "N": n, "K": k}

    def exact(args: Arguments) -> torch.Tensor:
        product = args["a"].double() @ args["b"].double().T
        return silu(product[:, :n]) * product[:, n:]

    def library(args: Arguments) -> Callable[[], object]:
        def launch() -> None:
            product = torch.mm(args["a"], args["b"].T, out=args["both"])
            torch.mul(silu(product[:, :n]), product[:, n:], out=args["c"])

        return launch

    return Work(
        *(f"swiglu {m}x{n}x{k}", m, n, k, ("swiglu",), make, exact, library, ("swiglu",)),
        products=2,
        relative=2**-6,  # the library rounds to bf16 on the way
    )


def _batched(batches: int, size: int) -> Work:
    def make() -> Arguments:
        a, b = _normal(batches, size, size), _normal(batches, size, size)
        operands = {"a": a, "b": b, "c": torch.empty_like(a)}
        return {**operands, "batches": batches, "M": size, "N": size, "K": size}

    return Work(
        *(f"batched {batches}x{size}", size, size, size, ("batched",), make),
        exact=lambda args: args["a"].double() @ args["b"].double().mT,
        library=lambda args: partial(torch.bmm, args["a"], args["b"].mT, out=args["c"]),
        triton=("batched",),
        products=batches,
    )


ITEMS: dict[str, dict[str, Callable[[], Work]]] = {
    "descriptors": {f"descriptors {n}": lambda n=n: _descriptors(n) for n in (8192, 4096)},
    "pointers": {"pointers 8192": lambda: _pointers(8192)},
    "small": {f"small {m}": lambda m=m: _small(m) for m in (1, 4, 16, 64)},
    "chain": {f"chain {m}": lambda m=m: _chain(m) for m in (1, 4, 16, 64)},
    "fp8": {f"fp8 {n}": lambda n=n: _fp8(n) for n in (4096, 8192)},
    "shapes": {
        shape.name: lambda number=number: _shape(number) for number, shape in enumerate(SHAPES)
    },
    "blockwise": {f"blockwise {n}": lambda n=n: _blockwise(n) for n in (4096, 8192)},
    "weight-only": {f"weight-only int8 {n}": lambda n=n: _weight_only(n) for n in (4096, 8192)},
    "int4": {f"int4 {m}": lambda m=m: _int4(m) for m in (1, 16, 64)},
    "int4-zeros": {f"int4 zeros {m}": lambda m=m: _int4_zeros(m) for m in (1, 16, 64, 4096)},
    "mxfp4": {f"mxfp4 {m}": lambda m=m: _mxfp4(m) for m in (1, 16, 64, 4096)},
    "swiglu": {"swiglu 4096x14336x4096": lambda: _swiglu(4096, 14336, 4096)},
    "batched": {"batched 16x2048": lambda: _batched(16, 2048)},
}
"""What can be asked for: the makers of one or several workloads, by their names."""
