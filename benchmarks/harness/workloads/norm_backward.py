"""Gradients of RMSNorm and LayerNorm: rows' gradients and partial sums, then the weights' gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import Arguments, Arrays, Part, Tolerance, Wide
from benchmarks.harness.workload import Configs, Item, Launch, Peer, Plans, Step, Workload

_ELEMENTS, _EPS, _PER_SM = 1 << 27, 1e-6, (1, 2, 4)
_COLUMNS = (4096, 8192, 16384)


@dataclass(frozen=True)
class Norm:
    """A norm over rows; a LayerNorm has means and biases."""

    name: str
    rows: int
    columns: int

    @property
    def has_mean(self) -> bool:
        """Whether rows are centred."""
        return self.name == "layernorm"

    @property
    def sums(self) -> tuple[str, ...]:
        """Vectors with gradients: weights, and biases."""
        return ("dw", "db") if self.has_mean else ("dw",)

    def statistics(self, x: Wide) -> tuple[Wide, Wide]:
        """Return mean and reciprocal deviation of rows."""
        mean = x.mean(1) if self.has_mean else np.zeros(len(x))
        return mean, 1 / np.sqrt(np.square(x - mean[:, None]).mean(1) + _EPS)

    def operands(self, arrays: Arrays) -> Arguments:
        """Return rows, their gradients, weights and statistics, and room for results."""
        x, dy = (arrays.normal(self.rows, self.columns) for _ in range(2))
        parts = [self.statistics(arrays.wide(part)) for part in _split(x)]
        mean, rstd = (np.concatenate(values) for values in zip(*parts, strict=True))
        statistics = {"mean_ptr": mean, "rstd_ptr": rstd}
        return {
            "dy_ptr": dy,
            "x_ptr": x,
            "w_ptr": arrays.normal(self.columns),
            "b": arrays.normal(self.columns),
            **{name: arrays.array(values, "fp32") for name, values in statistics.items()},
            "dx_ptr": arrays.empty(self.rows, self.columns),
            **{name: arrays.empty(self.columns) for name in ("dw", "db")},
            "stride": self.columns,
            "n_rows": self.rows,
            "n_cols": self.columns,
        }

    def reference(self, arrays: Arrays, args: Arguments) -> Iterator[Part]:
        """Yield some rows' gradients, and the sums over all rows."""
        w = arrays.wide(args["w_ptr"])
        dw, db = np.zeros(self.columns), np.zeros(self.columns)
        for x, dy in zip(_split(args["x_ptr"]), _split(args["dy_ptr"]), strict=True):
            wide, gradient = arrays.wide(x), arrays.wide(dy)
            mean, rstd = self.statistics(wide)
            dw += (gradient * (wide - mean[:, None]) * rstd[:, None]).sum(0)
            db += gradient.sum(0)
        index = np.unique(np.linspace(0, self.rows - 1, 16).astype(np.int64))
        x, dy = (arrays.wide(args[name][index]) for name in ("x_ptr", "dy_ptr"))
        mean, rstd = self.statistics(x)
        x_hat, wdy = (x - mean[:, None]) * rstd[:, None], dy * w
        dx = wdy - x_hat * (wdy * x_hat).mean(1, keepdims=True)
        if self.has_mean:
            dx -= wdy.mean(1, keepdims=True)
        yield Part("dx_ptr", index, dx * rstd[:, None])
        for name, values in zip(self.sums, (dw, db), strict=False):
            yield Part(name, slice(None), values)

    def plans(self, arrays: Arrays, args: Arguments, configs: Configs) -> Iterator[Plans]:
        """Yield passes of each config with each number of programs."""
        counts = [arrays.num_sms * per_sm for per_sm in _PER_SM]
        partial = arrays.empty(2, counts[-1], self.columns, dtype="fp32")
        for config, programs in itertools.product(configs(f"{self.name}_backward"), counts):
            if config["BLOCK"] != self.columns:
                continue
            pairs = list(zip(self.sums, partial, strict=False))
            values = {f"{name}_ptr": sums for name, sums in pairs} | {"n_programs": programs}
            note = f"{programs} programs"
            first = Step(f"{self.name}_backward", config, values, note=note)
            ends = [
                Step(
                    "partial_sums",
                    values={"partial_ptr": sums, "n_partials": programs},
                    aliases={"out_ptr": name},
                )
                for name, sums in pairs
            ]
            yield (first, *ends)

    def compiled(self, args: Arguments) -> Launch:
        """Return the backward pass of torch.compile on torch's norm."""
        import torch
        from torch.nn import functional

        def forward(x, w, b):
            if self.has_mean:
                return functional.layer_norm(x, x.shape[-1:], w, b, _EPS)
            return functional.rms_norm(x, x.shape[-1:], w, _EPS)

        torch._dynamo.reset()  # noqa: SLF001 - else shapes that were seen become symbols
        inputs = [args[name].detach().requires_grad_() for name in ("x_ptr", "w_ptr", "b")]
        out, leaves = torch.compile(forward)(*inputs), inputs[: 1 + len(self.sums)]

        def launch() -> None:
            gradients = torch.autograd.grad(out, leaves, args["dy_ptr"], retain_graph=True)
            args.update(zip(("dx_ptr", *self.sums), gradients, strict=True))

        return launch

    def workload(self) -> Workload:
        """Return the workload; its rate is of three times the rows."""
        triton = [
            {"BLOCK": self.columns, "STAGES": stages, "num_warps": warps}
            for warps, stages in itertools.product((4, 8, 16, 32), (1, 2))
            if self.columns <= 2048 * warps
        ]
        return Workload(
            name=f"{self.name} backward {self.rows}×{self.columns}",
            manifest="benchmarks/norm_backward.toml",
            work=6.0 * self.rows * self.columns,
            unit="TB/s",
            operands=self.operands,
            reference=self.reference,
            tolerance=Tolerance(value=2**-7, typical=2e-3),
            outputs=("dx_ptr", *self.sums),
            plans=self.plans,
            triton={f"{self.name}_backward": triton},
            peers={
                "torch.compile": Peer(self.compiled),
                "copy": torch_peers.copy("x_ptr", "dx_ptr", share=2 / 3),
            },
            sets=2,
        )


def _split(rows):
    """Return the rows in parts that fit the host's memory in float64."""
    return [rows[start : start + 1024] for start in range(0, len(rows), 1024)]


ITEMS = {
    name: Item("bandwidth", f"Gradients of {name}", [
        Norm(name, _ELEMENTS // columns, columns).workload() for columns in _COLUMNS
    ])
    for name in ("rmsnorm", "layernorm")
}  # fmt: skip
TINY = [Norm(name, 5, 4096).workload() for name in ("rmsnorm", "layernorm")]
