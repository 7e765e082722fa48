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

        Offsets differ where a map has to lie at a multiple of 64 bytes: of the constant bank for the
        cubin, of the block for PTX.

        Raises: ExecutionFault if it is no launch of `kernel`.
        """
        sizes, expected = (
            [size for _, size in self.layout],
            [param.size_bytes for param in kernel.params],
        )
        if sizes != expected or list(self.layout) != sorted(self.layout):
            places = f"{list(self.layout)}, expected sizes {expected}"
            raise ExecutionFault(f"the launcher has parameters of {kernel.name} at {places}")
        cluster = kernel.cluster_blocks if any(kernel.cluster_blocks) else (1, 1, 1)
        for what, given, required in (
            ("blocks", self.block, kernel.block_threads),
            ("clusters", self.cluster, cluster),
        ):
            if given != required and any(required):
                message = f"the launcher gives {kernel.name} {what} of {given}, expected {required}"
                raise ExecutionFault(message)
        block = bytearray(kernel.param_bytes)
        for (offset, size), param in zip(self.layout, kernel.params, strict=True):
            block[param.offset : param.offset + size] = self.params[offset : offset + size]
        return bytes(block)


Launcher: TypeAlias = Callable[[Reference, Mapping[str, int], int], Launched | None]
"""Make a launch of a reference whose buffers lie at these addresses, scratch memory at that of
`SCRATCH_SOURCE`, on a GPU that runs so many programs at a time; None if nothing is launched. Raises: ExecutionFault if the launch is refused."""
