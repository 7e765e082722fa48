"""What a workload has: kernels of a manifest, operands, a reference, peers and a unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from benchmarks.harness.operands import Arguments, Array, Arrays, Part, Tolerance

Launch: TypeAlias = Callable[[], object]
Config: TypeAlias = Mapping[str, Any]
Configs: TypeAlias = Callable[..., Sequence[Config]]
"""The configs of a kernel by its name, those with all of some choices if given."""


@dataclass(frozen=True)
class Step:
    """One launch: a kernel in a config, with its own `values` over the workload's operands.

    Without a config the launcher picks. `aliases` name operands for some parameters. A kernel whose
    manifest has no grid needs one. A kernel that waits for the launch before starts early (PDL),
    unless `pdl` is false. A check poisons `outputs`; `finish` copies a candidate's own results to
    the operands. `blocks` of Triton's descriptors stand where they differ from the manifest's.
    """

    kernel: str
    config: Config | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    choices: Mapping[str, Any] = field(default_factory=dict[str, Any])
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    grid: tuple[int, ...] | None = None
    pdl: bool = True
    note: str = ""
    outputs: Sequence[Array] = ()
    finish: Callable[[Arguments], None] | None = None
    blocks: Mapping[str, list[int]] = field(default_factory=dict[str, list[int]])

    def arguments(self, args: Arguments) -> Arguments:
        """Return the arguments by parameter, among others."""
        named = {name: args[operand] for name, operand in self.aliases.items()}
        return {**args, **named, **self.values}

    @property
    def label(self) -> str:
        """The kernel, its config, and a note on its values."""
        entries = (f"{name}={v}" for name, v in {**(self.config or {}), **self.choices}.items())
        return " ".join([self.kernel, *entries, *filter(None, [self.note])])


Plan: TypeAlias = tuple[Step, ...]
"""The launches of one candidate, in order."""
Plans: TypeAlias = "tuple[Step | Sequence[Step], ...]"
"""Candidates that differ in some launches: alternatives are ranked alone, the fastest combined."""
Planner: TypeAlias = Callable[[Arrays, Arguments, Configs], Iterable[Plans]]
Rival: TypeAlias = "Mapping[str, Any] | Planner"


class Peer(NamedTuple):
    """Another way to do the work, or `share` of it: from operands to a launch on them.

    A copy has another result, so it is not checked.
    """

    bind: Callable[[Arguments], Launch]
    share: float = 1.0
    is_checked: bool = True


@dataclass(frozen=True)
class Workload:
    """One row of results.

    `work` is in operations or bytes, as `unit` says (TFLOP/s, TB/s, or µs for the time itself).
    `plans` yields candidates from the configs of aotc or of Triton: by default every config of
    `kernels` that it `serves`. Triton has the configs in `triton`, those of the manifest for other
    kernels, and no part in the work if `triton` is None. Of a tuple in `choices` every value is
    tried; `rivals` are aotc's with other choices, or other plans with other results.
    `reference` computes parts of the results. Before a check `outputs` are poisoned and `zeroed`
    arrays cleared. Launches take `sets` of operands in turn, to miss the L2.
    """

    name: str
    manifest: str
    work: float
    unit: str
    operands: Callable[[Arrays], Arguments]
    reference: Callable[[Arrays, Arguments], Iterable[Part]]
    tolerance: Tolerance
    outputs: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    plans: Planner | None = None
    choices: Mapping[str, Any] = field(default_factory=dict[str, Any])
    serves: Callable[[Config], bool] = lambda _: True
    triton: Mapping[str, Sequence[Config]] | None = field(
        default_factory=dict[str, Sequence[Config]]
    )
    rivals: Mapping[str, Rival] = field(default_factory=dict[str, "Rival"])
    peers: Mapping[str, Peer] = field(default_factory=dict[str, Peer])
    zeroed: tuple[str, ...] = ()
    sets: int = 1
    launches: int = 3

    def candidates(
        self,
        arrays: Arrays,
        args: Arguments,
        configs: Configs,
        rival: Rival | None = None,
    ) -> Iterator[Plans]:
        """Yield the plans to try, or those of a rival."""
        choices = {} if rival is None or callable(rival) else rival
        planner = rival if callable(rival) else self.plans
        if planner is not None:
            yield from planner(arrays, args, configs)
            return
        listed = {
            name: value if isinstance(value, tuple) else (value,)
            for name, value in {**self.choices, **choices}.items()
        }
        for chosen in grid_of(**listed):
            for kernel in self.kernels:
                for config in configs(kernel, chosen):
                    if self.serves(config):
                        yield (Step(kernel, config, choices=chosen),)


class Item(NamedTuple):
    """Workloads asked for by one name: their area and title in the results, and the rows."""

    area: str
    title: str
    workloads: Sequence[Workload]


def grid_of(**axes: Iterable[object]) -> list[dict[str, Any]]:
    """Return all combinations of values, the last axis varying fastest."""
    configs: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        listed = list(values)
        configs = [config | {name: value} for config in configs for value in listed]
    return configs


def tiles(names: Sequence[str], *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return configs from a table, a column for each name."""
    return [dict(zip(names, row, strict=True)) for row in rows]


def alternatives(plan: Plans) -> list[Sequence[Step]]:
    """Return the alternatives of each launch, one or more."""
    return [(steps,) if isinstance(steps, Step) else steps for steps in plan]


def cdiv(value: int, by: int) -> int:
    """Return the quotient, rounded up."""
    return -(-value // by)


def label_of(plan: Plan) -> str:
    """Return the name of a candidate."""
    return ", ".join(step.label for step in plan)


def error_of(
    workload: Workload,
    arrays: Arrays,
    args: Arguments,
    expected: Sequence[Part],
    launch: Launch,
    plan: Plan = (),
) -> float:
    """Return the error of a launch on poisoned outputs, as a multiple of the tolerance."""
    for array in (*map(args.get, workload.outputs), *(a for step in plan for a in step.outputs)):
        arrays.poison(array)
    for name in workload.zeroed:
        args[name][...] = 0
    launch()
    for step in plan:
        if step.finish:
            step.finish(args)
    errors = [
        workload.tolerance.error(arrays.wide(args[part.name][part.index]), part.values)
        for part in expected
    ]
    return max(errors)
