"""Bugs in a warp-specialised product for Hopper, planted in its PTX.

The kernel does not come from the compiler, so these are the faults of `hopper_gemm`. The reference is
a product in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.verify.emulator.errors import Fault
from tests.support import hopper_gemm
from tests.support.mutations.plant import Evidence

_SHAPE = (128, 256, 128)

_STANDS_FOR = {
    "no proxy fence": "what threads wrote is stored by the async proxy, which may not see it yet",
    "producer waits for the wrong phase": "the ring of stages begins with the wrong parity",
    "consumer waits for the wrong phase": "the ring of stages begins with the wrong parity",
    "expects too few bytes": "a barrier's phase ends before the second box has landed",
    "expects too many bytes": "a barrier's phase never ends",
    "wrong swizzle": "the descriptor's swizzle is not that of the tensor map",
    "no fence before wgmma": "wgmma may run before the writes of its registers",
    "sums read in flight": "accumulators are read before wgmma has come to its end",
    "stage released too early": "boxes land in operands that are still read",
    "result overwritten while it is stored": "the next tile is written over one in flight",
    "result not stored in the tile's turn": "threads do not wait for the one that stores",
    "barriers not initialised in time": "a barrier is used before all threads can see it",
    "nobody says that a stage is empty": "an arrival is left out",
}


@dataclass(frozen=True, slots=True)
class PtxMutation:
    """A fault of the kernel; as `Mutation` otherwise."""

    name: str
    stands_for: str
    kernel: str = "hopper_gemm"

    def observe(self) -> Evidence:
        """Return the emulator's verdict on the faulty kernel."""
        return _evidence(self.name)

    def control(self) -> Evidence:
        """Return the emulator's verdict on the correct kernel."""
        return _evidence(None)


def _evidence(fault: str | None) -> Evidence:
    program = hopper_gemm.gemm_ptx(fault), hopper_gemm.SHARED_BYTES, (), ""
    try:
        actual, expected = hopper_gemm.multiply(_SHAPE, fault=fault)
    except Fault as found:
        return Evidence(found.kind, str(found), program)
    error = hopper_gemm.largest_error(actual, expected, _SHAPE[2])
    if error <= 1:
        return Evidence("", "", program)
    return Evidence("mismatch", f"{error:.3g} times the allowed error", program)


MUTATIONS = tuple(PtxMutation(name, _STANDS_FOR[name]) for name in hopper_gemm.FAULTS)
