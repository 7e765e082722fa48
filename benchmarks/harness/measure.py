"""Measure workloads in this process, and tell of them by lines of JSON; see supervise.py.

Before a candidate is tried its name is told, so that a hang or a crash has a name. A candidate is
right before it is timed. A first trial is in turn with a yardstick: a GPU that gets warm would
favour the first candidates.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness import archive_peer, triton_peer
from benchmarks.harness.operands import Arguments, Arrays, GpuArrays, Part
from benchmarks.harness.registry import selected
from benchmarks.harness.workload import Launch, Plan, Plans, Rival, Step, Workload, alternatives
from benchmarks.peers import Clocks, in_turn, of_turn, ranked, ratio

BROKEN = 3
"""The exit code when the GPU's context is lost, and this process with it."""
_QUICK_TRIALS, _TRIALS, _FINALISTS = 3, 11, 8
_ROUND_SECONDS, _MIN_ROUNDS, _MAX_ROUNDS = 1.5, 21, 201
_COMBINED = 2


class Candidate(NamedTuple):
    """A way to do the work: from operands to a launch on them, by a plan unless it is a library's."""

    label: str
    bind: Callable[[Arguments], Launch]
    plan: Plan = ()


@dataclass
class Task:
    """Workloads to measure, without `done` ones and `bad` candidates.

    Peers beside aotc are those in `peers`, all if it is None. Tuning a peer takes at most
    `seconds`. With `host` the host's time for a launch counts.
    """

    family: str
    items: list[str]
    only: list[str]
    archive: str
    seconds: float
    peers: list[str] | None
    host: bool
    triton_cache: str
    done: list[str]
    bad: list[str]

    def may_try(self, name: str) -> bool:
        """Report the try of `name` and return True, or False for a bad candidate."""
        if name in self.bad:
            return False
        tell(trying=name)
        return True

    def has(self, peer: str) -> bool:
        """Return whether a peer takes part."""
        return self.peers is None or peer in self.peers


def tell(**line: object) -> None:
    """Write one line for the reader."""
    print(json.dumps(line), flush=True)


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
        failed, end = 0, time.monotonic() + self.task.seconds
        for candidate in candidates:
            label = candidate.label
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
            held = tuple([step for step in s if not trouble(step)] for s in alternatives(plans))
            yield from self.combined("Triton", held, partial(triton_peer.bind, workload))

    def combined(
        self, peer: str, plans: Plans, bind: Callable[[Plan, Arguments], Launch]
    ) -> Iterator[Candidate]:
        """Yield the combinations of each launch's fastest alternatives."""
        slots: list[Sequence[Step]] = []
        for steps in alternatives(plans):
            slots.append(steps)
            if len(plans) > 1 and len(steps) > _COMBINED:
                known = {step.label: step for step in steps}
                launches = {name: self.alone(peer, step, bind) for name, step in known.items()}
                held = {name: launch for name, launch in launches.items() if launch}
                ranking = ranked(held, _QUICK_TRIALS, 1, ahead=not self.task.host)
                slots[-1] = [known[name] for _, name in ranking[:_COMBINED]]
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


def survive() -> None:
    """End this process if the GPU's context is lost: nothing more can be measured in it."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except Exception:  # noqa: BLE001
        sys.exit(BROKEN)


def row_of(
    workload: Workload, times: Mapping[str, list[float]], choices: Mapping[str, Choice]
) -> dict[str, Any]:
    """Return the row of results: aotc's figure, and ratios to peers by the median of rounds."""
    row: dict[str, Any] = {"work": workload.name, "unit": workload.unit, "figure": None}
    if "aotc" in times:
        row["figure"] = figure_of(workload, statistics.median(times["aotc"]))
        row["ratios"] = {
            peer: round(ratio(values, times["aotc"]) / share_of(workload, peer), 3)
            for peer, values in times.items()
            if peer != "aotc"
        }
    row["figures"] = {
        peer: figure_of(workload, statistics.median(values), share_of(workload, peer))
        for peer, values in times.items()
    }
    row["configs"] = {peer: choice.label for peer, choice in choices.items()}
    row["failed"] = {peer: choice.failed for peer, choice in choices.items() if choice.failed}
    return row


def share_of(workload: Workload, peer: str) -> float:
    """Return the share of the work that a peer does."""
    return workload.peers[peer].share if peer in workload.peers else 1.0


def figure_of(workload: Workload, milliseconds: float, share: float = 1.0) -> float:
    """Return a time in the workload's unit, with four digits."""
    rate = 1e3 * milliseconds
    if workload.unit != "µs":
        rate = workload.work * share / milliseconds / 1e9
    return float(f"{rate:.4g}")


def measure(workload: Workload, task: Task, library: Any) -> dict[str, Any]:
    """Choose each peer's best, run them in turn, and return the row."""
    bench = Bench(workload, task, library)
    choices = bench.choices()
    launches = {peer: choice.launch for peer, choice in choices.items()}
    if not launches:
        raise RuntimeError("no peer has a launch that is right")
    if not task.may_try(f"{workload.name}: in turn"):
        raise RuntimeError("the peers' best were lost in turn")
    slow = max(statistics.median(times) for times in bench.timed(launches, 3).values())
    rounds = int(1e3 * _ROUND_SECONDS / (slow * workload.launches * len(launches)))
    with Clocks() as clocks:
        times = bench.timed(launches, min(_MAX_ROUNDS, max(_MIN_ROUNDS, rounds)))
    return row_of(workload, times, choices) | {"clocks": clocks.median}


def run(task: Task) -> None:
    """Measure workloads one after the other."""
    import torch

    import aotc

    tell(note=f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    tell(card=torch.cuda.get_device_name())
    library = aotc.load(task.archive)
    for workload in selected(task.family, task.items, task.only):
        if workload.name in task.done or not task.may_try(f"{workload.name}: operands"):
            continue
        try:
            tell(row=measure(workload, task, library))
        except Exception:  # noqa: BLE001 - the other workloads can be measured all the same
            tell(note=traceback.format_exc())
            survive()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    run(Task(**json.load(sys.stdin)))
