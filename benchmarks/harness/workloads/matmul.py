"""Matrix products on Hopper: bf16, fp8, few rows, layers of models; `weights` has those of few bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import Arguments, Array, Arrays, Part, Tolerance, Wide, picked
from benchmarks.harness.triton_matmul_configs import CONFIGS
from benchmarks.harness.workload import (
    Config,
    Configs,
    Item,
    Peer,
    Plans,
    Step,
    Workload,
    cdiv,
)
from benchmarks.llm_shapes import SHAPES

_L2_BYTES, _MAX_SETS, _CHECKED_ROWS = 60 << 20, 8, 32
_MAX_COUNTERS = 1 << 16
_NUM_SMS = 132
# Rounding to bf16, and the order of summation.
_BF16 = Tolerance(value=2**-8, typical=0.02)


@dataclass(frozen=True)
class Product:
    """`products` of (m, k) and (k, n): operands, and rows of the result in float64.

    `read_bytes` of a set decide how many sets miss the L2. `steps` are launches in a row, by the
    suffixes of their operands.
    """

    name: str
    m: int
    n: int
    k: int
    kernels: tuple[str, ...]
    make: Callable[[Arrays], Arguments]
    exact: Callable[[Arrays, Arguments, Wide], Wide]
    library: Peer
    read_bytes: float
    triton: bool = True
    out: str = "c"
    products: int = 1
    steps: int = 1
    tolerance: Tolerance = _BF16
    axes: tuple[int, ...] = field(default=())

    @property
    def rows(self) -> Wide:
        """Some rows of the result."""
        return np.unique(np.linspace(0, self.m - 1, min(self.m, _CHECKED_ROWS)).astype(np.int64))

    def operands(self, arrays: Arrays) -> Arguments:
        """Return a set of operands with counters of programs that share tiles."""
        return self.make(arrays) | {"counter_ptr": arrays.zeros(_MAX_COUNTERS)}

    def reference(self, arrays: Arrays, args: Arguments) -> Iterator[Part]:
        """Yield rows of the result."""
        index: Any = (*self.axes, self.rows)
        yield Part(self.out, index, self.exact(arrays, args, self.rows))

    def serves(self, config: Config) -> bool:
        """Return whether a config is worth a try: blocks not far larger than the problem."""
        if "SPLIT_K" in config and "NUM_SMS" not in config:
            rows = min(256, max(16, 1 << (self.m - 1).bit_length()))
            tiles = cdiv(self.m, config["BLOCK_M"]) * cdiv(self.n, config["BLOCK_N"])
            fits = config["BLOCK_M"] in (rows, rows // 2 if rows > 64 else rows)
            return fits and (config["SPLIT_K"] == 1 or tiles * config["SPLIT_K"] <= 4 * _NUM_SMS)
        return self.m > 64 or config.get("BLOCK_M", 0) <= 64

    def workspace_elems(self, config: Config) -> int:
        """Return the number of fp32 partial sums of programs sharing tiles."""
        if config.get("SPLIT_K", 1) == 1:
            return 4
        width = config.get("COLUMNS", config["BLOCK_N"])
        tiles = cdiv(self.m, config["BLOCK_M"]) * cdiv(self.n, width)
        split = tiles % config["NUM_SMS"] if "NUM_SMS" in config else tiles
        return split * config["BLOCK_M"] * width * config["SPLIT_K"]

    def plans(self, arrays: Arrays, args: Arguments, configs: Configs) -> Iterator[Plans]:
        """Yield a launch of each config, or a row of launches."""
        fitting = [(name, c) for name in self.kernels for c in configs(name) if self.serves(c)]
        elems = max((self.workspace_elems(config) for _, config in fitting), default=4)
        values = {"workspace_ptr": arrays.empty(elems, dtype="fp32")}
        operands = ("a", "b", "c", "w", "x", "c_rest", "w_ptr", "x_ptr", "out_ptr")
        for name, config in fitting:
            yield tuple(
                Step(
                    name,
                    config,
                    values,
                    aliases={p: f"{p}{i}" for p in operands if f"{p}{i}" in args},
                )
                for i in range(self.steps)
            )

    def workload(self) -> Workload:
        """Return the workload."""
        return Workload(
            name=self.name,
            manifest="benchmarks/hopper.toml",
            work=2.0 * self.products * self.m * self.n * self.k,
            unit="TFLOP/s" if self.m > 256 else "µs",
            operands=self.operands,
            reference=self.reference,
            tolerance=self.tolerance,
            outputs=(self.out,),
            zeroed=("counter_ptr",),
            plans=self.plans,
            triton=CONFIGS if self.triton else None,
            peers={"cuBLAS": self.library},
            sets=max(2, min(_MAX_SETS, math.ceil(2.5 * _L2_BYTES / self.read_bytes))),
            launches=1,
        )


def _linear_arguments(x: Array, w: Array, out: Array) -> Arguments:
    (m, k), n = x.shape, w.shape[0]
    named = {"a": x, "b": w, "c": out, "c_rest": out, "w": w, "x": x}
    pointers = {"w_ptr": w, "x_ptr": x, "out_ptr": out}
    strides = {"stride_wn": k, "stride_xm": k, "stride_om": n}
    return {**named, **pointers, "M": m, "N": n, "K": k, **strides}


def rows_times(weights: str, rows: str) -> Callable[[Arrays, Arguments, Wide], Wide]:
    return lambda arrays, args, index: arrays.wide(args[rows][index]) @ arrays.wide(args[weights]).T


def _linear(
    name: str, m: int, n: int, k: int, kernels: tuple[str, ...], *, triton: bool = True
) -> Workload:
    """Return rows times the transpose of weights, in bf16: a linear layer."""
    return Product(
        *(name, m, n, k, kernels),
        make=lambda arrays: _linear_arguments(
            arrays.normal(m, k), arrays.normal(n, k), arrays.empty(m, n)
        ),
        exact=rows_times("b", "a"),
        library=torch_peers.matmul("a", "b", "c"),
        read_bytes=2.0 * (m * k + n * k + m * n),
        triton=triton,
    ).workload()


def _few(m: int) -> tuple[str, ...]:
    return ("small_descriptor", "small_pointer", *(("matvec",) if m == 1 else ()))


def _layer(index: int) -> Workload:
    shape = SHAPES[index]
    few = ("small_descriptor", "small_pointer") if shape.m <= 256 else ()
    many = ("linear", "linear_columns", "split_tail", "split_tail_columns")
    sizes = (shape.m, shape.n, shape.k)
    return _linear(shape.name, *sizes, (*few, *many), triton=False)


def _chain(m: int, size: int = 8192, count: int = 8) -> Workload:
    """Return layers of few rows, each with its own weights and the last one's output as input."""

    def make(arrays: Arrays) -> Arguments:
        rows, args = arrays.normal(m, size), dict[str, Any]()
        for index in range(count):
            w = arrays.cast(arrays.normal(size, size, dtype="fp32") * size**-0.5, "bf16")
            layer = _linear_arguments(rows, w, arrays.empty(m, size))
            args |= layer | {f"{name}{index}": value for name, value in layer.items()}
            rows = layer["c"]
        return args

    def exact(arrays: Arrays, args: Arguments, _: Wide) -> Wide:
        rows = arrays.wide(args["a0"])
        for index in range(count):
            product = rows @ arrays.wide(args[f"b{index}"]).T
            rows = arrays.wide(arrays.array(product, "bf16"))
        return rows

    def library(args: Arguments) -> Callable[[], None]:
        layers = [torch_peers.matmul(*(f"{x}{i}" for x in "abc")).bind(args) for i in range(count)]

        def launch() -> None:
            for layer in layers:
                layer()

        return launch

    return Product(
        *(f"chain {m}", m, size, size, _few(m), make, exact, Peer(library)),
        read_bytes=2.0 * count * size * size,
        products=count,
        steps=count,
        tolerance=Tolerance(value=2**-8, typical=0.1),  # every layer rounds its input again
    ).workload()


