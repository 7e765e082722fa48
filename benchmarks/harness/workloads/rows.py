"""Rows of 1k to 256k columns, each by a cluster of 1 to 16 CTAs, and simple kernels of `kernels.toml`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import Arguments, Arrays, Part, Tolerance, Wide
from benchmarks.harness.workload import Config, Item, Launch, Peer, Workload

_ELEMENTS = 1 << 27
_COLUMNS = (1024, 4096, 16384, 32768, 65536, 131072, 262144)
_EPS = 1e-6
_CHECKED_ROWS = 8
# Elements per thread under Triton with fewer than 32 warps; more spill and compile for minutes.
_MAX_HELD = 128
_LOOP_BLOCKS = (4096, 8192, 16384)
_WARPS = (4, 8, 16, 32)
_BF16 = Tolerance(value=2**-7, typical=1e-3)


def _softmax(x: Wide, _: Arguments) -> Wide:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def _rmsnorm(x: Wide, args: Arguments) -> Wide:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + _EPS) * args["w_ptr"]


def _layernorm(x: Wide, args: Arguments) -> Wide:
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt(np.square(centred).mean(-1, keepdims=True) + _EPS)
    return centred / scale * args["w_ptr"] + args["b_ptr"]


def _loss(x: Wide, args: Arguments) -> Wide:
    largest = x.max(-1)
    lse = np.log(np.exp(x - largest[:, None]).sum(-1)) + largest
    return lse - x[np.arange(len(x)), args["target_ptr"].astype(np.int64)]


def _loss_gradient(x: Wide, args: Arguments) -> Wide:
    gradient = _softmax(x, args)
    gradient[np.arange(len(x)), args["target_ptr"].astype(np.int64)] -= 1
    return gradient / args["n_rows"]


@dataclass(frozen=True)
class Kernel:
    """A kernel of rows: its vectors of weights and statistics, its result and its reference.

    Elements of a row are read or written `accesses` times.
    """

    weights: tuple[str, ...]
    statistics: tuple[str, ...]
    out: str
    exact: Callable[[Wide, Arguments], Wide]
    x: str = "x_ptr"
    has_loop: bool = True
    always_loops: bool = False
    accesses: int = 2
    tolerance: Tolerance = _BF16

    def operands(self, arrays: Arrays, rows: int, columns: int) -> Arguments:
        """Return random rows and weights, and room for results."""
        args: Arguments = {
            self.x: arrays.normal(rows, columns),
            self.out: arrays.empty(rows, columns),
            "target_ptr": arrays.integers(0, columns, rows, dtype="i64"),
            **{name: arrays.normal(columns) for name in self.weights},
            **{name: arrays.empty(rows, dtype="fp32") for name in self.statistics},
        }
        numbers = {"stride": columns, "n_rows": rows, "n_cols": columns, "ignore_index": -100}
        return args | numbers | {"eps": _EPS, "scale": 1 / rows}

    def reference(self, arrays: Arrays, args: Arguments) -> Iterator[Part]:
        """Yield some rows of the result."""
        count = args["n_rows"]
        index = np.unique(np.linspace(0, count - 1, min(count, _CHECKED_ROWS)).astype(np.int64))
        wide = {name: arrays.wide(args[name]) for name in self.weights}
        wide |= {"target_ptr": arrays.wide(args["target_ptr"][index]), "n_rows": count}
        yield Part(self.out, index, self.exact(arrays.wide(args[self.x][index]), wide))

    def serves(self, config: Config, columns: int) -> bool:
        """Return whether a config fits rows: a block held in registers is the whole row."""
        if self.always_loops:
            return config["BLOCK"] <= columns
        return config["BLOCK"] < columns if config.get("LOOP") else config["BLOCK"] == columns

    def triton(self, columns: int) -> list[dict[str, Any]]:
        """Return Triton's configs: a block for a row within the limit of registers, and loops."""
        loops = [
            {"BLOCK": block, "num_warps": warps}
            for block, warps in itertools.product(_LOOP_BLOCKS, _WARPS)
            if block <= 64 * 32 * warps and block < columns + self.always_loops
        ]
        if self.always_loops:
            return loops
        choice = {"LOOP": False} if self.has_loop else {}
        whole = [
            {"BLOCK": columns, **choice, "num_warps": warps}
            for warps in _WARPS
            if warps == 32 or columns <= _MAX_HELD * 32 * warps
        ]
        return whole + [config | {"LOOP": True} for config in loops if self.has_loop]


