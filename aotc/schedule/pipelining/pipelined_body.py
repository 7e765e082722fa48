"""The body of a pipelined loop, and the issue of one load for one iteration.

In order: stores to shared memory of what registers hold; the wait, and the loads from shared memory
that the first of their uses needs; the issue of loads for later iterations; the rest as it was.
Other loads from shared memory sink to their first use, to hold registers no longer than needed.

Invariant: what is issued in an iteration depends on nothing that the iteration computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, tile, tma
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, TileType
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.pipelining.load_pipeline import LoopPlan, PlannedLoad
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing

Mapping = dict[Value, Value]
"""From values of the old body to those of one iteration."""


class LoadEmitter:
    """Issue planned loads, before the loop or in it; `buffers` are those of the pipelined loop."""

    def __init__(self, plan: LoopPlan, kernel: Kernel, outer: Builder) -> None:
        self.plan = plan
        self.loop = plan.loop
        self.ring = MbarrierRing.at_entry(kernel, plan.num_stages) if plan.fetches else None
        self.buffers: dict[PlannedLoad, Value] = {}
        order = {op: number for number, op in enumerate(plan.loop.body)}
        self._slices = {
            load: sorted(load.slice.ops, key=order.__getitem__) for load in plan.loads.values()
        }
        self.zero = outer(arith.Constant(0, I32)).out
        self._bounds = lowered_bounds(plan.loop, plan.max_distance, outer)
        self._strides = self._multiples_of_step(outer)

    def _multiples_of_step(self, outer: Builder) -> dict[int, Value]:
        """Return, for each distance, how far ahead the induction variable is."""
        step = self.loop.step
        out: dict[int, Value] = {}
        for load in self.plan.loads.values():
            times = outer(arith.Constant(load.distance, step.type)).out
            out.setdefault(load.distance, outer(arith.Mul(step, times)).out)
        return out

    def stride(self, distance: int) -> Value:
        """Return the growth of the induction variable over `distance` iterations."""
        return self._strides[distance]

    def exists(self, index: Value, distance: int, place: Builder) -> Value:
        """Return whether the iteration `distance` after that of induction value `index` exists."""
        return place(arith.Compare(index, self._bounds[distance], "lt")).out

    def issue(
        self,
        load: PlannedLoad,
        mapping: Mapping,
        exists: Value,
        slot: tuple[Value, int],
        place: Builder,
    ) -> None:
        """Issue a load for the iteration of `mapping`; `slot` is the stage a copy writes."""
        op = load.op
        for inner in self._slices[load]:
            if inner.results[0] not in mapping:
                place(inner.clone(mapping))
        if isinstance(op, tma.Fetch):
            self._fetch(load, mapping, exists, slot, place)
            return
        pointer, mask, other = (
            None if value is None else mapping.get(value, value) for value in op.slots
        )
        assert pointer is not None
        with at(op.loc):
            if load.is_async:
                self._copy(load, pointer, mask, exists, slot, place)
            else:
                slots = [pointer, _both(mask, exists, pointer, place), other]
                made = place(build(gpu.Load, slots, op.attributes, (), op.loc))
                made.out.hint = op.out.hint
                mapping[op.out] = made.out

    def _fetch(
        self,
        load: PlannedLoad,
        mapping: Mapping,
        exists: Value,
        slot: tuple[Value, int],
        place: Builder,
    ) -> None:
        """Issue all tensor loads of an iteration, if `load` is the last of them."""
        fetches = self.plan.fetches
        if load is not fetches[-1]:
            return
        assert self.ring is not None
        copies: list[tuple[tma.Fetch, Value, list[Value]]] = []
        for each in fetches:
            assert isinstance(each.op, tma.Fetch)
            buffer = place(gpu.SharedStage(self.buffers[each], *slot)).out
            inputs = [mapping.get(value, value) for value in each.op.inputs]
            copies.append((each.op, buffer, inputs))
        self.ring.issue(copies, exists, slot, place)

    def _copy(
        self,
        load: PlannedLoad,
        pointer: Value,
        mask: Value | None,
        exists: Value,
        slot: tuple[Value, int],
        place: Builder,
    ) -> None:
        op = load.op
        assert load.trip is not None
        assert isinstance(op, gpu.Load)
        for rename in load.trip.renames:
            pointer = _renamed(rename, pointer, place)
            mask = None if mask is None else _renamed(rename, mask, place)
        target = place(gpu.SharedStage(self.buffers[load], *slot)).out
        place(
            gpu.AsyncCopy(
                pointer,
                target,
                mask,
                exists,
                load.vector,
                op.cache,
                op.eviction,
                op.prefetch_bytes,
            )
        )


def _renamed(rename: Op, value: Value, place: Builder) -> Value:
    return place(rename.clone({rename.operands[0]: value})).results[0]


def _both(mask: Value | None, exists: Value, pointer: Value, place: Builder) -> Value:
    """Return the mask of a load that is issued only if its iteration exists."""
    kind = pointer.type
    if isinstance(kind, TileType):
        exists = place(tile.Splat(exists, kind.shape, kind.layout)).out
    return exists if mask is None else place(arith.And(mask, exists)).out


class PipelinedBody:
    """Emit the body; `inits` are the initial values of what it carries.

    `home` maps values of the old body to those of the current iteration, `ahead[d]` to those of
    the iteration `d` later. Carried are first the variables of the old loop that are still
    needed, then their counterparts that run ahead, loaded tiles, and stage indices.
    """

    def __init__(
        self, plan: LoopPlan, emitter: LoadEmitter, early: Callable[[Value, int], Value]
    ) -> None:
        self.plan = plan
        self.emitter = emitter
        self.inits: list[Value] = []
        old = plan.loop
        self.block = Block([old.induction.type], [old.induction.hint])
        self.place = Builder(self.block)
        loads = list(plan.loads.values())
        self.home: Mapping = {old.induction: self.block.args[0]}
        # What is loaded furthest ahead comes last: by then the one before it has been used, so
        # that both can have the same registers.
        self.ahead: dict[int, Mapping] = {
            distance: {} for distance in sorted({load.distance for load in loads})
        }
        self._next: list[Callable[[], Value]] = []
        for variable in plan.carried:
            init = old.init[variable.index - 1]
            assert init is not None
            self.home[variable] = self._carry(
                init, variable.hint, self._yield_of(variable, self.home)
            )
        for distance, mapping in self.ahead.items():
            for variable in self._variables(distance):
                init = early(variable, distance)
                following = self._yield_of(variable, mapping)
                mapping[variable] = self._carry(init, variable.hint, following)
        for load in loads:
            if not load.lands:
                self._carry_loaded(load, early)
        self.counters: dict[int, Value] = {}
        for load in emitter.buffers:
            slots = plan.buffer_stages(load)
            if slots not in self.counters:
                counter = self._carry(emitter.zero, "slot", lambda n=slots: self._next_stage(n))
                self.counters[slots] = counter
        self.phases = self._carry_phases()
        self._loads_of: dict[Op | None, PlannedLoad] = {
            load.buffer: load for load in emitter.buffers
        }
        self._deferred: dict[Op | None, gpu.SharedLoad] = {}
        self._waited = False

    # -- carried values --------------------------------------------------------

    def _variables(self, distance: int) -> dict[Value, None]:
        return {
            variable: None
            for load in self.plan.loads.values()
            if load.distance == distance
            for variable in load.slice.carried
        }

    def _carry(self, init: Value, hint: str, following: Callable[[], Value]) -> Value:
        self.inits.append(init)
        self._next.append(following)
        return self.block.add_arg(init.type, hint)

    def _yield_of(self, variable: Value, mapping: Mapping) -> Callable[[], Value]:
        value = self.plan.yielded(variable)
        return lambda: mapping.get(value, value)

    def _carry_phases(self) -> Value | None:
        """Carry the phase bits of the next waits for tensor loads, if there are any."""
        ring = self.emitter.ring
        if ring is None:
            return None

        def following() -> Value:
            assert self._phases_after is not None
            return self._phases_after

        self._phases_after: Value | None = None
        return self._carry(ring.start, "phases", following)

    def _carry_loaded(self, load: PlannedLoad, early: Callable[[Value, int], Value]) -> None:
        """Carry the tiles loaded for later iterations; each moves one place on."""
        assert isinstance(load.op, gpu.Load)
        value, issued = load.op.out, self.ahead[load.distance]
        held: list[Value] = []
        for distance in range(load.first_use, load.distance):
            place = len(held) + 1

            def following(place: int = place) -> Value:
                return held[place] if place < len(held) else issued[value]

            held.append(self._carry(early(value, distance), value.hint, following))
            mapping = self.ahead.get(distance) if distance else self.home
            if mapping is not None:
                mapping[value] = held[-1]

    def _next_stage(self, num_stages: int) -> Value:
        return self.place(gpu.NextStage(self.counters[num_stages], num_stages)).out

    # -- the ops ---------------------------------------------------------------

    def write(self) -> Block:
        """Return the body."""
        done = self._store_loaded()
        rest: list[Op] = []
        for op in self.plan.loop.body:
            if op not in self.plan.live or op in done or op in self._loads_of:
                continue
            if isinstance(op, gpu.SharedLoad) and op.buffer.op in self._loads_of:
                self._deferred[op] = op
            else:
                rest.append(op)
        uses = [list(free_operands(op)) for op in rest]
        uses.append([self.plan.yielded(variable) for variable in self.plan.carried])
        if self.plan.copies or self.plan.fetches:
            self._make_ready(next(filter(self._lies_in_shared, uses), ()))
        self._issue()
        for op, values in zip(rest, uses, strict=False):
            self._make_ready(values)
            if not any(out in self.home for out in op.results):
                self.place(op.clone(self.home))
        self._make_ready(uses[-1])
        self.place(scf.Yield([following() for following in self._next]))
        return self.block

    def _slot(self, load: PlannedLoad) -> Value:
        """Return the stage that holds a load of the current iteration."""
        assert load.buffer is not None
        buffer = load.buffer.out
        if buffer not in self.home:
            counter = self.counters[self.plan.buffer_stages(load)]
            self.home[buffer] = self.place(gpu.SharedStage(self.emitter.buffers[load], counter)).out
        return self.home[buffer]

    def _store_loaded(self) -> dict[Op, None]:
        """Store loaded registers to shared memory; return the ops that this replaces."""
        done: dict[Op, None] = {}
        for load in self.plan.loads.values():
            if load.trip is None or load.is_async:
                continue
            self._slot(load)
            for op in (*load.trip.renames, load.trip.store):
                self.place(op.clone(self.home))
                done[op] = None
        return done

    def _make_ready(self, values: Iterable[Value]) -> None:
        """Load those of `values` that are in shared memory."""
        wanted = dict.fromkeys(values)
        loads = [op for op in self._deferred.values() if op.out in wanted]
        buffers = [value.op for value in wanted if value.op in self._loads_of]
        buffers += [op.buffer.op for op in loads]
        if buffers and not self._waited:
            self._wait()
            self._waited = True
        for buffer in buffers:
            self._slot(self._loads_of[buffer])
        for op in loads:
            del self._deferred[op]
            for value in op.operands:
                self._bring_up(value)
            self.place(op.clone(self.home))

    def _bring_up(self, value: Value) -> None:
        """Compute the inputs of a mask ahead of their place, if they are not there yet."""
        op = value.op
        if op is None or value in self.home or op.block is not self.plan.loop.body:
            return
        for each in free_operands(op):
            self._bring_up(each)
        self.place(op.clone(self.home))

    def _wait(self) -> None:
        """Wait for all copies and tensor loads of the current iteration."""
        if self.plan.copies:
            # All commit groups but those of the iterations that follow the current one.
            self.place(gpu.AsyncWait(self.plan.copy_distance - 1))
        if self.emitter.ring is not None and self.phases is not None:
            slot = self.counters[self.plan.num_stages]
            self._phases_after = self.emitter.ring.wait(slot, self.phases, self.place)

    def _lies_in_shared(self, values: Iterable[Value]) -> bool:
        return any(value.op in self._deferred or value.op in self._loads_of for value in values)

    def _issue(self) -> None:
        """Issue the loads of later iterations."""
        for distance, mapping in self.ahead.items():
            index = self.home[self.plan.loop.induction]
            exists = self.emitter.exists(index, distance, self.place)
            stride = self.emitter.stride(distance)
            mapping[self.plan.loop.induction] = self.place(arith.Add(index, stride)).out
            for load in self.plan.loads.values():
                if load.distance == distance:
                    slot = (self.counters.get(self.plan.buffer_stages(load), index), distance)
                    self.emitter.issue(load, mapping, exists, slot, self.place)
        if self.plan.copies:
            self.place(gpu.AsyncCommit())