def _pointers(size: int) -> Workload:
    """Return the plain source with pointers; B is stored by rows."""

    def make(arrays: Arrays) -> Arguments:
        a, b, out = arrays.normal(size, size), arrays.normal(size, size), arrays.empty(size, size)
        pointers = {"a_ptr": a, "b_ptr": b, "bias_ptr": out, "residual_ptr": out, "out_ptr": out}
        strides = dict.fromkeys(("stride_am", "stride_bk", "stride_om"), size)
        units = dict.fromkeys(("stride_ak", "stride_bn", "stride_on"), 1)
        return {**pointers, "M": size, "N": size, "K": size, **strides, **units}

    return Product(
        *(f"pointers {size}", size, size, size, ("matmul",), make),
        exact=lambda arrays, args, rows: (
            arrays.wide(args["a_ptr"][rows]) @ arrays.wide(args["b_ptr"])
        ),
        library=torch_peers.matmul("a_ptr", "b_ptr", "out_ptr", transposed=False),
        read_bytes=6.0 * size * size,
        out="out_ptr",
    ).workload()


# ---- fp8 ----------------------------------------------------------------------------------------


def _fp8_operands(arrays: Arrays, size: int) -> Arguments:
    x, w = (arrays.normal(size, size, dtype="fp8e4nv") for _ in range(2))
    out = arrays.empty(size, size)
    return {"a": x, "b": w, "c": out, "c_rest": out, "M": size, "N": size, "K": size}


