from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.expression import parse
from aotc.package.archive import index
from aotc.package.tuning.device import DEVICES
from aotc.package.tuning.estimate import CONSTANTS, estimate, resident_ctas
from aotc.package.tuning.launch_arrays import Launches
from aotc.target import TARGETS
from aotc.work import Part, Segment, Transfer, Work

_TARGET = TARGETS["sm_90a"]
_DEVICE = DEVICES["sm_90a"]
_SEGMENT = Segment(-1, "1", False, 100, 0, 0, (), 500, ())
_VARIANT = index.Variant("sm_90a", "kernel", b"", num_threads=128, registers=32, grid=(parse("m"),))


def _seconds(work: Work, variant: index.Variant = _VARIANT, **launches: list[int]) -> list[float]:
    columns = {name: np.array(values, np.int64) for name, values in launches.items()}
    return estimate(variant, work, _TARGET, _DEVICE, Launches(columns)).tolist()


def _reading(origin: str, times: str = "1", **changes: object) -> Work:
    load = Transfer("x", 1 << 16, is_store=False, origins=(origin,), moves=True)
    loads = (replace(load, **changes),)
    return Work((replace(_SEGMENT, times=times, stall=10, transfers=loads),))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=8), st.integers(0, 1 << 40))
def test_estimates_are_times_whatever_the_launch(sizes: list[int], stride: int) -> None:
    work = _reading("__p0 * stride // (m - 5)", "m % (stride - 1)")
    for seconds in _seconds(work, m=sizes, stride=[stride] * len(sizes)):
        assert 0 < seconds < math.inf


def test_whole_waves_take_as_long_each() -> None:
    slots = _DEVICE.num_sms * resident_ctas(_VARIANT, _TARGET)
    work = Work((replace(_SEGMENT, instructions=1e6, stall=1e6),))
    single, two, four = _seconds(work, m=[slots, 2 * slots, 4 * slots])
    assert two / single == pytest.approx(2, rel=0.05)
    assert four / single == pytest.approx(4, rel=0.2)


def test_a_tail_takes_as_long_as_its_ctas() -> None:
    slots = _DEVICE.num_sms * resident_ctas(_VARIANT, _TARGET)
    work = Work((replace(_SEGMENT, instructions=1e3, stall=1e6),))
    single, more = _seconds(work, m=[slots, slots + 1])
    assert more / single == pytest.approx(2, rel=0.2)


def test_bytes_bound_the_time() -> None:
    (seconds,) = _seconds(_reading(f"__p0 * {1 << 16}"), m=[1 << 16])
    assert seconds >= (1 << 32) / _DEVICE.dram_bytes_per_second
    assert seconds < 2 * (1 << 32) / _DEVICE.dram_bytes_per_second


def test_bytes_that_programs_share_come_from_dram_once() -> None:
    launches = {"m": [1 << 16]}
    apart, shared = (
        _seconds(_reading(f"{o} * {1 << 16}"), **launches) for o in ("__p0", "__p0 % 8")
    )
    assert shared[0] < apart[0]


def test_bytes_outside_of_a_tensor_are_not_moved() -> None:
    part = (Part("n", 1 << 15, of_loop=False),)
    work = _reading(f"__p0 * {1 << 16}", parts=part)
    few, every = _seconds(work, m=[1 << 16] * 2, n=[1 << 10, 1 << 15])
    assert few < every / 8


def test_loads_in_flight_hide_latency() -> None:
    """The same copies, two or four in flight: a launch of few CTAs waits for them."""
    two, four = (
        _seconds(_reading("__p0", "1000", stages=stages, size_bytes=1024), m=[8])[0]
        for stages in (2, 4)
    )
    assert two > 1.3 * four


def test_tensor_cores_are_as_fast_as_operands_are_narrow() -> None:
    wide, narrow = (
        _seconds(Work((replace(_SEGMENT, dots=((kind, 1 << 30),)),)), m=[132])[0]
        for kind in ("wgmma.bf16", "wgmma.fp8e4nv")
    )
    assert wide / narrow == pytest.approx(2, rel=0.05)


def test_fewer_ctas_fit_with_more_of_anything() -> None:
    resident = resident_ctas(_VARIANT, _TARGET)
    assert resident == 16
    assert resident_ctas(replace(_VARIANT, registers=128), _TARGET) == 4
    assert resident_ctas(replace(_VARIANT, dynamic_shared_bytes=100 << 10), _TARGET) == 2
    assert resident_ctas(replace(_VARIANT, num_threads=1024), _TARGET) == 2


def test_every_target_has_a_device() -> None:
    assert list(DEVICES) == list(TARGETS)
    for name, device in DEVICES.items():
        assert device.num_sms == TARGETS[name].num_sms
    assert CONSTANTS.launch_seconds > 0
