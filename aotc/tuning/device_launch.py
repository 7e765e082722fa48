"""Launch configs on a GPU: buffers, arguments, and each config's result and time.

Buffers are filled once, with a copy on the GPU to restore everything a kernel may write before
reading a result. Buffers of integers are also reset before each timed launch, since a kernel may
wait for a counter.

Invariant: all memory is freed when the block is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import final

import numpy as np
from typing_extensions import Self

from aotc import runtime
from aotc.package.archive.index import Kernel
from aotc.package.tuning.shapes import Launch
from aotc.tuning.buffers import BufferPlan, UnsizedError
from aotc.tuning.gpu import FaultError, Gpu, NoMemoryError
from aotc.tuning.messages import Output
from aotc.verify.arrays import view
from aotc.verify.checks.contents import HEAD_BYTES, Listed, loaded_dtype

_PERIOD_ELEMENTS = (1 << 20) - 3  # of random contents: a prime, so that no two rows are equal
_SAMPLED_BYTES, _NUM_PIECES = 1 << 20, 16  # of each buffer


class RefusedLaunchError(Exception):
    """The runtime refuses a config for these arguments, before reaching the GPU."""


@final
class DeviceLaunch:
    """The buffers of a launch on the GPU while the block is open."""

    def __init__(self, gpu: Gpu, library: runtime.Library, kernel: Kernel, launch: Launch) -> None:
        self._gpu = gpu
        self._runtime = library[kernel.name]
        self._kernel = kernel
        self._launch = launch
        self._plans: dict[str, BufferPlan] = {}
        self.addresses: dict[str, int] = {}
        """Addresses of the buffers, by name."""
        self._copies: dict[str, int] = {}
        self._args: tuple[object, ...] = ()

    def fill(self, plans: Sequence[BufferPlan]) -> Self:
        """Allocate and fill the buffers.

        Raises: UnsizedError if the GPU has too little memory.
        """
        self._plans = {plan.name: plan for plan in plans}
        access = {param.name: param.access for param in self._kernel.params}
        try:
            for plan in plans:
                self.addresses[plan.name] = self._gpu.allocate(plan.room_bytes)
                # Addresses differ from process to process, and no kernel writes them.
                if access.get(plan.name) != "read" and not plan.pointees:
                    self._copies[plan.name] = self._gpu.allocate(plan.room_bytes)
        except NoMemoryError:
            size = sum(plan.room_bytes for plan in plans) / 2**30
            message = (
                f"its buffers take {size:.1f} GiB and copies, which the GPU does not have free"
            )
            raise UnsizedError(message) from None
        for plan in plans:
            self._fill(plan)
        for name, copy in self._copies.items():
            self._gpu.copy(copy, self.addresses[name], self._plans[name].room_bytes)
        self._args = tuple(self._arguments())
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, FaultError):
            for address in (*self.addresses.values(), *self._copies.values()):
                self._gpu.free(address)

    def _fill(self, plan: BufferPlan) -> None:
        address = self.addresses[plan.name]
        size = plan.element.size_bytes
        count = -(-plan.room_bytes // size)
        if plan.pointees:
            values = np.array([self.addresses[n] + HEAD_BYTES for n in plan.pointees], np.int64)
            content = np.resize(values, max(1, count - HEAD_BYTES // 8))
            head = np.zeros(HEAD_BYTES, np.uint8)
            content = np.concatenate([head, view(content, np.uint8)])
        else:
            period = count if isinstance(plan.contents, Listed) else min(count, _PERIOD_ELEMENTS)
            content = view(np.ascontiguousarray(plan.contents.elements(0, period)), np.uint8)
        content = content[: plan.room_bytes]
        self._gpu.write(address, content)
        self._gpu.repeat(address, content.size, plan.room_bytes)

    def _arguments(self) -> list[object]:
        launch, args = self._launch, list[object]()
        for param in self._kernel.params:
            plan = self._plans.get(param.name)
            if param.name in launch.null_pointers:
                args.append(None)
            elif plan is None:
                args.append(launch.key.get(param.name, launch.scalars.get(param.name)))
            elif param.kind == "tensor":
                typed_address = self.addresses[param.name] + HEAD_BYTES, plan.element.name
                args.append(runtime.Tensor(*typed_address, plan.shape, plan.strides))
            else:
                address = self.addresses[param.name] + HEAD_BYTES
                args.append(runtime.Pointer(address, plan.element.name))
        return args

    def misfits(self) -> dict[int, str]:
        """Return why configs are refused for these arguments."""
        refusals = {index: self._refusal(index) for index in range(len(self._kernel.configs))}
        return {index: reason for index, reason in refusals.items() if reason}

    def _refusal(self, config: int) -> str:
        """Return why a config is refused; empty if it is not."""
        try:
            self._call(self._runtime.select, config)
        except runtime.CudaError as error:
            raise FaultError(str(error)) from None
        except runtime.AotcError as error:
            return str(error)
        return ""

    def _run(self, config: int) -> None:
        try:
            self._call(self._runtime.launch, config)
        except runtime.CudaError as error:
            raise FaultError(str(error)) from None
        except runtime.AotcError as error:
            raise RefusedLaunchError(str(error)) from None

    def _call(self, function: Callable[..., object], config: int) -> None:
        launch = self._launch
        function(
            self._args,
            config=dict(self._kernel.configs[config]) or None,
            choices=dict(launch.choices) or None,
            grid=launch.grid or None,
        )

    def _reset(self, *, integers_only: bool) -> None:
        for name, copy in self._copies.items():
            plan = self._plans[name]
            if not integers_only or plan.element.is_int:
                self._gpu.copy(self.addresses[name], copy, plan.room_bytes)

    def outputs(self, config: int) -> list[Output]:
        """Launch a config once, on fresh buffers, and return its results.

        Raises: FaultError, RefusedLaunchError.
        """
        self._reset(integers_only=False)
        self._run(config)
        self._gpu.synchronize()
        return [self._output(self._plans[name]) for name in self._copies]

    def _output(self, plan: BufferPlan) -> Output:
        """Return a buffer's content; of a large one only pieces, at both ends and between."""
        itemsize = np.dtype(loaded_dtype(plan.element)).itemsize
        start, size = HEAD_BYTES, plan.size_bytes - HEAD_BYTES
        address = self.addresses[plan.name]
        if size <= _SAMPLED_BYTES:
            content = self._gpu.read(address + start, size) if size else np.empty(0, np.uint8)
            return Output(plan.name, plan.element.name, content[: size // itemsize * itemsize])
        piece = _SAMPLED_BYTES // _NUM_PIECES
        step = (size - piece) / (_NUM_PIECES - 1)
        offsets = [int(step * number) // 16 * 16 for number in range(_NUM_PIECES)]
        pieces = [self._gpu.read(address + start + offset, piece) for offset in offsets]
        return Output(plan.name, plan.element.name, np.concatenate(pieces))

    def times(self, configs: Sequence[int], *, is_cold: bool, repeats: int) -> list[float]:
        """Return the seconds of each config, launched in this order. Raises: FaultError."""
        has_counters = any(self._plans[name].element.is_int for name in self._copies)
        launches = [partial(self._run, config) for config in configs]
        return self._gpu.times(
            launches,
            is_cold=is_cold,
            repeats=1 if has_counters else repeats,
            reset=partial(self._reset, integers_only=True),
        )
