"""Races in shared memory against a model that remembers every access."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.shared_memory import BASE_ADDRESS, SharedMemory
from aotc.verify.emulator.memory.vector_clocks import Clocks, Order
from aotc.verify.emulator.syntax import Instruction
from tests.support.extent import examples

WARPS = 2
LANES = (0, 1, 33, 40)  # two of each warp
CELLS = 2
ACCESS = Instruction("ld", (), (), None, 7, "an access")


class Model:
    """Each lane's observed accesses, and all accesses to each cell: (number, lane, writes)."""

    def __init__(self):
        self.count = 0
        self.seen = {lane: set() for lane in LANES}
        self.cells = [[] for _ in range(CELLS)]

    def access(self, lane, cell, *, writes):
        """Record an access; return whether it races for certain, and whether it may."""
        late = [
            (number, other, wrote)
            for number, other, wrote in self.cells[cell]
            if (writes or wrote) and number not in self.seen[lane]
        ]
        # The shadow keeps the last write, and the last read of each warp.
        last_accesses = {number for number, _, wrote in self.cells[cell] if wrote}
        last_accesses = {max(last_accesses, default=-1)}
        for warp in range(WARPS):
            reads = [
                n for n, reader, wrote in self.cells[cell] if not wrote and reader // 32 == warp
            ]
            last_accesses.add(max(reads, default=-1))
        self.cells[cell].append((self.count, lane, writes))
        self.seen[lane].add(self.count)
        self.count += 1
        return any(number in last_accesses for number, _, _ in late), bool(late)

    def meet(self, lanes):
        union = set().union(*(self.seen[lane] for lane in lanes))
        for lane in lanes:
            self.seen[lane] = set(union)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("load", "store", "store", "join", "warp_sync")),
        st.sampled_from(LANES),
        st.integers(0, CELLS - 1),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from((1, 2, 4)))
