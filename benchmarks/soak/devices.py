"""Devices for cases: a GPU, or the emulator without one.

Invariant: both leave the kernel's memory in buffers and arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from aotc import runtime
from aotc.package.verify.device import DeviceRun
from aotc.verify.checks.check import Execute, ExecutionFault
from aotc.verify.checks.device import NoRoomError
from aotc.verify.checks.emulated import Emulation, Param
from aotc.verify.emulator.arguments import Argument
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.text.parse import parse_module
from benchmarks.calibration.gpu import Gpu
from benchmarks.soak.case import ON_HOST, WAITING, Say
from benchmarks.soak.programs import ProgramCase
from benchmarks.soak.variants import Member, VariantCase

Launch: TypeAlias = Callable[[Sequence[Argument]], None]


# Memory kept by all processes of one GPU for their next launches.
_SPARE_BYTES = 16 << 30
# Sizes are rounded up to these pieces, or to an eighth of the power of two below. So allocations
# of other launches fit: most differ by a few bytes, and sparse buffers differ from variant to
# variant.
_PIECE_BYTES = 4096
# Time an allocation waits for other processes to free memory.
_ROOM_SECONDS = 2.0
_POLL_SECONDS = 0.05


class ReusingGpu(Gpu):
    """A GPU with memory kept for the next launch, up to a limit large enough for most allocations.

    It is one of `num_processes` that share the GPU.
    """

    def __init__(self, num_processes: int = 1) -> None:
        """Raises: NoDeviceError."""
        super().__init__()
        self.say: Say = lambda _: None
        self._spare_limit = _SPARE_BYTES // num_processes
        self._is_shared = num_processes > 1
        self._sizes: dict[int, int] = {}  # in bytes, of the allocation at an address
        # Addresses by size; the size freed last is last.
        self._spare: dict[int, list[int]] = {}
        self._spare_bytes = 0

    def write(self, address: int, content: npt.NDArray[np.uint8]) -> None:
        """Copy bytes to the GPU; this may take long beside other copies."""
        self.say(ON_HOST)
        super().write(address, content)

    def synchronize(self) -> None:
        """Wait for all launches. Raises: ExecutionFault for a fault of one of them."""
        self.say(WAITING)
        super().synchronize()
        self.say(ON_HOST)

    def allocate(self, size_bytes: int) -> int:
        """Return the address of an allocation of at least this size, with any contents.

        Raises: NoRoomError.
        """
        # An allocation too large to be kept has its exact size.
        size = size_bytes if size_bytes > self._spare_limit else rounded_size(size_bytes)
        if spare := self._spare.get(size):
            self._spare_bytes -= size
            return spare.pop()
        address = self._fresh(size)
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        """Keep an allocation for reuse; give others back if too much is kept."""
        size = self._sizes[address]
        spare = self._spare.pop(size, [])
        self._spare[size] = [*spare, address]
        self._spare_bytes += size
        self._give_back(self._spare_limit)

    def _fresh(self, size: int) -> int:
        deadline = time.monotonic() + (_ROOM_SECONDS if self._is_shared else 0.0)
        while (address := self._if_room(size)) is None:
            if self._spare_bytes:
                self._give_back(0)
            elif time.monotonic() > deadline:
                raise NoRoomError
            else:
                time.sleep(_POLL_SECONDS)
        return address

    def _if_room(self, size: int) -> int | None:
        try:
            return super().allocate(size)
        except NoRoomError:
            return None

    def _give_back(self, limit: int) -> None:
        """Free kept memory down to the limit, first of the sizes unused for longest."""
        while self._spare_bytes > limit:
            size = next(iter(self._spare))
            spare = self._spare[size]
            if not spare:
                del self._spare[size]
                continue
            address = spare.pop()
            self._spare_bytes -= size
            del self._sizes[address]
            super().free(address)


def rounded_size(size_bytes: int) -> int:
    """Return the allocated size: at most an eighth, or 4 KiB, more."""
    step = max(_PIECE_BYTES, 1 << max(0, size_bytes.bit_length() - 4))
    return -(-max(size_bytes, 1) // step) * step


class GpuDevice:
    """The first visible GPU, shared by `num_processes`."""

    def __init__(self, gpu: Gpu | None = None, num_processes: int = 1) -> None:
        """Raises: NoDeviceError."""
        self._gpu = ReusingGpu(num_processes) if gpu is None else gpu
        self.name = f"{self._gpu.name}, {_driver()}"

    def watch(self, say: Say) -> None:
        """Say when the GPU is waited for, and when it is not."""
        if isinstance(self._gpu, ReusingGpu):
            self._gpu.say = say

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
    version_file = Path("/sys/module/nvidia/version")
    return version_file.read_text().strip() if version_file.is_file() else "of unknown version"


class Emulator:
    """The emulator of PTX."""

    name = "the emulator"

    def watch(self, say: Say) -> None:
        """Say nothing: there is no device to wait for."""

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
