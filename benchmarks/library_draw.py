"""Draw a library's entry points, and their arguments, by seed.

A library is data: a module `library_NAME.py` with `ENTRY_POINTS`, functions of a draw by name. A
function draws shapes, dtypes and options, and calls the library through the draw. Its result is
every tensor returned or passed, and the gradients of inputs with `grad=True`.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch

Programs = dict[str, Callable[[], list[Any]]]
EntryPoints = Mapping[str, Callable[["Draw"], Any]]
DEVICE = "cuda"


def programs(entry_points: EntryPoints, seed: int, count: int) -> Programs:
    """Return `count` programs of entry points drawn by seed; with few, each is drawn repeatedly."""
    names = random.Random(seed).sample([*entry_points], len(entry_points))
    drawn: Programs = {}
    for index in range(count):
        repeat, position = divmod(index, len(names))
        name = names[position]
        label = f"{name}.{repeat + 1}" if repeat else name
        drawn[label] = partial(_run, entry_points[name], f"{seed} {label}")
    return drawn


def _run(entry_point: Callable[[Draw], Any], seed: str) -> list[Any]:
    draw = Draw(seed)
    result = [*tensors_of(entry_point(draw))]
    results = [*result, *draw.passed]
    distinct = [*{id(tensor): tensor for tensor in results}.values()]
    outputs = [tensor.detach().clone() for tensor in distinct]
    return [*outputs, *_gradients(result, draw.inputs)]


def _gradients(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Return the gradients of inputs, of a sum of the results with random weights."""
    needing = [tensor for tensor in results if tensor.requires_grad]
    if not inputs or not needing:
        return []
    draw = torch.Generator("cpu").manual_seed(1)
    weights = [torch.randn(tensor.shape, generator=draw).to(DEVICE) for tensor in needing]
    terms = [
        (tensor.float() * weight).sum() for tensor, weight in zip(needing, weights, strict=True)
    ]
    torch.stack(terms).sum().backward()
    return [tensor.grad for tensor in inputs if tensor.grad is not None]


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: its own, or of its items or fields."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in cast("Sequence[Any]", value):
            yield from tensors_of(item)
    elif isinstance(value, dict):
        yield from tensors_of([*cast("dict[str, Any]", value).values()])
    elif is_dataclass(value):
        yield from tensors_of([getattr(value, field.name) for field in fields(value)])


class Draw:
    """Arguments of an entry point, drawn by seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.inputs: list[torch.Tensor] = []
        self.passed: list[torch.Tensor] = []

    def __call__(self, path: str, *args: Any, **words: Any) -> Any:
        """Call `module:name` of the library."""
        self.passed += tensors_of([args, words])
        return self.get(path)(*args, **words)

    @staticmethod
    def get(path: str) -> Any:
        """Import `module:name`; the name may be dotted."""
        module, _, names = path.partition(":")
        value: Any = importlib.import_module(module)
        for name in names.split("."):
            value = getattr(value, name)
        return value

    def one_of(self, *values: Any) -> Any:
        """Return one of the values."""
        return self._random.choice(values)

    def flag(self) -> bool:
        """Return either truth value."""
        return self._random.choice((False, True))

    @cached_property
    def dtype(self) -> torch.dtype:
        """A dtype of 16 bits."""
        return self.one_of(torch.float16, torch.bfloat16)

    @cached_property
    def tokens(self) -> int:
        """The number of tokens of a batch: a decode, or a prompt."""
        return self.one_of(1, 7, 64, 333, 1024)

    @cached_property
    def width(self) -> int:
        """The width of a model."""
        return self.one_of(512, 768, 1024, 2048, 4096)

    @cached_property
    def heads(self) -> int:
        """The number of query heads."""
        return self.one_of(4, 8, 16)

    def tensor(
        self, *shape: int, dtype: torch.dtype | None = None, grad: bool = False
    ) -> torch.Tensor:
        """Return a random tensor, by default of the drawn dtype."""
        made = torch.randn(shape, device=DEVICE).to(dtype or self.dtype)
        if grad:
            self.inputs.append(made.requires_grad_())
        return made

    def fp32(self, *shape: int, grad: bool = False) -> torch.Tensor:
        """Return a random tensor of fp32."""
        return self.tensor(*shape, dtype=torch.float32, grad=grad)

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a tensor of zeros, for results."""
        return torch.zeros(shape, device=DEVICE, dtype=dtype or self.dtype)

    def ints(
        self, *shape: int, below: int, least: int = 0, dtype: torch.dtype = torch.int32
    ) -> torch.Tensor:
        """Return random integers."""
        return torch.randint(least, below, shape, device=DEVICE, dtype=dtype)

    def values(self, *values: float, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return a tensor of these values."""
        return torch.tensor(values, device=DEVICE, dtype=dtype)
