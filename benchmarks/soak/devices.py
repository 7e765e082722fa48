"""What cases run on: a GPU, or the emulator where there is none.

Invariant: both leave in buffers and arrays what the kernel left in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from aotc import runtime
from aotc.package.verify_device import DeviceRun
from aotc.verify.checks.check import Execute, ExecutionFault
from aotc.verify.checks.device import NoRoomError
from aotc.verify.checks.emulated import Emulation, Param
from aotc.verify.emulator.arguments import Argument
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.text.parse import parse_module
from benchmarks.calibration.gpu import Gpu
from benchmarks.soak.programs import ProgramCase
from benchmarks.soak.variants import Member, VariantCase

Launch: TypeAlias = Callable[[Sequence[Argument]], None]


_SPARE_BYTES = 32 << 30
# Larger allocations are of whole such pieces, so that they are of use again: sizes of rows that lie
# far apart differ from variant to variant.
_PIECE_BYTES = 256 << 20


class ReusingGpu(Gpu):
    """A GPU whose memory is kept for the next launch, which mostly has buffers of the same sizes."""

    def __init__(self) -> None:
        """Raises: NoDeviceError."""
        super().__init__()
        self._sizes: dict[int, int] = {}  # in bytes, of the allocation at an address
        self._spare: list[int] = []

    def allocate(self, size_bytes: int) -> int:
        """Return the address of an allocation of that size, with anything in it.

        Raises: NoRoomError.
        """
        if size_bytes > _PIECE_BYTES:
            size_bytes = -(-size_bytes // _PIECE_BYTES) * _PIECE_BYTES
        for address in self._spare:
            if self._sizes[address] == size_bytes:
                self._spare.remove(address)
                return address
        try:
            address = super().allocate(size_bytes)
        except NoRoomError:
            self._give_back(0)
            address = super().allocate(size_bytes)
        self._sizes[address] = size_bytes
        return address

    def free(self, address: int) -> None:
        """Keep an allocation for reuse, and give the oldest back if too much is kept."""
        self._spare.append(address)
        self._give_back(_SPARE_BYTES)

    def _give_back(self, limit: int) -> None:
        """Give back the oldest of what is kept until that is no more than `limit` bytes."""
        while sum(self._sizes[each] for each in self._spare) > limit:
            oldest = self._spare.pop(0)
            del self._sizes[oldest]
            super().free(oldest)


class GpuDevice:
    """The first GPU of this machine."""

    def __init__(self, gpu: Gpu | None = None) -> None:
        """Raises: NoDeviceError."""
        self._gpu = ReusingGpu() if gpu is None else gpu
        self.name = f"{self._gpu.name}, {_driver()}"

    @contextmanager
    def opened(self, case: VariantCase, member: Member) -> Iterator[Execute]:
        """Load a variant through the archive's own launcher."""
        with runtime.load(member.content) as library:
            yield DeviceRun(self._gpu, library, member.kernel, case.subject)

    @contextmanager
    def loaded(self, case: ProgramCase) -> Iterator[Launch]:
        """Load a program through the driver: it is of no archive."""
        entry = case.entry

        def launch(args: Sequence[Argument]) -> None:
            self._gpu.launch(case.cubin, entry, args, case.grid, entry.shared_bytes)

        try:
            yield launch
        finally:
            self._gpu.unload(case.cubin)


def _driver() -> str:
    """Return the version of the kernel's driver, as far as it is told."""
    told = Path("/sys/module/nvidia/version")
    return told.read_text().strip() if told.is_file() else "of unknown version"


class Emulator:
    """The emulator of PTX."""

    name = "the emulator"

    @contextmanager
    def opened(self, case: VariantCase, member: Member) -> Iterator[Execute]:
        """Parse a variant's PTX."""
        compiled = member.ptx
        assert compiled is not None
        params: list[Param] = []
        for slot in compiled.params:
            tensor = slot.tensor_map
            if tensor is None:
                params.append(Param(slot.argument, slot.source))
            else:
                form = (tensor.box, tensor.swizzle_bytes, tensor.fill_nan)
                params.append(Param(slot.argument, "", *form, tensor.shape, tensor.strides))
        yield Emulation(
            parse_module(compiled.ptx),
            compiled.symbol,
            compiled.shared_bytes,
            num_ctas=case.subject.num_ctas,
            params=tuple(params),
            fixed=case.subject.values,
            scratch_bytes=compiled.scratch_bytes,
        )

    @contextmanager
    def loaded(self, case: ProgramCase) -> Iterator[Launch]:
        """Parse a program's PTX."""
        module = parse_module(case.ptx)

        def launch(args: Sequence[Argument]) -> None:
            try:
                emulate(module, case.grid, args, shared_bytes=case.entry.shared_bytes)
            except Fault as fault:
                raise ExecutionFault(str(fault)) from fault

        yield launch
