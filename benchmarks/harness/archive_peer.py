"""aotc as a peer: plans launched from an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.operands import Arguments
from benchmarks.harness.workload import Config, Configs, Launch, Plan, Step
from benchmarks.peers import built


def configs_of(library: Any) -> Configs:
    """Return the function from a kernel to its built configs; kernels that are not there have none."""

    def configs(kernel: str, choices: Mapping[str, Any] | None = None) -> Sequence[Config]:
        return built(library[kernel], choices) if kernel in library else ()

    return configs


def bind(library: Any, plan: Plan, args: Arguments) -> Launch:
    """Return the launches of a plan on operands, as one."""
    calls = [_call(library[step.kernel], step, step.arguments(args)) for step in plan]

    def launch() -> None:
        for call in calls:
            call()

    return calls[0] if len(calls) == 1 else launch


def _call(kernel: Any, step: Step, values: Mapping[str, Any]) -> Launch:
    arguments = [values[param.name] for param in kernel.info.params]
    words: dict[str, Any] = {
        "grid": step.grid,
        "config": None if step.config is None else dict(step.config),
        "choices": {name: v for name, v in step.choices.items() if name in kernel.info.choices},
    }
    waits = [
        variant.waits_pdl
        for variant in kernel.info.variants
        if step.config is None or dict(variant.config) == words["config"]
    ]
    words["pdl"] = step.pdl and all(waits)
    size = kernel.select(arguments, **words).scratch_bytes
    memory = _bytes(size) if size else None  # of this launch alone, as long as it is there
    return lambda: kernel.launch(
        arguments, scratch=None if memory is None else (memory.data_ptr(), size), **words
    )


def _bytes(size: int) -> Any:
    import torch

    return torch.empty(size, dtype=torch.uint8, device="cuda")
