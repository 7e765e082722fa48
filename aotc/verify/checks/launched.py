"""A launch as the runtime would make it, for the emulator to run.

The runtime's own code (`aotc.runtime`, in C) chooses, evaluates and encodes; here is what the emulator
is given of it. Where the two do not fit, a GPU would do something else than was meant, so that is
a fault as one in the kernel's code is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    block: Extents
    cluster: Extents
    shared_bytes: int
    params: bytes
    layout: tuple[tuple[int, int], ...]

    def block_of(self, kernel: Kernel) -> bytes:
        """Return the parameters as the PTX of `kernel` lays them out.

        The cubin's layout begins later where a map has to lie at a multiple of 64 bytes: the block
        itself does not.

        Raises: ExecutionFault if it is no launch of `kernel`.
        """
        expected = [(param.offset, param.size_bytes) for param in kernel.params]
        start = self.layout[0][0] if self.layout else 0
        if [(offset - start, size) for offset, size in self.layout] != expected:
            places = f"{list(self.layout)}, expected {expected}"
            raise ExecutionFault(f"the launcher has parameters of {kernel.name} at {places}")
        cluster = kernel.cluster_blocks if any(kernel.cluster_blocks) else (1, 1, 1)
        for what, given, required in (
            ("blocks", self.block, kernel.block_threads),
            ("clusters", self.cluster, cluster),
        ):
            if given != required and any(required):
                message = f"the launcher gives {kernel.name} {what} of {given}, expected {required}"
                raise ExecutionFault(message)
        return self.params[start:]


Launcher: TypeAlias = Callable[[Reference, Mapping[str, int], int], Launched | None]
"""Make a launch of a reference whose buffers lie at these addresses, scratch memory at that of
`SCRATCH_SOURCE`, on a GPU that runs so many programs at a time; None if nothing is launched. Raises: ExecutionFault if the launch is refused."""
