"""Instructions that say where lanes go on: jumps, exits, and the end of a failed assertion."""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from aotc.verify.emulator.context import Context
from aotc.verify.emulator.ends import End, Site, ends, falls_through
from aotc.verify.emulator.groups import Group, lane_array
from aotc.verify.emulator.lane_context import LaneContext
from aotc.verify.emulator.machine import Batch
from aotc.verify.emulator.registry import Unsupported, executes
from aotc.verify.emulator.syntax import Address, Instruction, Label, Symbol, Vector

if TYPE_CHECKING:
    from aotc.verify.emulator.scheduler import Scheduler


# ---- jumps --------------------------------------------------------------------------------------


@ends("bra")
def _bra(site: Site) -> End:
    (label,) = site.instruction.operands
    assert isinstance(label, Label)
    target, following = label.index, site.following
    if site.instruction.guard is None:
        return falls_through(target)
    predicate = site.decoder.predicate(site.instruction)

    def branch(scheduler: Scheduler, group: Group) -> None:
        mask = predicate(group.lanes)
        if mask.all():
            scheduler.go_on(group, target)
        elif not mask.any():
            scheduler.go_on(group, following)
        else:
            lanes = lane_array(group.lanes)
            ways = (lanes[mask], lanes[~mask])
            taken, passed = scheduler.fork(group, ways, site.reconvergence)
            scheduler.go_on(taken, target)
            scheduler.go_on(passed, following)

    return branch


@ends("brx")
def _brx(site: Site) -> End:
    index, table = site.instruction.operands
    if not isinstance(table, Vector):
        raise Unsupported("no table of targets")
    targets = [label.index for label in table.elements if isinstance(label, Label)]

    def branch(scheduler: Scheduler, group: Group) -> None:
        context = scheduler.context(site.instruction, group)
        chosen = context.read(index, 32)
        beyond = chosen >= len(targets)
        if beyond.any():
            lane = int(context.lane_indices()[int(np.argmax(beyond))])
            raise context.fault(f"the table of targets has {len(targets)} entries", lane)
        values: list[int] = np.unique(chosen).tolist()
        lanes = lane_array(group.lanes)
        ways = [lanes[chosen == value] for value in values]
        children = scheduler.fork(group, ways, site.reconvergence)
        for child, value in zip(children, values, strict=True):
            scheduler.go_on(child, targets[value])

    return branch


@ends("ret", "exit")
def _exit(site: Site) -> End:
    del site
    return lambda scheduler, group: scheduler.exit(group)


# ---- errors of the program ----------------------------------------------------------------------


@ends("trap")
def _trap(site: Site) -> End:
    def trap(scheduler: Scheduler, group: Group) -> None:
        lane = int(lane_array(group.lanes)[0])
        raise scheduler.batch.fault("trap", "the kernel stops itself", site.instruction, lane)

    return trap


@ends("call")
def _call(site: Site) -> End:
    function, *rest = site.instruction.operands
    if not isinstance(function, Label) or function.name != "__assertfail":
        raise Unsupported("only __assertfail can be called")
    (params,) = rest
    assert isinstance(params, Vector)
    names = [param.name for param in params.elements if isinstance(param, Symbol)]

    def call(scheduler: Scheduler, group: Group) -> None:
        batch = scheduler.batch
        lane = int(lane_array(group.lanes)[0])
        values = [int(batch.call_params[name][lane]) for name in names]
        message, file = (_string(scheduler, address) for address in values[:2])
        raise batch.fault(
            "assert", f"{file}:{values[2]}: assertion failed: {message}", site.instruction, lane
        )

    return call


def _string(scheduler: Scheduler, address: int) -> str:
    """Return the text that ends with a zero byte at an address."""
    found = bytearray()
    while True:
        (byte,) = scheduler.batch.global_memory.read(np.array([address]), 1).reshape(-1).tolist()
        if byte == 0:
            return found.decode("utf-8", "replace")
        found.append(byte)
        address += 1


@executes("st.param")
def store_call_param(instruction: Instruction) -> Callable[[Context], None]:
    """Keep a parameter of the call that follows."""
    place, value = instruction.operands
    if not isinstance(place, Address) or not isinstance(place.base, Symbol) or place.offset:
        raise Unsupported("only whole parameters of a call can be stored")
    name = place.base.name
    bits = int(instruction.modifiers[-1][1:])

    def store(context: Context) -> None:
        assert isinstance(context, LaneContext)
        batch: Batch = context.machine
        kept = batch.call_params.setdefault(name, np.zeros(batch.num_lanes, np.uint64))
        kept[context.lanes] = context.read(value, bits)

    return store


@executes("nanosleep")
def nanosleep(instruction: Instruction) -> Callable[[Context], None]:
    """Let time pass, of which there is none here; the scheduler lets others run."""
    (duration,) = instruction.operands

    def sleep(context: Context) -> None:
        context.read(duration, 32)  # it must be defined

    return sleep
