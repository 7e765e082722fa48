"""Vector clocks against a model that remembers every access."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory import vector_clocks as order_module
from aotc.verify.emulator.memory.vector_clocks import (
    GENERIC,
    PROXY,
    Clocks,
    Order,
    column_of,
    lane_of,
    number_of,
)
from tests.support.extent import examples

WARPS, LANES = 3, 96
TOKENS = 2


class Model:
    """Each lane's observed accesses, and those handed to the asynchronous proxy, as number sets."""

    def __init__(self):
        self.accesses = 0
        self.seen = [[set() for _ in range(LANES)] for _ in range(2)]
        self.tokens = [[set() for _ in range(TOKENS)] for _ in range(2)]

    def access(self, lane):
        self.seen[GENERIC][lane].add(self.accesses)
        self.accesses += 1

    def meet(self, lanes):
        for seen in self.seen:
            union = set().union(*(seen[lane] for lane in lanes))
            for lane in lanes:
                seen[lane] = set(union)

    def release(self, lanes, token):
        for seen, tokens in zip(self.seen, self.tokens, strict=True):
            tokens[token] |= set().union(*(seen[lane] for lane in lanes))

    def acquire(self, lanes, token):
        for seen, tokens in zip(self.seen, self.tokens, strict=True):
            for lane in lanes:
                seen[lane] |= tokens[token]

    def fence(self, lanes):
        for lane in lanes:
            self.seen[PROXY][lane] |= self.seen[GENERIC][lane]


def lanes_of(warp, mask):
    return np.array([warp * 32 + lane for lane in range(32) if mask >> lane & 1])


def run(steps):
    """Run the steps in both; return the model, the clocks and the accesses' stamps and lanes."""
    model, order = Model(), Order(1, WARPS)
    tokens = Clocks(TOKENS, order.columns)
    stamps = []
    for kind, warp, mask, token in steps:
        lanes = lanes_of(warp, mask)
        rows = np.full(len(lanes), token)
        if kind == "access":
            lane = int(lanes[0])
            stamps.append((int(order.stamps(lanes[:1], len(stamps))[0]), lane))
            model.access(lane)
        elif kind == "join":
            warps = [w for w in range(WARPS) if w != warp or token]
            order.join(np.array([warps]))
            model.meet([lane for w in warps for lane in range(32 * w, 32 * w + 32)])
        elif kind == "warp_sync":
            order.warp_sync(np.array([warp]))
            model.meet(range(32 * warp, 32 * warp + 32))
        elif kind == "release":
            order.release(lanes, tokens, rows)
            model.release(lanes.tolist(), token)
        elif kind == "acquire":
            order.acquire(lanes, tokens, rows)
            model.acquire(lanes.tolist(), token)
        else:
            order.fence_proxy(lanes)
            model.fence(lanes.tolist())
    return model, order, stamps


def disagreements(model, order, stamps, kind):
    """Yield access, lane, and the verdicts of the model and of the clocks."""
    everyone = np.arange(LANES)
    for number, (stamp, _) in enumerate(stamps):
        late = order.unordered(everyone, np.full((LANES, 1), stamp), kind)[:, 0]
        for lane in range(LANES):
            expected = number not in model.seen[kind][lane]
            if expected != late[lane]:
                yield number, lane, expected, bool(late[lane])


KINDS = st.sampled_from(("access", "access", "join", "warp_sync", "release", "acquire", "fence"))


def steps(masks):
    return st.lists(
        st.tuples(KINDS, st.integers(0, WARPS - 1), masks, st.integers(0, TOKENS - 1)),
        max_size=25,
    )


def proxy_disagreements(model, order, stamps):
    """Yield accesses and lanes where model and clocks differ on a read by the proxy."""
    everyone = np.arange(LANES)
    for number, (stamp, _) in enumerate(stamps):
        column = np.full((LANES, 1), stamp)
        late = order.unordered(everyone, column) | order.unordered(everyone, column, PROXY)
        for lane in range(LANES):
            ready = all(number in model.seen[kind][lane] for kind in (GENERIC, PROXY))
            if ready == late[lane, 0]:
                yield number, lane


def test_a_fence_is_not_granted_to_other_lanes_of_its_warp():
    """Lane 1 learns of the access but not of lane 0's fence."""
    whole = 0xFFFFFFFF
    acts = [(kind, 0, whole, 0) for kind in ("access", "release", "fence", "acquire")]
    model, order, stamps = run(acts)
    assert 0 in model.seen[GENERIC][1]
    assert 0 not in model.seen[PROXY][1]
    stamp = np.array([[stamps[0][0]]])
    assert order.unordered(np.array([1]), stamp, PROXY).all()
    assert not order.unordered(np.array([0]), stamp, PROXY).any()
    order.warp_sync(np.array([0]))
    assert not order.unordered(np.array([1]), stamp, PROXY).any()


# An access is by the lowest lane of its mask, and all lanes do everything else.
@given(steps(st.just(0xFFFFFFFF)))
@settings(max_examples=examples(60), deadline=None)
def test_whole_warps_are_exact(drawn):
    model, order, stamps = run(drawn)
    assert not list(disagreements(model, order, stamps, GENERIC))
    assert not list(proxy_disagreements(model, order, stamps))


@given(steps(st.sampled_from((0xFFFFFFFF, 0x1, 0x80000000, 0xFFFF, 0x2))))
@settings(max_examples=examples(120), deadline=None)
def test_parts_of_warps_never_invent_a_race(drawn):
    model, order, stamps = run(drawn)
    for kind in (GENERIC, PROXY):
        assert not [
            disagreement
            for disagreement in disagreements(model, order, stamps, kind)
            if not disagreement[2]
        ]


