"""Racing loads read random bits from the second run on, in the racing lanes alone."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.emulator.memory.stale_loads import StaleLoads
from tests.support.ptx_kernel import faults, run

# Each thread of two warps loads an element; the first warp halves it in place.
IN_PLACE = """
    and.b32 %r2, %r0, 31;
    mul.wide.u32 %rd10, %r2, 4;
    add.s64 %rd11, %rd0, %rd10;
    ld.global.b32 %r3, [%rd11];
    {between}
    setp.lt.u32 %p1, %r0, 32;
    shr.u32 %r4, %r3, 1;
    @%p1 st.global.b32 [%rd11], %r4;
"""


@pytest.mark.parametrize("seed", range(4))
def test_unused_stale_loads_do_not_matter(seed: int) -> None:
    x = np.arange(32, dtype=np.int32) * 2
    stale = StaleLoads(seed)
    num_runs = 0
    while num_runs == 0 or stale.take():
        num_runs += 1
        assert num_runs < 9
        x[:] = np.arange(32) * 2
        run(IN_PLACE.format(between=""), x, threads=64, seed=seed, stale=stale)
        assert x.tolist() == list(range(32))
    if seed == 0:  # in step all load before any stores, and the second warp is seen to
        assert num_runs == 2


@pytest.mark.parametrize("seed", range(4))
def test_used_stale_loads_change_the_result(seed: int) -> None:
    """The second warp stores its loaded value: another one in each run with a known race."""
    body = IN_PLACE.format(between="mul.wide.u32 %rd12, %r0, 4; add.s64 %rd13, %rd1, %rd12;")
    body += "    st.global.b32 [%rd13], %r3;\n"
    x, out = np.arange(32, dtype=np.int32) * 2, np.zeros(64, np.int32)
    stale = StaleLoads(seed)
    num_runs = 0
    while num_runs == 0 or stale.take():
        num_runs += 1
        x[:] = np.arange(32) * 2
        run(body, x, out, threads=64, seed=seed, stale=stale)
    assert out[:32].tolist() == (np.arange(32) * 2).tolist()
    if num_runs > 1:
        assert (out[32:] != np.arange(32) * 2).any()


def test_other_races_stay_faults() -> None:
    """Two threads store different values; and a strong load cannot be stale."""
    x = np.zeros(64, np.int32)
    stale = StaleLoads(0)
    faults("st.global.b32 [%rd0], %r0;", x, kind="race", threads=64, stale=stale)
    body = "st.global.b32 [%rd0], %r0; ld.relaxed.gpu.global.b32 %r4, [%rd0];"
    faults(body, x, kind="race", threads=64, seed=1, stale=stale)
    assert not stale.take()