_LOSS = {"x": "logits_ptr", "weights": ()}
_KERNELS: Mapping[str, Kernel] = {
    "softmax": Kernel((), (), "out_ptr", _softmax),
    "rmsnorm": Kernel(("w_ptr",), (), "out_ptr", _rmsnorm),
    "layernorm": Kernel(("w_ptr", "b_ptr"), ("mean_ptr", "rstd_ptr"), "out_ptr", _layernorm),
    "cross_entropy": Kernel(
        **_LOSS, statistics=("loss_ptr", "lse_ptr"), out="loss_ptr", exact=_loss,
        always_loops=True, accesses=1, tolerance=Tolerance(value=1e-5, typical=1e-5),
    ),
    "cross_entropy_grad": Kernel(
        **_LOSS, statistics=("loss_ptr", "lse_ptr"), out="grad_ptr", exact=_loss_gradient,
        has_loop=False,
    ),
}  # fmt: skip


def _torch(name: str, kernel: Kernel) -> Peer:
    """Return torch's own function of rows."""

    def call(args: Arguments) -> None:
        import torch
        from torch.nn import functional

        x, weights = args[kernel.x], [args[weight] for weight in kernel.weights]
        if name == "softmax":
            args[kernel.out] = functional.softmax(x, -1)
        elif name == "cross_entropy":
            args[kernel.out] = functional.cross_entropy(x, args["target_ptr"], reduction="none")
        elif name == "cross_entropy_grad":
            logits = x.detach().requires_grad_()
            loss = functional.cross_entropy(logits, args["target_ptr"])
            args[kernel.out] = torch.autograd.grad(loss, logits)[0]
        else:
            function = functional.rms_norm if name == "rmsnorm" else functional.layer_norm
            args[kernel.out] = function(x, x.shape[-1:], *weights, eps=_EPS)

    return torch_peers.calls(call)


def _liger(kernel: str) -> Peer:
    """Return liger_kernel's cross-entropy under Triton; it stores gradients over its logits."""

    def bind(args: Arguments) -> Launch:
        import torch
        from liger_kernel.ops.cross_entropy import (  # pyright: ignore[reportMissingImports]
            liger_cross_entropy_kernel,
        )

        x, target = args["logits_ptr"].clone(), args["target_ptr"]
        (rows, columns), loss = x.shape, torch.zeros(len(x), device="cuda", dtype=x.dtype)
        gives_gradients = kernel == "cross_entropy_grad"
        absent = ("weight", "z_loss", "token_accuracy", "predicted_tokens")
        flags = ("RETURN_Z_LOSS", "RETURN_TOKEN_ACCURACY", "RETURN_PREDICTED_TOKENS")
        flags += ("HAS_WEIGHT", "HAS_SOFTCAPPING")
        words = {f"{name}_ptr": None for name in absent} | dict.fromkeys(flags, False)
        words |= {"token_accuracy_stride": 0, "predicted_tokens_stride": 0, "softcap": None}
        return lambda: liger_cross_entropy_kernel[(rows,)](
            X_ptr=x, X_stride=columns, Y_ptr=target, Y_stride=1, loss_ptr=loss, loss_stride=1,
            n_cols=columns, n_non_ignore=rows, sum_non_ignore_weight=rows, weight_sum=0.0,
            ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0,
            reduction="mean" if gives_gradients else "none", BLOCK_SIZE=min(32768, columns),
            HAS_GRADIENTS=gives_gradients, num_warps=32, **words,
        )  # fmt: skip

    return Peer(bind, is_checked=False)


def _row(name: str, rows: int, columns: int) -> Workload:
    kernel = _KERNELS[name]
    copied = kernel.out if kernel.accesses == 2 else kernel.x
    peers = {"torch": _torch(name, kernel)}
    peers["copy"] = torch_peers.copy(kernel.x, copied, share=2 / kernel.accesses)
    if name.startswith("cross_entropy"):
        peers["liger_kernel"] = _liger(name)
    return Workload(
        name=f"{name} {rows}×{columns}",
        manifest="benchmarks/long_rows.toml",
        work=2.0 * rows * columns * kernel.accesses,
        unit="TB/s",
        operands=lambda arrays: kernel.operands(arrays, rows, columns),
        reference=kernel.reference,
        tolerance=kernel.tolerance,
        outputs=(kernel.out,),
        kernels=(name,),
        serves=lambda config: kernel.serves(config, columns),
        triton={name: kernel.triton(columns)},
        peers=peers,
        sets=2,
    )


# ---- simple kernels -----------------------------------------------------------------------------


