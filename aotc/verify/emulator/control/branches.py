"""Control flow: jumps, exits, traps and calls of device functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from aotc.verify.arrays import reshape
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.divergence import Group, lane_array
from aotc.verify.emulator.engine.lane_context import LaneContext
from aotc.verify.emulator.engine.machine import Batch
from aotc.verify.emulator.engine.registry import executes
from aotc.verify.emulator.engine.terminators import End, LaneControl, Site, ends, falls_through
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.memory.global_memory import LOCAL_WINDOW
from aotc.verify.emulator.syntax import Address, Instruction, Label, Symbol, Vector
from aotc.verify.printf import Number, format_numbers, places_of

# ---- jumps --------------------------------------------------------------------------------------


@ends("bra")
def _bra(site: Site) -> End:
    (label,) = site.instruction.operands
    assert isinstance(label, Label)
    target, following = label.index, site.following
    if site.instruction.guard is None:
        return falls_through(target)
    predicate = site.decoder.predicate(site.instruction)

    def branch(scheduler: LaneControl, group: Group) -> None:
        mask = predicate(group.lanes)
        if mask.all():
            scheduler.continue_at(group, target)
        elif not mask.any():
            scheduler.continue_at(group, following)
        else:
            lanes = lane_array(group.lanes)
            ways = (lanes[mask], lanes[~mask])
            jumping, falling = scheduler.fork(group, ways, site.reconvergence)
            scheduler.continue_at(jumping, target)
            scheduler.continue_at(falling, following)

    return branch


@ends("brx")
def _brx(site: Site) -> End:
    index, table = site.instruction.operands
    if not isinstance(table, Vector):
        raise Unsupported("no table of targets")
    targets = [label.index for label in table.elements if isinstance(label, Label)]

    def branch(scheduler: LaneControl, group: Group) -> None:
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
            scheduler.continue_at(child, targets[value])

    return branch


@ends("ret", "exit")
def _exit(site: Site) -> End:
    del site
    return lambda scheduler, group: scheduler.exit(group)


# ---- errors of the program ----------------------------------------------------------------------


@ends("trap")
def _trap(site: Site) -> End:
    def trap(scheduler: LaneControl, group: Group) -> None:
        lane = int(lane_array(group.lanes)[0])
        raise scheduler.batch.fault("trap", "the kernel stops itself", site.instruction, lane)

    return trap


# ---- functions of the driver's ------------------------------------------------------------------


@ends("call")
def _call(site: Site) -> End:
    operands = [operand for operand in site.instruction.operands if not isinstance(operand, Label)]
    callee = next(
        (operand for operand in site.instruction.operands if isinstance(operand, Label)), None
    )
    rule = _FUNCTIONS.get("" if callee is None else callee.name)
    if rule is None:
        raise Unsupported(f"only {' and '.join(_FUNCTIONS)} can be called")
    params = operands[-1]  # operands before it are for a result
    assert isinstance(params, Vector)
    names = [param.name for param in params.elements if isinstance(param, Symbol)]
    return rule(site, names)


def _assert_fail(site: Site, names: Sequence[str]) -> End:
    def call(scheduler: LaneControl, group: Group) -> None:
        batch = scheduler.batch
        lane = int(lane_array(group.lanes)[0])
        values = [int(batch.call_params[name][lane]) for name in names]
        message, file = (_string(scheduler, address) for address in values[:2])
        raise batch.fault(
            "assert", f"{file}:{values[2]}: assertion failed: {message}", site.instruction, lane
        )

    return call


def _print(site: Site, names: Sequence[str]) -> End:
    """Record each lane's output in lane order; hardware's order is arbitrary."""
    text_name, buffer_name = names

    def call(scheduler: LaneControl, group: Group) -> None:
        batch = scheduler.batch
        for lane in lane_array(group.lanes).tolist():
            text = _string(scheduler, int(batch.call_params[text_name][lane]))
            start = int(batch.call_params[buffer_name][lane]) - LOCAL_WINDOW
            numbers: list[Number] = []
            for argument in places_of(text):
                address = np.array([start + argument.offset])
                data = batch.local.read(np.array([lane]), address, argument.size_bytes)
                numbers.append(argument.number(data.tobytes()))
            batch.printed.append(format_numbers(text, iter(numbers)))
        scheduler.continue_at(group, site.following)

    return call


_FUNCTIONS: Mapping[str, Callable[[Site, Sequence[str]], End]] = {
    "__assertfail": _assert_fail,
    "vprintf": _print,
}


def _string(scheduler: LaneControl, address: int) -> str:
    """Return the zero-terminated string at an address."""
    text = bytearray()
    while True:
        (byte,) = reshape(scheduler.batch.global_memory.read(np.array([address]), 1), -1).tolist()
        if byte == 0:
            return text.decode("utf-8", "replace")
        text.append(byte)
        address += 1


@executes("st.param")
def store_call_param(instruction: Instruction) -> Callable[[Context], None]:
    """Record a parameter of the next call."""
    address, value = instruction.operands
    if not isinstance(address, Address) or not isinstance(address.base, Symbol) or address.offset:
        raise Unsupported("only whole parameters of a call can be stored")
    name = address.base.name
    bits = int(instruction.modifiers[-1][1:])

    def store(context: Context) -> None:
        assert isinstance(context, LaneContext)
        batch: Batch = context.machine
        lane_values = batch.call_params.setdefault(name, np.zeros(batch.num_lanes, np.uint64))
        lane_values[context.lanes] = context.read(value, bits)

    return store


@executes("nanosleep")
def nanosleep(instruction: Instruction) -> Callable[[Context], None]:
    """Do nothing: the emulator has no time, and the scheduler lets others run."""
    (duration,) = instruction.operands

    def sleep(context: Context) -> None:
        context.read(duration, 32)  # it must be defined

    return sleep