def _fp8(size: int) -> Workload:
    """Return a product of fp8 with one scale for each tensor."""

    def make(arrays: Arrays) -> Arguments:
        scales = {f"scale_{name}_ptr": arrays.uniform(1, low=0.5) for name in "ab"}
        return _fp8_operands(arrays, size) | scales

    def exact(arrays: Arrays, args: Arguments, rows: Wide) -> Wide:
        scale = arrays.wide(args["scale_a_ptr"]) * arrays.wide(args["scale_b_ptr"])
        return picked(arrays, args["a"], rows) @ arrays.wide(args["b"]).T * scale

    return Product(
        *(f"fp8 {size}", size, size, size, ("linear_fp8", "linear_fp8_columns"), make, exact),
        library=torch_peers.scaled_matmul(
            lambda args: (args["scale_a_ptr"], args["scale_b_ptr"]), fast=True
        ),
        read_bytes=4.0 * size * size,
        # Tensor cores keep some 13 bits of a sum of fp8 products.
        tolerance=Tolerance(value=2**-8, typical=0.05),
    ).workload()


def _blockwise(size: int) -> Workload:
    """Return a product of fp8 with a scale for 1 × 128 of A and 128 × 128 of B."""
    blocks = size // 128

    def make(arrays: Arrays) -> Arguments:
        scale_a = arrays.uniform(blocks, size, low=0.5)
        scales = {"scale_a": scale_a, "scale_a_ptr": scale_a}
        scales["scale_b_ptr"] = arrays.uniform(blocks, blocks, low=0.5)
        return _fp8_operands(arrays, size) | scales | {"stride_sa": size, "stride_sb": blocks}

    def exact(arrays: Arrays, args: Arguments, rows: Wide) -> Wide:
        scale_a = arrays.wide(args["scale_a"]).T[rows].repeat(128, 1)
        scale_b = arrays.wide(args["scale_b_ptr"]).repeat(128, 0).repeat(128, 1)
        a = picked(arrays, args["a"], rows) * scale_a
        return a @ (arrays.wide(args["b"]) * scale_b).T

    return Product(
        *(f"blockwise {size}", size, size, size),
        *(("blockwise_fp8", "blockwise_fp8_parts"), make, exact),
        library=torch_peers.scaled_matmul(
            lambda args: (args["scale_a"].T, args["scale_b_ptr"].T), fast=False
        ),
        read_bytes=4.0 * size * size,
    ).workload()