@given(steps(st.just(0x10)))
@settings(max_examples=examples(60), deadline=None)
def test_one_elected_lane_a_warp_is_exact(drawn):
    model, order, stamps = run(drawn)
    differing = [
        entry
        for entry in disagreements(model, order, stamps, GENERIC)
        # A barrier passed by a single lane is a barrier of its warp all the same.
        if entry[1] % 32 == 4
    ]
    assert not differing


def stamp_of(order, lane):
    return int(order.stamps(np.array([lane]), 7)[0])


def is_late(order, lane, stamp, kind=GENERIC):
    return bool(order.unordered(np.array([lane]), np.array([[stamp]]), kind)[0, 0])


def test_a_stamp_encodes_lane_and_instruction():
    order = Order(4, 2, cluster_size=2)
    stamp = int(order.stamps(np.array([5 * 32 + 9]), 1234)[0])  # warp 1 of the third block
    assert (column_of(stamp), lane_of(stamp), number_of(stamp)) == (1, 9, 1234)


def test_own_accesses_are_seen_and_neighbours_only_after_a_warp_sync():
    order = Order(1, 1)
    stamp = stamp_of(order, 3)
    assert not is_late(order, 3, stamp)
    assert is_late(order, 4, stamp)
    order.warp_sync(np.array([0]))
    assert not is_late(order, 4, stamp)
    assert is_late(order, 4, stamp_of(order, 3))


def test_blocks_join_separately():
    order = Order(2, 2)
    stamp = stamp_of(order, 0)
    order.join(np.array([[2, 3]]))
    assert is_late(order, 32, stamp)
    order.join(np.array([[0, 1], [2, 3]]))
    assert not is_late(order, 32, stamp)


def test_elected_lanes_arrival_does_not_speak_for_its_warp():
    order = Order(1, 2)
    tokens = Clocks(1, order.columns)
    neighbour, elected = stamp_of(order, 1), stamp_of(order, 0)
    order.release(np.array([0]), tokens, np.array([0]))
    order.acquire(np.arange(32, 64), tokens, np.zeros(32, np.int64))
    assert not is_late(order, 40, elected)
    assert is_late(order, 40, neighbour)


def test_elected_lanes_wait_does_not_speak_for_its_warp():
    order = Order(1, 2)
    tokens = Clocks(1, order.columns)
    stamp = stamp_of(order, 0)
    order.release(np.arange(32), tokens, np.zeros(32, np.int64))
    order.acquire(np.array([40]), tokens, np.array([0]))
    assert not is_late(order, 40, stamp)
    assert is_late(order, 41, stamp)
    order.warp_sync(np.array([1]))
    assert not is_late(order, 41, stamp)


def test_an_elected_lane_passes_on_its_clock():
    order = Order(1, 3)
    tokens = Clocks(2, order.columns)
    stamp = stamp_of(order, 0)
    order.release(np.array([0]), tokens, np.array([0]))
    order.acquire(np.array([40]), tokens, np.array([0]))
    order.release(np.array([41]), tokens, np.array([1]))
    order.acquire(np.array([64]), tokens, np.array([1]))
    assert is_late(order, 64, stamp)
    order.release(np.array([40]), tokens, np.array([1]))
    order.acquire(np.array([64]), tokens, np.array([1]))
    assert not is_late(order, 64, stamp)


def test_a_fence_hands_over_an_elected_lanes_acquisitions():
    order = Order(1, 2)
    tokens = Clocks(1, order.columns)
    stamp = stamp_of(order, 0)
    order.release(np.array([0]), tokens, np.array([0]))
    order.acquire(np.array([40]), tokens, np.array([0]))
    assert is_late(order, 40, stamp, PROXY)
    order.fence_proxy(np.array([40]))
    assert not is_late(order, 40, stamp, PROXY)


def test_fence_of_the_writer_travels_through_a_barrier():
    order = Order(1, 2)
    fenced = stamp_of(order, 0)
    order.fence_proxy(np.arange(32))
    after = stamp_of(order, 0)
    order.join(np.array([[0, 1]]))
    assert not is_late(order, 32, fenced, PROXY)
    assert is_late(order, 32, after, PROXY)
    assert not is_late(order, 32, after)


def test_fence_of_the_reader_after_a_barrier():
    order = Order(1, 2)
    stamp = stamp_of(order, 0)
    order.fence_proxy(np.arange(32, 64))
    order.join(np.array([[0, 1]]))
    assert is_late(order, 32, stamp, PROXY)
    order.fence_proxy(np.array([32]))
    assert not is_late(order, 32, stamp, PROXY)


def test_asynchronous_agent_is_seen_through_its_token_alone():
    order = Order(1, 1)
    tokens = Clocks(1, order.columns)
    stamp = order.async_stamp(7)
    order.join(np.array([[0]]))
    assert is_late(order, 0, stamp)
    assert not is_late(order, 0, stamp, PROXY)
    order.release_async(tokens, np.array([0]))
    order.acquire(np.arange(32), tokens, np.zeros(32, np.int64))
    assert not is_late(order, 0, stamp)
    assert is_late(order, 0, order.async_stamp(7))


def test_floor_is_raised_by_barriers():
    order = Order(2, 2)
    stamps = order.stamps(slice(0, 128), 1)
    assert (stamps > order.floor.min()).all()
    order.join(np.array([[0, 1], [2, 3]]))
    assert (stamps <= order.floor[order.views_of(np.arange(128))]).all()


def test_time_ends(monkeypatch):
    monkeypatch.setattr(order_module, "_TIME_END", 3)
    order = Order(1, 1)
    order.warp_sync(np.array([0]))
    with pytest.raises(Misuse, match="more than 3 times"):
        order.warp_sync(np.array([0]))