@settings(max_examples=examples(200), deadline=None)
def test_finds_races_and_invents_none(steps, granule_bytes):
    model, order = Model(), Order(1, WARPS)
    memory = SharedMemory(1, 4 * CELLS, order, granule_bytes=granule_bytes)
    start = BASE_ADDRESS + 4 * np.arange(CELLS)
    zeros = np.zeros((CELLS, 4), np.uint8)
    memory.store(np.zeros(CELLS, np.int64), start, zeros, ACCESS)
    order.join(np.arange(WARPS)[None])
    for number, (kind, lane, cell) in enumerate(steps):
        if kind == "join":
            order.join(np.arange(WARPS)[None])
            model.meet(LANES)
        elif kind == "warp_sync":
            order.warp_sync(np.array([lane // 32]))
            model.meet([other for other in LANES if other // 32 == lane // 32])
        else:
            certain, possible = model.access(lane, cell, writes=kind == "store")
            lanes, where = np.array([lane]), BASE_ADDRESS + np.array([4 * cell])
            value = np.full((1, 4), number + 1, np.uint8)
            try:
                if kind == "store":
                    memory.store(lanes, where, value, ACCESS)
                else:
                    memory.load(lanes, where, 4, ACCESS)
            except Misuse as misuse:
                assert misuse.kind == "race"
                assert possible
                return
            assert not certain


def prepared(granule_bytes=4, warps=1):
    order = Order(1, warps)
    return order, SharedMemory(1, 64, order, granule_bytes=granule_bytes)


def test_access_below_the_granule_is_our_mistake():
    _, memory = prepared(granule_bytes=8)
    with pytest.raises(ValueError, match="4 bytes, but granules of 8"):
        memory.load(slice(0, 1), np.array([BASE_ADDRESS]), 4, ACCESS)


def begin(memory, **options):
    lanes, address = np.zeros(2, np.int64), BASE_ADDRESS + np.array([0, 16])
    return memory.begin(lanes, address, 16, ACCESS, **options)


def written(memory):
    data = np.arange(32, dtype=np.uint8).reshape(2, 16)
    memory.store(np.zeros(2, np.int64), BASE_ADDRESS + np.array([0, 16]), data, ACCESS)
    return data


def refused(kind, call, *args, **options):
    with pytest.raises(Misuse) as caught:
        call(*args, **options)
    assert caught.value.kind == kind
    return caught.value


def test_the_proxy_needs_a_fence_except_for_its_own_writes():
    order, memory = prepared()
    written(memory)
    assert "an access" in refused("proxy", begin, memory, writes=False).notes[0]
    order.fence_proxy(np.array([0]))
    memory.finish(begin(memory, writes=False))
    flight = begin(memory, writes=True)
    memory.poke(flight, np.ones((2, 16), np.uint8))
    memory.finish(flight, asynchronous=True)
    refused("race", begin, memory, writes=False)
    tokens = Clocks(1, order.columns)
    order.release_async(tokens, np.array([0]))
    order.acquire(np.array([0]), tokens, np.array([0]))
    assert (memory.peek(begin(memory, writes=False)) == 1).all()


def test_generic_copies_need_no_fence():
    _, memory = prepared()
    data = written(memory)
    assert (memory.peek(begin(memory, writes=False, proxy=False)) == data).all()


def test_several_operations_may_read_and_none_write_meanwhile():
    _, memory = prepared()
    data = written(memory)
    first = begin(memory, writes=False, proxy=False)
    second = begin(memory, writes=False, proxy=False)
    memory.finish(first)
    where = (np.array([0]), np.array([BASE_ADDRESS + 28]))
    assert (memory.load(*where, 4, ACCESS) == data[1, 12:]).all()
    fault = refused("in-flight", memory.store, *where, np.zeros((1, 4), np.uint8), ACCESS)
    assert "byte 28" in fault.message
    assert "an access" in fault.notes[0]
    memory.finish(second)
    memory.store(*where, np.zeros((1, 4), np.uint8), ACCESS)


def test_readers_of_pieces_of_any_size_are_counted_alike():
    _, memory = prepared()
    written(memory)
    lanes, store = np.zeros(2, np.int64), np.zeros((1, 4), np.uint8)
    addresses = {size: BASE_ADDRESS + np.array([0, size]) for size in (4, 8, 16)}
    flights = [
        memory.begin(lanes, address, size, ACCESS, writes=False, proxy=False)
        for size, address in addresses.items()
    ]
    for flight, last in zip(flights, (4, 8, 16), strict=True):
        where = (np.array([0]), np.array([BASE_ADDRESS + last]))
        refused("in-flight", memory.store, *where, store, ACCESS)
        memory.shadow.finish_reads([flight])
    memory.store(np.array([0]), np.array([BASE_ADDRESS]), store, ACCESS)


def test_loads_of_several_instructions_are_checked_for_each_lane():
    """The last lane of a warp wrote it itself, unseen by the others."""
    order, memory = prepared(warps=2)
    memory.store(np.array([31]), np.array([BASE_ADDRESS]), np.zeros((1, 4), np.uint8), ACCESS)
    lanes, address = np.arange(32), np.full((2, 32), BASE_ADDRESS)
    refused("race", memory.load_each, lanes, address, 4, [ACCESS, ACCESS])
    order.warp_sync(np.array([0]))
    memory.load_each(lanes, address, 4, [ACCESS, ACCESS])
    # All of them have read it, unseen by the other warp.
    where = (np.array([32]), np.array([BASE_ADDRESS]))
    refused("race", memory.store, *where, np.ones((1, 4), np.uint8), ACCESS)


def test_operation_finishes_piece_by_piece():
    _, memory = prepared()
    flight = begin(memory, writes=True, proxy=False)
    memory.poke(flight, np.full((2, 16), 9, np.uint8))
    memory.finish(flight, np.array([False, True]))
    first, second = BASE_ADDRESS + np.array([[0], [16]])
    assert (memory.load(np.array([0]), second, 16, ACCESS) == 9).all()
    refused("in-flight", memory.load, np.array([0]), first, 16, ACCESS)
    memory.finish(flight)
    memory.finish(flight)
    assert (memory.load(np.array([0]), first, 16, ACCESS) == 9).all()


def test_host_memory_is_foretold():
    order = Order(2, 3)
    memory = SharedMemory(2, 1024, order, granule_bytes=4)
    expected = SharedMemory.bytes_per_cta(1024, 3, 4)
    shadow = memory.shadow  # reads of threads are kept once more
    arrays = [memory._data, shadow._written, *[shadow._read] * 2, shadow._all_marks()]
    assert sum(array.nbytes for array in arrays) == 2 * expected
