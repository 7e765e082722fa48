"""A launch as the runtime would make it, for the emulator to run.

The runtime's own code (`aotc.runtime`, in C) selects, evaluates and encodes; this is its result
for the emulator. A mismatch with the kernel is a fault, as it would misbehave on a
GPU.
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
    """The driver's launch arguments; `params` has tensor maps in the emulator's encoding.

    `layout` has offset and size in bytes of each parameter; `shared_bytes` is dynamic shared
    memory.
    """

    grid: Extents
    cta_threads: Extents
    cluster: Extents
    shared_bytes: int
    params: bytes
    layout: tuple[tuple[int, int], ...]

    def block_of(self, kernel: Kernel) -> bytes:
        """Return the parameters as the PTX of `kernel` lays them out.

        Offsets differ where a map has to lie at a multiple of 64 bytes: of the constant bank
        for the cubin, of the block for PTX.

        Raises: ExecutionFault if it is no launch of `kernel`.
        """
        sizes = [param.size_bytes for param in kernel.params]
        start = self.layout[0][0] if self.layout else 0
        layout = [(offset - start, size) for offset, size in self.layout]
        if layout not in [_placed(sizes, bank) for bank in range(0, _MAP_ALIGNMENT, 16)]:
            text = f"{list(self.layout)}, expected {_placed(sizes, 0)}"
            raise ExecutionFault(f"the launcher has parameters of {kernel.name} at {text}")
        cluster = kernel.cluster_ctas if any(kernel.cluster_ctas) else (1, 1, 1)
        for unit, actual, required in (
            ("CTAs", self.cta_threads, kernel.cta_threads),
            ("clusters", self.cluster, cluster),
        ):
            if actual != required and any(required):
                message = (
                    f"the launcher gives {kernel.name} {unit} of {actual}, expected {required}"
                )
                raise ExecutionFault(message)
        block = bytearray(kernel.param_bytes)
        for (offset, size), param in zip(self.layout, kernel.params, strict=True):
            block[param.offset : param.offset + size] = self.params[offset : offset + size]
        return bytes(block)


_MAP_ALIGNMENT = 64


def _placed(sizes: Sequence[int], bank: int) -> list[tuple[int, int]]:
    """Return offsets from the first parameter, and sizes, of a block at `bank` modulo 64."""
    layout: list[tuple[int, int]] = []
    end = bank
    for size in sizes:
        alignment = min(size, _MAP_ALIGNMENT)
        start = -(-end // alignment) * alignment
        layout.append((start, size))
        end = start + size
    return [(offset - layout[0][0], size) for offset, size in layout]


Launcher: TypeAlias = Callable[[Reference, Mapping[str, int], int], Launched | None]
"""Compute a reference's launch from its buffers' addresses and the GPU's number of programs at a time.

Scratch memory is at the address of `SCRATCH_SOURCE`. None for an empty launch. Raises: ExecutionFault
if the runtime refuses the launch.
"""
