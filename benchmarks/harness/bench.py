"""The candidates of a workload's peers: those that are right, and the fastest of each peer.

Before a candidate is tried its name is told, so that a hang or a crash has a name. A candidate is
right before it is timed. A first trial is in turn with a yardstick: a GPU that gets warm would
favour the first candidates.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness import archive_peer, triton_peer
from benchmarks.harness.operands import Arguments, Arrays, GpuArrays
from benchmarks.harness.task import Task, survive, tell
from benchmarks.harness.workload import (
    Launch,
    Plan,
    Plans,
    Rival,
    Step,
    Workload,
    alternatives,
    error_of,
    label_of,
)
from benchmarks.peers import in_turn, of_turn, ranked, ratio

_QUICK_TRIALS, _TRIALS, _FINALISTS = 3, 11, 8
_COMBINED = 2


class Candidate(NamedTuple):
    """A way to do the work: from operands to a launch on them, by a plan unless it is a library's."""

    label: str
    bind: Callable[[Arguments], Launch]
    plan: Plan = ()


@dataclass
class Choice:
    """The fastest of a peer's candidates, and how many were wrong or failed."""

    label: str
    launch: Launch
    failed: int


class Bench:
    """A workload's operands, and the choice of each peer."""

    def __init__(self, workload: Workload, task: Task, library: Any) -> None:
        self.workload, self.task, self.library = workload, task, library
        self.arrays: Arrays = GpuArrays()
        self.sets = [workload.operands(self.arrays) for _ in range(workload.sets)]
        self.expected = [*workload.reference(self.arrays, self.sets[0])]
        self.turns = itertools.count()
        self.yardstick: Launch | None = None

    def timed(self, launches: Mapping[str, Launch], rounds: int) -> dict[str, list[float]]:
        """Return the milliseconds of launches, round by round."""
        return in_turn(launches, rounds, self.workload.launches, ahead=not self.task.host)

    def right(self, candidate: Candidate, *, is_checked: bool) -> Launch:
        """Return a launch that takes the sets in turn. Raises: ValueError if it is wrong."""
        # A library binds results anew, in operands of its own: a plan writes to those of the bench.
        sets = self.sets if candidate.plan else [dict(args) for args in self.sets]
        calls = [candidate.bind(args) for args in sets]
        if is_checked:
            operands = (self.workload, self.arrays, sets[0], self.expected)
            error = error_of(*operands, calls[0], candidate.plan)
            if not error <= 1.0:
                raise ValueError(f"wrong by {error:.3g} of what is tolerated")
        return of_turn(calls, self.turns)

    def choose(
        self, peer: str, candidates: Iterable[Candidate], *, is_checked: bool = True
    ) -> Choice | None:
        """Return the fastest of the candidates that are right."""
        finalists: list[tuple[float, str, Launch]] = []
        failed, end = 0, 0.0
        for candidate in candidates:
            label = candidate.label
            # The time begins with the first candidate: before, Triton compiles.
            end = end or time.monotonic() + self.task.seconds
            name = f"{self.workload.name}: {peer}: {label}"
            if time.monotonic() > end or not self.task.may_try(name):
                continue
            try:
                launch = self.right(candidate, is_checked=is_checked)
                pair = {"candidate": launch, "yardstick": self.yardstick or launch}
                times = self.timed(pair, _QUICK_TRIALS)
                took = ratio(times["candidate"], times["yardstick"])
                if self.yardstick is None:
                    took, self.yardstick = 1.0, launch
            except Exception as failure:  # noqa: BLE001 - whatever it is, the next may work
                failed += 1
                tell(note=f"  {name}: {type(failure).__name__}: {str(failure)[:200]}")
                survive()
                continue
            finalists = sorted([*finalists, (took, label, launch)], key=lambda entry: entry[0])
            del finalists[_FINALISTS:]
        if not finalists:
            return None
        launches = {label: launch for _, label, launch in finalists}
        if len(launches) == 1:
            return Choice(*next(iter(launches.items())), failed)
        ranking = ranked(launches, _TRIALS, self.workload.launches, ahead=not self.task.host)
        for took, label in ranking[:4]:
            tell(note=f"    {peer:8} {1e3 * took:9.1f} us  {label}")
        return Choice(ranking[0][1], launches[ranking[0][1]], failed)

    def archive_candidates(self, rival: Rival | None = None) -> Iterator[Candidate]:
        """Yield aotc's candidates, or a rival's."""
        configs = archive_peer.configs_of(self.library)
        for plans in self.workload.candidates(self.arrays, self.sets[0], configs, rival):
            yield from self.combined("aotc", plans, partial(archive_peer.bind, self.library))

    def triton_candidates(self) -> Iterator[Candidate]:
        """Yield Triton's candidates, once all are compiled."""
        workload, args = self.workload, self.sets[0]
        configs = triton_peer.configs_of(workload, archive_peer.configs_of(self.library))
        listed = list(workload.candidates(self.arrays, args, configs))
        started = time.monotonic()
        steps = [step for plans in listed for slot in alternatives(plans) for step in slot]
        trouble = triton_peer.compiled(
            workload, steps, args, self.task.triton_cache, lambda key: tell(compiled=key)
        )
        tell(note=f"  Triton took {time.monotonic() - started:.0f} s to compile")
        for label, error in {step.label: trouble(step) for step in steps}.items():
            if error:
                tell(note=f"  Triton: {label}: {error}")
        for plans in listed:
            sound = tuple([step for step in s if not trouble(step)] for s in alternatives(plans))
            yield from self.combined("Triton", sound, partial(triton_peer.bind, workload))

    def combined(
        self, peer: str, plans: Plans, bind: Callable[[Plan, Arguments], Launch]
    ) -> Iterator[Candidate]:
        """Yield the combinations of each launch's fastest alternatives."""
        slots: list[Sequence[Step]] = []
        for steps in alternatives(plans):
            slots.append(steps)
            if len(plans) > 1 and len(steps) > _COMBINED:
                by_label = {step.label: step for step in steps}
                tries = {label: self.alone(peer, step, bind) for label, step in by_label.items()}
                launches = {label: launch for label, launch in tries.items() if launch}
                ranking = ranked(launches, _QUICK_TRIALS, 1, ahead=not self.task.host)
                slots[-1] = [by_label[label] for _, label in ranking[:_COMBINED]]
        for plan in itertools.product(*slots):
            yield Candidate(label_of(plan), partial(bind, plan), plan)

    def alone(
        self, peer: str, step: Step, bind: Callable[[Plan, Arguments], Launch]
    ) -> Launch | None:
        """Return one launch of a plan, after a first try, or None if it fails."""
        if not self.task.may_try(f"{self.workload.name}: {peer}: alone: {step.label}"):
            return None
        try:
            launch = bind((step,), self.sets[0])
            launch()
        except Exception as failure:  # noqa: BLE001 - whatever it is, the next may work
            tell(note=f"  {peer}: {step.label}: {type(failure).__name__}: {str(failure)[:200]}")
            survive()
            return None
        return launch

    def choices(self) -> dict[str, Choice]:
        """Return the choice of each peer that has one."""
        workload, task = self.workload, self.task
        configs = archive_peer.configs_of(self.library)
        plans = workload.candidates(self.arrays, self.sets[0], configs)
        if next(iter(plans), None) is None:
            raise RuntimeError("the archive has no config for it")
        chosen: dict[str, Choice | None] = {}
        for name, peer in workload.peers.items():
            if task.has(name):
                library = [Candidate(name, peer.bind)]
                chosen[name] = self.choose(name, library, is_checked=peer.is_checked)
        chosen["aotc"] = self.choose("aotc", self.archive_candidates())
        for name, rival in workload.rivals.items():
            if task.has(name):
                candidates, same = self.archive_candidates(rival), not callable(rival)
                chosen[name] = self.choose(name, candidates, is_checked=same)
        if workload.triton is not None and task.has("Triton"):
            chosen["Triton"] = self.choose("Triton", self.triton_candidates())
        return {peer: choice for peer, choice in chosen.items() if choice}
