"""Several launchers with a shared queue: a few on each GPU, on any number of GPUs.

Each is a process with its own context, and the GPU interleaves their launches. So while one
loads, copies or compares, others launch. Its launcher's watchdog names a hanging launch. After
one, nothing new is launched on that GPU; launches of the others under way still have their time.

Invariant: a batch is handed to one launcher, and each of its cases gets one outcome unless a GPU hangs
or time is up.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.soak.journal import Journal, Outcome
from benchmarks.soak.launcher import Batch, Launcher, NoLauncherError, OpenDevice, SharedGpu

_POLL_SECONDS = 0.2


class Launchers:
    """All launchers of a soak: `per_gpu` on each of `gpus`, named as in CUDA_VISIBLE_DEVICES."""

    def __init__(
        self,
        open_device: OpenDevice,
        journal: Journal,
        limit_seconds: float,
        gpus: Sequence[str] = ("",),
        per_gpu: int = 1,
    ) -> None:
        self.gpus = [SharedGpu(name) for name in gpus]
        self.each = [
            Launcher(open_device, journal, limit_seconds, gpu)
            for _ in range(per_gpu)
            for gpu in self.gpus
        ]

    @property
    def device(self) -> str:
        """Opened devices: each kind of GPU, and its count."""
        names = {launcher.gpu.name: launcher.device for launcher in self.each if launcher.device}
        kinds = sorted(set(names.values()))
        counts = [list(names.values()).count(kind) for kind in kinds]
        texts = [
            kind if count == 1 else f"{count} x {kind}"
            for kind, count in zip(kinds, counts, strict=True)
        ]
        return "; ".join(texts)

    @property
    def busy_seconds(self) -> float:
        """For how long launchers had a case, summed up."""
        return sum(launcher.busy_seconds for launcher in self.each)

    @property
    def hung(self) -> list[Outcome]:
        """The cases after which their GPUs take no more launches."""
        return [gpu.hung for gpu in self.gpus if gpu.hung is not None]

    def open(self) -> None:
        """Start all processes, at once. Raises: NoLauncherError if a GPU is missing."""
        with ThreadPoolExecutor(len(self.each)) as threads:
            for opening in [threads.submit(launcher.open) for launcher in self.each]:
                opening.result()

    def close(self) -> None:
        """End all processes."""
        for launcher in self.each:
            launcher.close()

    @contextmanager
    def launching(
        self, size: int, is_late: Callable[[], bool], say: Callable[[Outcome], None]
    ) -> Iterator[Launching]:
        """Yield a queue of batches, `size` waiting; at the end all of them are launched.

        Nothing is begun once it `is_late`, or the block is left by an exception.
        Raises: NoLauncherError.
        """
        launching = Launching(self.each, size, is_late, say)
        try:
            yield launching
        except BaseException:
            launching.stop()
            raise
        finally:
            launching.close()


class Launching:
    """A thread for each launcher, since workers must not wait for any: all take from one queue."""

    def __init__(
        self,
        launchers: Sequence[Launcher],
        size: int,
        is_late: Callable[[], bool],
        say: Callable[[Outcome], None],
    ) -> None:
        self._is_late, self._say = is_late, say
        self._say_lock = threading.Lock()
        self._launchers = launchers
        self._queue: queue.Queue[Batch | None] = queue.Queue(size)
        self._returned: deque[Batch] = deque()  # started on a hanging GPU
        self._error: Exception | None = None
        self._is_stopped = False
        self._threads = [
            threading.Thread(target=self._run, args=(launcher,)) for launcher in launchers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Return whether nothing starts any more."""
        return self._is_stopped or all(
            launcher.gpu.hung is not None for launcher in self._launchers
        )

    def stop(self) -> None:
        """Begin nothing any more."""
        self._is_stopped = True

    def put(self, batch: Batch | None) -> None:
        """Hand over a batch; wait while too many are there, unless nothing is begun any more.

        None ends one launcher's work.
        """
        while not self.is_over:
            try:
                self._queue.put(batch, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return

    def close(self) -> None:
        """Wait for the queued batches. Raises: a launcher's exception."""
        for _ in self._threads:
            self.put(None)
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error
        # A batch started on a hanging GPU may have returned after all others ended.
        while self._returned and not self.is_over:
            launcher = next(
                candidate for candidate in self._launchers if candidate.gpu.hung is None
            )
            self._launch(launcher, self._returned.popleft())

    def _next(self) -> Batch | None:
        while not self.is_over:
            if self._returned:
                return self._returned.popleft()
            try:
                return self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
        return None

    def _run(self, launcher: Launcher) -> None:
        try:
            while launcher.gpu.hung is None and (batch := self._next()) is not None:
                self._launch(launcher, batch)
        except NoLauncherError as error:
            self._error = error
            self.stop()

    def _launch(self, launcher: Launcher, batch: Batch) -> None:
        if self._is_late():
            self.stop()
            return
        num_done = batch.start
        for outcome in launcher.run(batch):
            num_done += 1
            with self._say_lock:
                self._say(outcome)
            if self._is_late():
                self.stop()
                break
        if num_done < batch.count:
            self._returned.append(replace(batch, start=num_done))
        else:
            batch.path.unlink(missing_ok=True)
