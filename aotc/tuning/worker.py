"""Serve launches in a process of its own: only it touches the GPU, and it may hang or be lost.

It answers one request at a time, over a pipe passed as a descriptor. A fault ends it, since the
GPU's context is lost then; so does the end of its parent.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from multiprocessing.connection import Connection

from aotc import runtime
from aotc.package.archive.file import decode
from aotc.package.archive.index import Kernel
from aotc.tuning.buffers import UnsizedError, buffers_of
from aotc.tuning.device_launch import DeviceLaunch, RefusedLaunchError
from aotc.tuning.gpu import FaultError, Gpu, NoGpuError, NoMemoryError
from aotc.tuning.messages import (
    Answer,
    Check,
    Identity,
    Open,
    Prepare,
    Refusal,
    Request,
    Time,
    Times,
)

_WATCH_SECONDS = 0.5


class _Worker:
    def __init__(self) -> None:
        self._gpu: Gpu | None = None
        self._library: runtime.Library | None = None
        self._kernels: dict[str, Kernel] = {}
        self._current: DeviceLaunch | None = None

    def answer(self, request: Request) -> Answer:
        """Answer a request. Raises: FaultError, NoGpuError, UnsizedError, RefusedLaunchError."""
        match request:
            case Open():
                self._gpu = Gpu(request.driver)
                archive = decode(request.archive)
                self._kernels = {kernel.name: kernel for kernel in archive.kernels}
                self._library = runtime.load(
                    request.archive, device=0, driver=request.driver, lazy=True
                )
                return Identity(*self._gpu.identity)
            case Prepare():
                return self._prepare(request)
            case Check():
                assert self._current is not None
                return self._current.outputs(request.config)
            case Time():
                assert self._gpu is not None
                assert self._current is not None
                seconds = self._current.times(
                    request.configs, is_cold=request.is_cold, repeats=request.repeats
                )
                return Times(tuple(seconds), self._gpu.clock_mhz())

    def _prepare(self, request: Prepare) -> dict[int, str]:
        assert self._gpu is not None
        assert self._library is not None
        if self._current is not None:
            self._current.__exit__(None, None, None)
            self._current = None
        launch, kernel = request.launch, self._kernels[request.launch.kernel]
        plans = buffers_of(launch, kernel, request.subjects, request.seed)
        self._current = DeviceLaunch(self._gpu, self._library, kernel, launch)
        return self._current.fill(plans).misfits()


def _end_with(parent: int) -> None:
    """End this process soon after its parent has ended, even while a launch hangs."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def serve(connection: Connection) -> None:
    """Answer requests until the other side is gone, or the GPU is lost."""
    worker = _Worker()
    while True:
        try:
            request: Request = connection.recv()
        except EOFError:
            return
        try:
            answer = worker.answer(request)
        except (UnsizedError, RefusedLaunchError) as error:
            answer = Refusal(str(error))
        except (FaultError, NoGpuError, runtime.AotcError) as error:
            connection.send(Refusal(str(error), is_lost=True))
            return
        except NoMemoryError:
            connection.send(Refusal("the GPU has no memory left", is_lost=True))
            return
        connection.send(answer)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
    os._exit(0)  # do not wait for a lost context