def _vector_add(elements: int, dtype: str) -> Workload:
    def reference(arrays: Arrays, args: Arguments) -> Iterator[Part]:
        index = slice(elements - min(elements, 4096), elements)
        x, y = (arrays.wide(args[name][index]) for name in ("x_ptr", "y_ptr"))
        yield Part("out_ptr", index, x + y)

    def operands(arrays: Arrays) -> Arguments:
        x, y = (arrays.normal(elements, dtype=dtype) for _ in range(2))
        return {"x_ptr": x, "y_ptr": y, "out_ptr": arrays.empty(elements, dtype=dtype),
                "n_elements": elements}  # fmt: skip

    size = {"fp32": 4, "bf16": 2}[dtype]
    name = f"vector add {dtype}, {elements}"
    return _simple(name, "vector_add", 3.0 * elements * size, operands, reference, "x_ptr")


def _silu_mul(rows: int, columns: int) -> Workload:
    def reference(arrays: Arrays, args: Arguments) -> Iterator[Part]:
        index = np.unique([0, rows // 2, rows - 1])
        x = arrays.wide(args["x_ptr"][index])
        gate, up = x[:, :columns], x[:, columns:]
        yield Part("out_ptr", index, gate / (1 + np.exp(-gate)) * up)

    def operands(arrays: Arrays) -> Arguments:
        x, out = arrays.normal(rows, 2 * columns), arrays.empty(rows, columns)
        numbers = {"stride": 2 * columns, "n_rows": rows, "n_cols": columns}
        return {"x_ptr": x, "out_ptr": out, "half": x[:, :columns], **numbers}

    name = f"SiLU-and-multiply bf16, {rows}×{columns}"
    return _simple(name, "silu_mul", 6.0 * rows * columns, operands, reference, "half")


def _simple_rows(name: str, rows: int, columns: int) -> Workload:
    kernel = _KERNELS[name]
    return _simple(
        *(f"{name} bf16, {rows}×{columns}", name, 4.0 * rows * columns),
        lambda arrays: kernel.operands(arrays, rows, columns),
        kernel.reference,
        "x_ptr",
        columns,
    )


def _simple(
    name: str,
    kernel: str,
    work: float,
    operands: Callable[[Arrays], Arguments],
    reference: Callable[[Arrays, Arguments], Iterator[Part]],
    source: str,
    columns: int = 0,
) -> Workload:
    """Return a workload of `kernels.toml`; Triton tries more warps, and limits of registers."""

    def serves(config: Config) -> bool:
        return config.get("LOOP") is not False or config["BLOCK"] >= columns

    blocks = [{"BLOCK": block} for block in (1024, 4096)]
    if columns:
        blocks = [{"BLOCK": columns, "LOOP": False}, {"BLOCK": 4096, "LOOP": True}]
    triton = [
        block | {"num_warps": warps} | ({"maxnreg": cap} if cap else {})
        for block, warps, cap in itertools.product(
            blocks, (2, 4, 8, 16, 32), (None, 64, 80, 96, 128)
        )
    ]
    return Workload(
        name=name,
        manifest="kernels.toml",
        work=work,
        unit="TB/s",
        operands=operands,
        reference=reference,
        tolerance=Tolerance(value=2**-7, typical=1e-3),
        outputs=("out_ptr",),
        kernels=(kernel,),
        serves=serves,
        triton={kernel: triton},
        peers={"copy": torch_peers.copy(source, "out_ptr", share=1.0 if columns else 2 / 3)},
        sets=3,
        launches=8,
    )


ITEMS = {
    name: Item("bandwidth", f"{name}, rows of bf16", [
        _row(name, _ELEMENTS // columns, columns) for columns in _COLUMNS
    ])
    for name in _KERNELS
} | {
    "simple": Item("bandwidth", "Bandwidth of simple kernels", [
        _vector_add(1 << 27, "fp32"), _vector_add(1 << 28, "bf16"), _silu_mul(16384, 8192),
        _simple_rows("softmax", 16384, 4096), _simple_rows("softmax", 8192, 16384),
        _simple_rows("rmsnorm", 16384, 4096), _simple_rows("rmsnorm", 8192, 16384),
    ]),
}  # fmt: skip
TINY = [
    *(_row(name, 3, 4096 if name == "cross_entropy" else 1024) for name in _KERNELS),
    _vector_add(1000, "fp32"),
    _vector_add(4097, "bf16"),
    _silu_mul(3, 520),
    _simple_rows("softmax", 3, 1000),
    _simple_rows("rmsnorm", 3, 1000),
]