# ---- fused and batched --------------------------------------------------------------------------


def _swiglu(m: int, n: int, k: int) -> Workload:
    """Return the first half of a feed-forward layer; the library multiplies, then torch gates."""

    def make(arrays: Arrays) -> Arguments:
        w = arrays.cast(arrays.normal(2 * n, k, dtype="fp32") * k**-0.5, "bf16")
        args = {"a": arrays.normal(m, k), "b": w, "c": arrays.empty(m, n)}
        return {**args, "both": arrays.empty(m, 2 * n), "M": m, "N": n, "K": k}

    def exact(arrays: Arrays, args: Arguments, rows: Wide) -> Wide:
        product = arrays.wide(args["a"][rows]) @ arrays.wide(args["b"]).T
        gate, up = product[:, :n], product[:, n:]
        return gate / (1 + np.exp(-gate)) * up

    def library(args: Arguments) -> Callable[[], None]:
        import torch

        multiply = torch_peers.matmul("a", "b", "both").bind(args)
        gate, up = args["both"][:, :n], args["both"][:, n:]

        def launch() -> None:
            multiply()
            torch.mul(torch.nn.functional.silu(gate), up, out=args["c"])

        return launch

    return Product(
        *(f"swiglu {m}×{n}×{k}", m, n, k, ("swiglu",), make, exact, Peer(library)),
        read_bytes=2.0 * (m * k + 2 * n * k + m * n),
        products=2,
        tolerance=Tolerance(value=2**-6, typical=0.02),  # the library rounds to bf16 on the way
    ).workload()


def _batched(batches: int, size: int) -> Workload:
    def make(arrays: Arrays) -> Arguments:
        a, b = (arrays.normal(batches, size, size) for _ in range(2))
        sizes = {"batches": batches, "M": size, "N": size, "K": size}
        return {"a": a, "b": b, "c": arrays.empty(batches, size, size), **sizes}

    return Product(
        *(f"batched {batches}×{size}", size, size, size, ("batched",), make),
        exact=lambda arrays, args, rows: (
            arrays.wide(args["a"][batches - 1, rows]) @ arrays.wide(args["b"][batches - 1]).T
        ),
        library=torch_peers.matmul("a", "b", "c"),
        read_bytes=6.0 * batches * size * size,
        products=batches,
        axes=(batches - 1,),
    ).workload()


def item(title: str, workloads: Iterable[Workload]) -> Item:
    return Item("matmul", title, list(workloads))


_LINEAR = ("linear", "linear_columns")
_ROWS = (1, 4, 16, 64)
ITEMS = {
    "descriptors": item(
        "bf16 matmul, descriptors",
        (_linear(f"descriptors {n}", n, n, n, _LINEAR) for n in (8192, 4096)),
    ),
    "pointers": item("bf16 matmul, plain pointers", [_pointers(8192)]),
    "small": item(
        "Few rows, N = K = 8192, bf16",
        (_linear(f"small {m}", m, 8192, 8192, _few(m)) for m in _ROWS),
    ),
    "chain": item("Eight layers of few rows", map(_chain, _ROWS)),
    "fp8": item("fp8 matmul, a scale for each tensor", map(_fp8, (4096, 8192))),
    "shapes": item("40 layers of language models, bf16", map(_layer, range(len(SHAPES)))),
    "blockwise": item("fp8 matmul with block scales", map(_blockwise, (4096, 8192))),
    "swiglu": item("SwiGLU fused into a matmul", [_swiglu(4096, 14336, 4096)]),
    "batched": item("Batched matmul", [_batched(16, 2048)]),
}
TINY = [
    _linear("linear", 70, 136, 72, ("linear", "linear_columns", "split_tail")),
    _linear("few rows", 1, 128, 2048, _few(1)),
    _chain(4, 256, 2),
    _pointers(80),
    _fp8(256),
    _blockwise(256),
    _swiglu(70, 64, 72),
    _batched(2, 72),
]
