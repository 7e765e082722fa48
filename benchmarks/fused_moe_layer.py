"""The layers of benchmarks/fused_moe.py: operands, rows sorted by expert or in order, and the check."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any

from peers import Launch

EXPERTS, EACH = 128, 8
HIDDEN, INNER = 4096, 1536
ROWS_AT_ONCE = 64  # rows whose scales one program orders, at most


@dataclass(frozen=True)
class Run:
    """A launch and its results: in order of rows, or row `numbers[i]` at *i*.

    `staged` are operands it computes first.
    """

    launch: Launch
    out: Any
    numbers: Any = None
    staged: Any = None

    def __call__(self) -> None:
        self.launch()

    def results(self, num_rows: int) -> Any:
        """Return the results in order of rows."""
        if self.numbers is None:
            return self.out
        real_rows = (self.numbers < num_rows).nonzero().flatten()
        ordered = self.out.new_empty(num_rows, self.out.shape[1])
        ordered[self.numbers[real_rows].long()] = self.out[real_rows]
        return ordered


class Layer:
    """The operands of one layer, the row numbers for each size of blocks, and the check."""

    def __init__(
        self, tokens: int, weights: str, *, first: bool, even: bool = False, alike: bool = False
    ) -> None:
        import torch

        self.first, self.weights, self.rows, self.alike = first, weights, tokens * EACH, alike
        self.n, self.k = (INNER, HIDDEN) if first else (HIDDEN, INNER)
        self.swiglu = first and weights != "int4"
        width = 2 * self.n if first else self.n
        if not self.swiglu:
            self.n = width
        self.flop = 2 * self.rows * width * self.k
        chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(EACH, 1).indices.flatten()
        if even:
            chosen = torch.randperm(self.rows, device="cuda") % EXPERTS
        self.chosen = chosen.cpu()
        options = {"device": "cuda", "dtype": torch.bfloat16}
        self.a = torch.randn(tokens if first else self.rows, self.k, **options)
        self.b = torch.randn(EXPERTS, width, self.k, **options) / self.k**0.5
        self.out = torch.empty(self.rows, self.n, **options)
        self.weight = torch.rand(self.rows, device="cuda")
        self.dense = torch.randn(self.rows, self.k, **options)
        self.dense_b = self.b[0].clone()
        self.dense_out = torch.empty(self.rows, width, **options)
        self.scales: dict[str, Any] = {}
        if weights == "fp8":
            eight = torch.float8_e4m3fn
            self.a, self.b, self.dense, self.dense_b = (
                tensor.to(eight) for tensor in (self.a, self.b, self.dense, self.dense_b)
            )
            blocks = self.k // 128
            self.scales["scale_a_ptr"] = torch.rand(len(self.a), blocks, device="cuda")
            self.scales["scale_b_ptr"] = torch.rand(EXPERTS, width // 128, blocks, device="cuda")
        elif weights == "int4":
            words = EXPERTS, width, self.k // 8
            self.b = torch.randint(-(2**31), 2**31, words, dtype=torch.int32, device="cuda")
            scale = torch.rand(EXPERTS, self.k // 128, width, device="cuda")
            self.scales["scale_ptr"] = (scale / self.k**0.5).bfloat16()

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return "fused_moe" if self.weights == "bf16" else f"fused_moe_{self.weights}"

    @property
    def ordered_kernel(self) -> str:
        """The name of the kernel storing rows in order."""
        form = "" if self.weights == "bf16" else f"_{self.weights}"
        return f"fused_moe_{'up' if self.first else 'down'}{form}"

    def rows_of(self, token: Any) -> Any:
        """Return rows of A in float64."""
        rows = self.a[token].double()
        if self.weights == "fp8":
            rows *= self.scales["scale_a_ptr"][token].double().repeat_interleave(128, 1)
        return rows

    def weights_of(self, expert: int) -> Any:
        """Return the weights of an expert in float64."""
        import torch

        b = self.b[0 if self.alike else expert]
        if self.weights == "fp8":
            scale = self.scales["scale_b_ptr"][0 if self.alike else expert].double()
            return b.double() * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        if self.weights == "int4":
            shifts = [index // 2 * 4 + index % 2 * 16 for index in range(8)]
            numbers = torch.stack([b >> shift & 15 for shift in shifts], 2).flatten(1) - 8
            scale = (
                self.scales["scale_ptr"][0 if self.alike else expert].repeat_interleave(128, 0).T
            )
            return (numbers.bfloat16() * scale).double()
        return b.double()

    def sorted_rows(self, block: int) -> dict[str, Any]:
        """Return row numbers by expert, filled up to whole blocks, and the expert of each block."""
        import torch

        numbers, experts = [], []
        for expert in range(EXPERTS):
            rows = (self.chosen == expert).nonzero().flatten()
            count = -(-len(rows) // block)
            fill = torch.full((count * block - len(rows),), self.rows)
            numbers += [rows, fill]
            experts += [0 if self.alike else expert] * count
        total = sum(map(len, numbers))
        # A launch has room for the largest possible number of blocks.
        numbers.append(torch.full((self.rows + EXPERTS * block - total,), self.rows))
        experts += [0] * (self.rows // block + EXPERTS - len(experts))
        return {
            "sorted_ptr": torch.cat(numbers).int().cuda(),
            "expert_ptr": torch.tensor(experts, dtype=torch.int32, device="cuda"),
            "padded_ptr": torch.tensor([total], dtype=torch.int32, device="cuda"),
        }

    def rows_in_order(self, most: int, align: int) -> dict[str, Any]:
        """Return rows in the order of their experts, and where blocks of up to `most` begin, longest first.

        Each expert's rows are cut into the fewest blocks, of about equal size. Each block is
        padded to a multiple of `align`.
        """
        import torch

        blocks = []
        for expert in range(EXPERTS):
            rows = (self.chosen == expert).nonzero().flatten()
            parts = rows.tensor_split(max(1, -(-len(rows) // most)))
            blocks += [(expert, part) for part in parts]
        blocks.sort(key=lambda block: -len(block[1]))
        starts, numbers = [0], []
        for _, part in blocks:
            numbers += [part, torch.full((-len(part) % align,), self.rows)]
            starts.append(starts[-1] + len(part) + len(numbers[-1]))
        # A launch has room for the largest possible number of blocks and rows.
        empty = self.most_blocks(most) - len(blocks)
        capacity = self.rows + self.most_blocks(most) * align
        capacity += -capacity % ROWS_AT_ONCE
        numbers.append(torch.full((capacity - starts[-1],), self.rows))
        numbers = torch.cat(numbers).int()
        options = {"dtype": torch.int32, "device": "cuda"}
        real = numbers.clamp(max=self.rows - 1).long().cuda()
        in_order = {"sorted_ptr": numbers.cuda(), "factors": self.weight[real]}
        in_order["place_ptr"] = self.places(numbers)
        in_order["a"] = in_order["more"] = self.a[real // EACH if self.first else real]
        return in_order | {
            "start_ptr": torch.tensor([*starts[:-1], *[0] * empty], **options),
            "count_ptr": torch.tensor(
                [*(len(part) for _, part in blocks), *[0] * empty], **options
            ),
            "expert_ptr": torch.tensor(
                [*(0 if self.alike else expert for expert, _ in blocks), *[0] * empty], **options
            ),
            "num_blocks_ptr": torch.tensor([len(blocks)], **options),
            "out": torch.empty(capacity, self.n, dtype=torch.bfloat16, device="cuda"),
        }

    def most_blocks(self, most: int) -> int:
        """Return how many blocks of up to `most` rows there can be."""
        return self.rows // most + EXPERTS

    def places(self, numbers: Any) -> Any:
        """Return where each row number stands."""
        import torch

        row_of = torch.empty(self.rows, dtype=torch.int32)
        real_rows = (numbers.cpu() < self.rows).nonzero().flatten()
        row_of[numbers.cpu()[real_rows].long()] = real_rows.int()
        return row_of.cuda()

    @functools.cached_property
    def cut_weights(self) -> Any:
        """The weights, (experts, blocks of K, N, block_k), with SWIGLU 8 of gate and 8 of up in turn."""
        import torch

        b = self.b.view(torch.uint8) if self.weights == "fp8" else self.b
        if self.swiglu:
            b = b.view(EXPERTS, 2, self.n // 8, 8, self.k).transpose(1, 2)
        rows = b.reshape(EXPERTS, -1, self.k // self.block_k, self.block_k)
        return rows.transpose(1, 2).contiguous().view(self.b.dtype)

    def column_arguments(self, most: int, align: int) -> dict[str, Any]:
        """Return the arguments of the transposed-tile kernel by name."""
        b = self.b
        if self.swiglu:
            b = b.view(EXPERTS, 2, self.n // 8, 8, self.k).transpose(1, 2)
        arguments = {"b": b, **self.rows_in_order(most, align)}
        return arguments | {
            "a_ptr": self.a,
            "out_ptr": arguments["a"],
            "num_out": len(arguments["a"]),
            "n_tokens": len(self.a),
            "stride_om": self.k,
            "scales": self.scales.get("scale_ptr"),
            "more_factors": arguments["factors"],
            "N": self.n,
            "K": self.k,
            "stride_am": self.k,
            "n_rows": self.rows,
            "n_blocks": self.most_blocks(most),
        }

    def blockwise_arguments(self, block: int, tail: int) -> dict[str, Any]:
        """Return the arguments of the fp8 kernel with ordered rows, and of the ordering kernel.

        Each block has room for the largest size, block + tail.
        """
        arguments = self.column_arguments(block + tail, block + tail)
        scales, num_scales = self.scales["scale_a_ptr"], self.k // 128
        real = arguments["sorted_ptr"].long().clamp(max=self.rows - 1)
        scale_a = scales[real // EACH if self.first else real].T.contiguous()
        return arguments | {
            "scale_a": scale_a,
            "out_beyond": arguments["out"],
            "scale_ptr": scales,
            "out_scale_ptr": scale_a,
            "scale_b_ptr": self.scales["scale_b_ptr"],
            "stride_sm": num_scales,
            "stride_sk": scale_a.stride(0),
            "num_scales": num_scales,
            **self._strides(),
        }

    def arguments(self, block: int) -> dict[str, Any]:
        """Return the arguments of the kernel by name."""
        return {
            "a_ptr": self.a,
            "b_ptr": self.b,
            "out_ptr": self.out,
            **self.scales,
            "weight_ptr": self.weight,
            **self.sorted_rows(block),
            "N": self.n,
            "K": self.k,
            "n_rows": self.rows,
            "rows_per_token": EACH if self.first else 1,
            "stride_am": self.k,
            "stride_be": self.b.stride(0),
            "stride_bn": self.b.stride(1),
            "stride_om": self.n,
            **self._strides(),
            "n_blocks": self.rows // block + EXPERTS,
        }

    def _strides(self) -> dict[str, int]:
        """Return the strides of the scales."""
        if self.weights == "fp8":
            a, b = self.scales["scale_a_ptr"], self.scales["scale_b_ptr"]
            return {"stride_sa": a.stride(0), "stride_sbe": b.stride(0), "stride_sbn": b.stride(1)}
        if self.weights == "int4":
            scale = self.scales["scale_ptr"]
            return {"stride_se": scale.stride(0), "stride_sk": scale.stride(1)}
        return {}

    @property
    def choices(self) -> dict[str, bool]:
        """Fused work beside multiplying."""
        more = {} if self.weights == "int4" else {"SWIGLU": self.first}
        return {"WEIGHTED": not self.first, **more}

    @property
    def block_k(self) -> int:
        """Extent of a step along K."""
        return 128 if self.weights == "fp8" else 64

    def check(self, name: str, run: Run) -> bool:
        """Return whether a launch is right for some experts, over poisoned results."""
        import torch

        for tensor in (run.out, *(() if run.staged is None else (run.staged,))):
            tensor.view(torch.uint8).fill_(0xFF)  # NaN in every format
        run()
        out = run.results(self.rows)
        if out.isnan().any():
            print(f"    {name} leaves rows out", file=sys.stderr)
            return False
        for expert in (0, EXPERTS // 2, EXPERTS - 1):
            rows = (self.chosen == expert).nonzero().flatten().cuda()
            token = rows // EACH if self.first else rows
            expected = self.rows_of(token) @ self.weights_of(expert).T
            if self.swiglu:
                gate, up = expected.chunk(2, 1)
                expected = torch.nn.functional.silu(gate) * up
            if not self.first:
                expected *= self.weight[rows].double()[:, None]
            error = (out[rows].double() - expected).abs().max() / expected.abs().max()
            if not error < 2**-7:
                print(f"    {name} is wrong by {error:.3g} of the largest", file=sys.stderr)
                return False
        return True
