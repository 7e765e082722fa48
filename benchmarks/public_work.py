"""A timed work of public sources: kernels of a library in a row, on its arguments.

A work checks their results against float64; its arguments are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peers import Launch

TOLERANCE = 1e-2
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One kernel of a work: of the manifest, its module and function, arguments and grid."""

    kernel: str
    module: str
    function: str
    values: Values
    constants: Values
    grid: Callable[[Values], tuple[int, ...]]


@dataclass
class Work:
    """A timed work: kernels in a row, with the error of their outputs relative to the tolerance.

    Outputs hold `initial` before they are checked: NaN, or 0 where kernels add to them.
    """

    name: str
    flops: float
    steps: Sequence[Step]
    wrong: Callable[[], float]
    outputs: Sequence[Any] = field(default_factory=list[Any])
    initial: float = math.nan

    def error_of(self, launch: Launch) -> float:
        """Return the error of a launch, on outputs reset before it."""
        import torch

        for output in self.outputs:
            output.fill_(self.initial)
        launch()
        torch.cuda.synchronize()
        return self.wrong()


def random_tensor(*shape: int) -> Any:
    """Return a tensor of normal bf16 numbers."""
    import torch

    return torch.randn(shape, device="cuda").to(torch.bfloat16)


def numbers(*values: int) -> Any:
    """Return a tensor of 32-bit integers."""
    import torch

    return torch.tensor(values, dtype=torch.int32, device="cuda")


def error_of(actual: Any, expected: Any) -> float:
    """Return the largest error as a multiple of the tolerance, infinite if anything is NaN."""
    error = ((actual.double() - expected).abs().max() / expected.abs().max()).item()
    return math.inf if math.isnan(error) else error / TOLERANCE


def attended(q: Any, k: Any, v: Any, rows: Any | None = None) -> Any:
    """Return rows of attention in float64; causal if rows are given."""
    import torch

    scores = q.double() @ k.double().T * q.shape[-1] ** -0.5
    if rows is not None:
        columns = torch.arange(k.shape[0], device="cuda")
        scores.masked_fill_(columns > rows[:, None], -math.inf)
    return scores.softmax(-1) @ v.double()


def causal_work(
    name: str,
    step: Step,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    heads_per_kv_head: int,
    *,
    is_causal: bool = True,
) -> Work:
    """Return a work of attention on tensors (batch, length, heads, features)."""
    import torch

    batch, length, heads, features = q.shape
    rows = torch.cat([torch.randint(0, length, (126,)), torch.tensor([0, length - 1])]).cuda()
    picked = [(0, 0), (batch - 1, heads - 1)]
    expected: list[Any] = []
    for b, h in picked:
        keys, seen = (tensor[b, :, h // heads_per_kv_head] for tensor in (k, v))
        expected.append(attended(q[b, rows, h], keys, seen, rows if is_causal else None))

    def wrong() -> float:
        actual = [out[b, rows, h] for b, h in picked]
        return max(map(error_of, actual, expected))

    flops = (2.0 if is_causal else 4.0) * batch * heads * length**2 * features
    return Work(f"{name} {batch}x{heads}x{length}", flops, [step], wrong, [out])
