"""A launch as the runtime would make it, for the emulator to run.

The runtime's own code (`aotc.runtime`, in C) chooses, evaluates and encodes; here is what the emulator
is given of it. Where the two do not fit, a GPU would do something else than was meant, so that is
a fault as one in the kernel's code is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aotc.verify.checks.check import ExecutionFault
from aotc.verify.checks.reference import Reference
from aotc.verify.emulator.text.program import Extents, Kernel


@dataclass(frozen=True, slots=True)
class Launched:
    """Hold what the driver would be given; `params` has tensor maps in the emulator's encoding.

    `layout` has offset and size in bytes of each parameter; `shared_bytes` is dynamic shared memory.
    """

    grid: Extents
    cta_threads: Extents
    cluster: Extents
    shared_bytes: int
    params: bytes
    layout: tuple[tuple[int, int], ...]

    def block_of(self, kernel: Kernel) -> bytes:
        """Return the parameters as the PTX of `kernel` lays them out.

        Offsets differ where a map has to lie at a multiple of 64 bytes: of the constant bank for the
        cubin, of the block for PTX.

        Raises: ExecutionFault if it is no launch of `kernel`.
        """
        sizes = [param.size_bytes for param in kernel.params]
        start = self.layout[0][0] if self.layout else 0
        found = [(offset - start, size) for offset, size in self.layout]
        if found not in [_placed(sizes, bank) for bank in range(0, _MAP_ALIGNMENT, 16)]:
            places = f"{list(self.layout)}, expected {_placed(sizes, 0)}"
            raise ExecutionFault(f"the launcher has parameters of {kernel.name} at {places}")
        cluster = kernel.cluster_ctas if any(kernel.cluster_ctas) else (1, 1, 1)
        for what, given, required in (
            ("CTAs", self.cta_threads, kernel.cta_threads),
            ("clusters", self.cluster, cluster),
        ):
            if given != required and any(required):
                message = f"the launcher gives {kernel.name} {what} of {given}, expected {required}"
                raise ExecutionFault(message)
        block = bytearray(kernel.param_bytes)
        for (offset, size), param in zip(self.layout, kernel.params, strict=True):
            block[param.offset : param.offset + size] = self.params[offset : offset + size]
        return bytes(block)


_MAP_ALIGNMENT = 64


def _placed(sizes: Sequence[int], bank: int) -> list[tuple[int, int]]:
    """Return offsets from the first parameter, and sizes, of a block at `bank` modulo 64."""
    places: list[tuple[int, int]] = []
    end = bank
    for size in sizes:
        alignment = min(size, _MAP_ALIGNMENT)
        start = -(-end // alignment) * alignment
        places.append((start, size))
        end = start + size
    return [(offset - places[0][0], size) for offset, size in places]


Launcher: TypeAlias = Callable[[Reference, Mapping[str, int], int], Launched | None]
"""Make a launch of a reference whose buffers lie at these addresses, scratch memory at that of
`SCRATCH_SOURCE`, on a GPU that runs so many programs at a time; None if nothing is launched. Raises: ExecutionFault if the launch is refused."""
