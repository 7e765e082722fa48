"""The two layers of a mixture of experts, beside the rate of a dense product of as many rows.

The first layer has SwiGLU unless weights have 4 bits; the second multiplies by the routing weights.
`fused_moe` kernels scatter rows to their tokens; the others store rows in the order of experts. If
the first layer needs rows in order, in fp8 always, another kernel orders them first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.operands import Arguments, Array, Arrays, Part, Tolerance, Wide, picked
from benchmarks.harness.routing import Routing
from benchmarks.harness.workload import (
    Config,
    Configs,
    Item,
    Plans,
    Step,
    Workload,
    cdiv,
    grid_of,
    tiles,
)

_EACH = 8  # experts of a token
_ROWS_AT_ONCE = 64  # rows whose scales one program orders, at most
_MOST_IDLE = 0.05  # of the SMs, for programs storing whole blocks of rows
_ORDERS = ("rows_in_order", "scattered_rows")


@functools.cache
def _routing(tokens: int, experts: int) -> Routing:
    return Routing(tokens, _EACH, experts)


@dataclass(frozen=True)
class Layer:
    """One layer: its weights' format, and its place."""

    weights: str
    first: bool
    tokens: int = 4096
    experts: int = 128
    hidden: int = 4096
    inner: int = 1536

    @property
    def rows(self) -> int:
        """Rows of all experts."""
        return self.tokens * _EACH

    @property
    def shared(self) -> int:
        """Rows of one token in the operand."""
        return _EACH if self.first else 1

    @property
    def swiglu(self) -> bool:
        """Whether gate and up become one result."""
        return self.first and self.weights != "int4"

    @property
    def k(self) -> int:
        """Features of a row."""
        return self.hidden if self.first else self.inner

    @property
    def width(self) -> int:
        """Rows of an expert's weights."""
        return 2 * self.inner if self.first else self.hidden

    @property
    def n(self) -> int:
        """Features of a result."""
        return self.inner if self.swiglu else self.width

    @property
    def block_k(self) -> int:
        """Extent of a step along K."""
        return 128 if self.weights == "fp8" else 64

    @property
    def form(self) -> str:
        """The suffix of kernels."""
        return "" if self.weights == "bf16" else f"_{self.weights}"

    @property
    def choices(self) -> dict[str, bool]:
        """Work fused into the kernel that scatters rows."""
        swiglu = {} if self.weights == "int4" else {"SWIGLU": self.first}
        return {"WEIGHTED": not self.first, **swiglu}

    @property
    def routing(self) -> Routing:
        """Where rows go."""
        return _routing(self.tokens, self.experts)

    # ---- operands -------------------------------------------------------------------------------

    def operands(self, arrays: Arrays) -> Arguments:
        """Return what all candidates share; rows in some order are a candidate's own."""
        rows, n, k = self.rows, self.n, self.k
        a, b, scales = self._weights(arrays)
        args: Arguments = {
            "a_ptr": a, "b_ptr": b, "out_ptr": arrays.empty(rows, n), "results": arrays.empty(rows, n),
            "weight_ptr": arrays.uniform(rows), "N": n, "K": k, "n_rows": rows, "n_tokens": len(a),
            "rows_per_token": self.shared, "stride_am": k, "stride_be": b.shape[1] * b.shape[2],
            "stride_bn": b.shape[2], "stride_om": n, **scales,
        }  # fmt: skip
        args |= {"cut": b if self.weights == "int4" else self._cut(arrays, b)}
        return args | {f"dense_{name}": value for name, value in self._dense(arrays).items()}

    def _weights(self, arrays: Arrays) -> tuple[Array, Array, Arguments]:
        """Return rows, weights and scales with their strides."""
        k, rows = self.k, self.tokens if self.first else self.rows
        if self.weights == "int4":
            words = arrays.integers(-(2**31), 2**31, self.experts, self.width, k // 8)
            scale = arrays.uniform(self.experts, k // 128, self.width) / k**0.5
            scale = arrays.cast(scale, "bf16")
            strides = {"stride_se": k // 128 * self.width, "stride_sk": self.width}
            return arrays.normal(rows, k), words, {"scale_ptr": scale, "scales": scale, **strides}
        kind = "fp8e4nv" if self.weights == "fp8" else "bf16"
        a = arrays.normal(rows, k, dtype=kind)
        b = arrays.normal(self.experts, self.width, k)
        b = arrays.cast(b / k**0.5, kind)
        if self.weights == "bf16":
            return a, b, {}
        blocks = k // 128
        scale_a = arrays.uniform(rows, blocks)
        scale_b = arrays.uniform(self.experts, self.width // 128, blocks)
        strides = {
            "stride_sa": blocks,
            "stride_sbe": self.width // 128 * blocks,
            "stride_sbn": blocks,
        }
        return a, b, {"scale_a_ptr": scale_a, "scale_b_ptr": scale_b, **strides}

    def _cut(self, arrays: Arrays, b: Array) -> Array:
        """Return weights (experts, blocks of K, N, block_k), with SwiGLU 8 of gate and 8 of up in turn."""
        kind = "fp8e4nv" if self.weights == "fp8" else "bf16"
        b = arrays.view(b, "u8") if self.weights == "fp8" else b
        if self.swiglu:
            b = self._gated(b)
        cut = b.reshape(self.experts, -1, self.k // self.block_k, self.block_k)
        return arrays.view(arrays.contiguous(cut.swapaxes(1, 2)), kind)

    def _gated(self, b: Array) -> Array:
        """Return weights (experts, N / 8, 2, 8, K), gate and up beside each other."""
        return b.reshape(self.experts, 2, self.n // 8, 8, self.k).swapaxes(1, 2)

    def _dense(self, arrays: Arrays) -> Arguments:
        """Return the operands of a dense product of as many rows."""
        kind = "fp8e4nv" if self.weights == "fp8" else "bf16"
        a, b = (
            arrays.normal(self.rows, self.k, dtype=kind),
            arrays.normal(self.width, self.k, dtype=kind),
        )
        args = {"a": a, "b": b, "c": arrays.empty(self.rows, self.width)}
        if self.weights == "fp8":
            blocks = self.k // 128
            args["scale_a"] = arrays.uniform(blocks, self.rows)
            args["scale_b_ptr"] = arrays.uniform(self.width // 128, blocks)
            args["stride_sb"] = blocks
        return args | {"M": self.rows, "N": self.width, "K": self.k}

    # ---- rows by expert -------------------------------------------------------------------------

    def sorted_rows(self, arrays: Arrays, block: int) -> Arguments:
        """Return row numbers by expert in whole blocks, and the expert of each block."""
        padded = self.routing.padded(block)
        return {
            "sorted_ptr": arrays.array(padded.rows),
            "expert_ptr": arrays.array(padded.experts),
            "padded_ptr": arrays.array([padded.num_rows]),
            "n_blocks": len(padded.experts),
        }

    def rows_in_order(self, arrays: Arrays, args: Arguments, most: int, align: int) -> Arguments:
        """Return rows in the order of experts, and where blocks of up to `most` begin."""
        ordered = self.routing.ordered(most, align, _ROWS_AT_ONCE)
        real = np.minimum(ordered.rows, self.rows - 1)
        index, tokens = arrays.array(real, "i64"), arrays.array(real // self.shared, "i64")
        kind = "fp8e4nv" if self.weights == "fp8" else "bf16"
        bits = arrays.view(args["a_ptr"], "u8") if self.weights == "fp8" else args["a_ptr"]
        rows, factors = arrays.view(bits[tokens], kind), args["weight_ptr"][index]
        out = arrays.empty(len(ordered.rows), self.n)
        values = {
            "sorted_ptr": arrays.array(ordered.rows), "place_ptr": arrays.array(ordered.places),
            "start_ptr": arrays.array(ordered.starts), "count_ptr": arrays.array(ordered.counts),
            "expert_ptr": arrays.array(ordered.experts), "n_blocks": len(ordered.starts),
            "num_blocks_ptr": arrays.array([ordered.num_blocks]), "num_out": len(ordered.rows),
            "a": rows, "more": rows, "out_ptr": rows, "factors": factors, "more_factors": factors,
            "out": out, "b": args["cut"], "stride_om": self.k,
        }  # fmt: skip
        if self.weights == "fp8":
            scale_a = arrays.contiguous(args["scale_a_ptr"][tokens].T)
            values |= {
                "out_beyond": out, "scale_a": scale_a, "scale_ptr": args["scale_a_ptr"],
                "out_scale_ptr": scale_a, "num_scales": self.k // 128, "stride_sm": self.k // 128,
                "stride_sk": scale_a.shape[1],
            }  # fmt: skip
        return values

    # ---- candidates -----------------------------------------------------------------------------

    def plans(self, arrays: Arrays, args: Arguments, configs: Configs) -> Iterator[Plans]:
        """Yield the kernel that scatters rows, then those with rows in order."""
        for config in configs(f"fused_moe{self.form}", self.choices):
            values = self.sorted_rows(arrays, config["BLOCK_M"]) | {"out_ptr": args["results"]}
            yield (Step(f"fused_moe{self.form}", config, values, self.choices),)
        name = f"fused_moe_{'up' if self.first else 'down'}{self.form}"
        for kernel in (name, f"{name}_in_order"):
            by_size: dict[Any, list[Config]] = {}
            for config in configs(kernel):
                by_size.setdefault(self._size(config), []).append(config)
            for size, fitting in by_size.items():
                values = self.rows_in_order(arrays, args, *size)
                for config in fitting:
                    yield from self._ordered(arrays, args, kernel, config, values, configs)

    def _size(self, config: Config) -> tuple[int, int]:
        """Return the most rows of a block, and the multiple that it is padded to."""
        if self.weights == "fp8":
            return (2 * config["BLOCK_M"] + config["TAIL"],) * 2
        return config.get("MOST", config["BLOCK_M"] + config["TAIL"]), config["EPILOGUE_M"]

    def _ordered(
        self,
        arrays: Arrays,
        args: Arguments,
        kernel: str,
        config: Config,
        values: Arguments,
        configs: Configs,
    ) -> Iterator[Plans]:
        """Yield plans with rows in order, by each kernel that orders them if one has to."""
        height = config.get("BLOCK_N", 128)
        tile_columns = height // 2 if self.swiglu else height
        column_tiles = cdiv(self.n, tile_columns)

        def finish(operands: Arguments) -> None:
            operands["results"][...] = values["out"][arrays.cast(values["place_ptr"], "i64")]

        shared: dict[str, Any] = {"outputs": (values["out"],), "finish": finish}
        is_tritons = self.weights != "fp8" and "STEP" not in config
        if is_tritons:
            yield from self._by_triton(args, kernel, config, values, column_tiles, shared)
            return
        gathers = self.first and not kernel.endswith("_in_order") and self.weights != "fp8"
        arguments = values | ({"a": args["a_ptr"]} if gathers else {})
        orders: Sequence[Step | None] = [None]
        if self.first and not gathers:
            names = [f"{name}{'_fp8' if self.weights == 'fp8' else ''}" for name in _ORDERS]
            orders = [
                Step(name, how, values, outputs=(values["a"],))
                for name in names
                for how in configs(name)
            ]
        most = arrays.num_sms // config.get("num_ctas", 1)
        for order, count in itertools.product(orders, program_counts(most, column_tiles)):
            numbers = arguments | {"n_programs": count}
            step = Step(kernel, config, numbers, note=f"{count} programs", **shared)
            yield (order, step) if order else (step,)

    def _by_triton(
        self,
        args: Arguments,
        kernel: str,
        config: Config,
        values: Arguments,
        column_tiles: int,
        shared: dict[str, Any],
    ) -> Iterator[Plans]:
        """Yield Triton's launches, programs at once, of weights cut along K and as they are."""
        block, tail, height = (config[name] for name in ("BLOCK_M", "TAIL", "BLOCK_N"))
        arguments = values | {"num_blocks_ptr": None, "n_programs": 1}
        blocks: dict[str, list[int]] = {}
        if self.first:
            arguments |= {"a": args["a_ptr"]}
        else:
            blocks = {"factors": [block], "more_factors": [tail]}
        grid = (values["n_blocks"] * column_tiles,)
        yield (Step(kernel, config, arguments, grid=grid, blocks=blocks, note="cut", **shared),)
        if self.weights == "bf16":
            b = self._gated(args["b_ptr"]) if self.swiglu else args["b_ptr"]
            whole = [1, height // 16, 2, 8, 64] if self.swiglu else [1, height, 64]
            blocks = blocks | {"b": whole}
            yield (Step(kernel, config, arguments | {"b": b}, grid=grid, blocks=blocks, **shared),)

    def dense(self, _: Arrays, args: Arguments, configs: Configs) -> Iterator[Plans]:
        """Yield a dense product of as many rows, in bf16 if weights have 4 bits."""
        kernel = "linear_fp8" if self.weights == "fp8" else "linear"
        values = {n.removeprefix("dense_"): v for n, v in args.items() if n.startswith("dense_")}
        for config in configs(kernel):
            yield (Step(kernel, config, values),)

    # ---- the reference --------------------------------------------------------------------------

    def reference(self, arrays: Arrays, args: Arguments) -> Iterator[Part]:
        """Yield the rows of some experts."""
        for expert in (0, self.experts // 2, self.experts - 1):
            rows = self.routing.rows_of(expert)
            tokens = rows // self.shared
            a = picked(arrays, args["a_ptr"], tokens)
            if self.weights == "fp8":
                a *= arrays.wide(args["scale_a_ptr"][tokens]).repeat(128, 1)
            expected = a @ self._expert(arrays, args, expert).T
            if self.swiglu:
                gate, up = np.split(expected, 2, 1)
                expected = gate / (1 + np.exp(-gate)) * up
            if not self.first:
                expected *= arrays.wide(args["weight_ptr"][rows])[:, None]
            yield Part("results", rows, expected)

    def _expert(self, arrays: Arrays, args: Arguments, expert: int) -> Wide:
        """Return the weights of an expert in float64."""
        b = arrays.wide(args["b_ptr"][expert])
        if self.weights == "fp8":
            scale = arrays.wide(args["scale_b_ptr"][expert])
            return b * scale.repeat(128, 0).repeat(128, 1)
        if self.weights == "int4":
            element = np.arange(8)
            numbers = b.astype(np.int64)[:, :, None] >> element // 2 * 4 + element % 2 * 16 & 15
            scale = arrays.wide(args["scale_ptr"][expert]).repeat(128, 0).T
            product = (numbers.reshape(len(b), -1) - 8) * scale
            return arrays.wide(arrays.array(product, "bf16"))
        return b

    def workload(self) -> Workload:
        """Return the workload."""
        return Workload(
            name=f"{'gate and up' if self.first else 'down'}, {self.weights}, {self.rows} rows",
            manifest="benchmarks/fused_moe.toml",
            work=2.0 * self.rows * self.width * self.k,
            unit="TFLOP/s",
            operands=self.operands,
            reference=self.reference,
            tolerance=Tolerance(largest=2**-7),
            outputs=("results",),
            plans=self.plans,
            triton=self._triton(),
            rivals={"dense product": self.dense},
        )

    def _triton(self) -> dict[str, Any]:
        """Return Triton's configs of the kernel that scatters rows, and of the transposed one."""
        names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
        shapes = ((64, 128, 4, 4), (64, 256, 4, 4), (128, 128, 8, 4), (128, 256, 8, 3))
        configs = tiles(names, *shapes)
        if self.weights == "fp8":  # a tile lies under one scale, or two do
            configs = [
                config | {"BLOCK_N": 128, "COLUMNS": 128 if self.swiglu else config["BLOCK_N"]}
                for config in configs
            ]
        wide = grid_of(
            BLOCK_M=[128, 256], BLOCK_N=[128], TAIL=[32], EPILOGUE_M=[32], num_warps=[8],
            num_stages=[3],
        )  # fmt: skip
        name = f"fused_moe_{'up' if self.first else 'down'}{self.form}"
        transposed = [] if self.weights == "fp8" else wide
        return {f"fused_moe{self.form}": configs, name: transposed, f"{name}_in_order": []}


def program_counts(most: int, column_tiles: int) -> list[int]:
    """Return the grid size: all programs at once, or slightly fewer for whole blocks of rows.

    A block has so many `column_tiles`; programs storing all of one at a time read its rows together.
    """
    whole = most // column_tiles * column_tiles
    return [most, whole] if _MOST_IDLE * most >= most - whole > 0 else [most]


_TITLE = "Mixture of experts, 4,096 tokens to 8 of 128"
ITEMS = {
    weights: Item("matmul", f"{_TITLE}, {weights}", [
        Layer(weights, first).workload() for first in (True, False)
    ])
    for weights in ("bf16", "fp8", "int4")
}  # fmt: skip
_FEW: dict[str, Any] = {"tokens": 3, "experts": 10}
TINY = [
    *(Layer(w, first=True, hidden=256, inner=128, **_FEW).workload() for w in ("bf16", "int4")),
    # Scales of a row fill 16 bytes.
    Layer("fp8", first=True, tokens=2, experts=8, hidden=2048, inner=128).workload(),
    *(
        Layer(w, first=False, hidden=128, inner=256, **_FEW).workload()
        for w in ("bf16", "fp8", "int4")
    ),
]
