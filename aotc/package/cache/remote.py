"""Share a cache between machines, at a URL: a folder, S3, GCS, or any other store of fsspec.

Entries have the names and bytes of the local folder (`store.py`), so they are checked there. This
file only moves bytes, within a time limit. A store that is absent, forbidden or slow causes one
warning, and is ignored for the rest of the build.

Calls run in daemon threads, since a hanging call cannot be stopped: it is left behind.

Invariants: no method raises for a failure of the store; an object is written whole or not at all.
Object stores do so in one request; others move a file from a temporary name.
"""

from __future__ import annotations

import importlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

from aotc.ir.diagnostics import HostError
from aotc.package.cache.entry import MAX_ENTRY_BYTES

_NUM_THREADS = 16
_IDLE_SECONDS = 10.0  # without any of several calls returning
_TOTAL_SECONDS = 120.0
_MAX_ERRORS = 3
# Stores where one request writes a whole object, and a move is a copy.
_SINGLE_PUT = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory")

T = TypeVar("T")


class RemoteStore:
    """The objects below a URL; `warn` is called with one line of text, once per problem.

    `is_read_only` writes nothing, for builds with untrusted results.

    Raises: HostError if fsspec, or its driver for the URL, is missing or rejects it.
    """

    def __init__(
        self,
        url: str,
        warn: Callable[[str], None],
        *,
        is_read_only: bool = False,
        idle_seconds: float = _IDLE_SECONDS,
        total_seconds: float = _TOTAL_SECONDS,
    ) -> None:
        self._url = url
        self._warn = warn
        self._files, self._root = _open(url)
        self._idle_seconds = idle_seconds
        self._total_seconds = total_seconds
        self._can_read = True
        self._can_write = not is_read_only
        self._num_errors = 0
        self._writes: dict[Future[None], None] = {}
        self._pool = _DaemonPool(_NUM_THREADS)
        protocol = self._files.protocol
        names = (protocol,) if isinstance(protocol, str) else protocol
        self._is_single_put = any(name in _SINGLE_PUT for name in names)

    def __str__(self) -> str:
        return self._url

    def fetch(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the objects that exist and arrive in time."""
        objects: dict[str, bytes] = {}
        waiting = iter(dict.fromkeys(names))
        running = self._start(waiting, _NUM_THREADS)
        end = time.monotonic() + self._total_seconds
        while running:
            finished, _ = wait(running, self._idle_seconds, FIRST_COMPLETED)
            if not finished or time.monotonic() > end:
                self._give_up("does not answer in time")
                break
            for future in finished:
                name = running.pop(future)
                data = self._result(future)
                if data is not None:
                    objects[name] = data
            running.update(self._start(waiting, len(finished)))
        return objects

    def put(self, name: str, data: bytes) -> None:
        """Write an object in the background, before `close` returns."""
        if self._can_write:
            for future in [future for future in self._writes if future.done()]:
                del self._writes[future]
                self._check_written(future)
            self._writes[self._pool.submit(lambda: self._write(name, data))] = None

    def close(self) -> None:
        """Wait for pending writes, as long as they make progress."""
        running, self._writes = self._writes, {}
        end = time.monotonic() + self._total_seconds
        while running and self._can_write:
            finished, _ = wait(running, self._idle_seconds, FIRST_COMPLETED)
            if not finished or time.monotonic() > end:
                self._give_up("does not answer in time")
                return
            for future in finished:
                del running[future]
                self._check_written(future)

    def _start(self, names: Iterator[str], count: int) -> dict[Future[bytes | None], str]:
        if not self._can_read:
            return {}
        return {
            self._pool.submit(lambda name=name: self._read(name)): name
            for name in itertools.islice(names, count)
        }

    def _read(self, name: str) -> bytes | None:
        try:
            data: bytes = self._files.cat_file(self._path(name), start=0, end=MAX_ENTRY_BYTES + 1)
        except FileNotFoundError:
            return None
        return data

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if self._is_single_put:
            self._files.pipe_file(path, data)
            return
        folder, _, last = path.rpartition("/")
        self._files.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/.{last[:16]}.{secrets.token_hex(8)}.tmp"
        try:
            self._files.pipe_file(temporary, data)
            self._files.mv(temporary, path)
        except BaseException:
            if self._files.exists(temporary):
                self._files.rm_file(temporary)
            raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _result(self, future: Future[bytes | None]) -> bytes | None:
        error = future.exception()
        if error is None:
            self._num_errors = 0
            return future.result()
        self._num_errors += 1
        if self._can_read and self._num_errors >= _MAX_ERRORS:
            self._give_up(f"cannot be read: {_reason(error)}")
        return None

    def _check_written(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None and self._can_write:
            self._can_write = False
            reason = _reason(error)
            self._warn(f"cache at {self._url} cannot be written to: {reason}; it stays as it is")

    def _give_up(self, why: str) -> None:
        self._can_read = self._can_write = False
        self._warn(f"cache at {self._url} {why}; building without it")


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path there. Raises: HostError."""
    try:
        core: Any = importlib.import_module("fsspec.core")  # an extra
    except ImportError:
        remedy = "pip install 'aotc[cache]', or 'aotc[s3]' for s3://"
        raise HostError("--cache-url needs fsspec", remedy=remedy) from None
    try:
        files, root = core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        raise HostError(f"--cache-url {url}: {error}", remedy="install it with pip") from None
    except (ValueError, TypeError, OSError) as error:
        remedy = "give a URL such as s3://bucket/folder or file:///folder"
        raise HostError(f"--cache-url {url}: {error}", remedy=remedy) from None
    return files, str(root).rstrip("/")


class _DaemonPool:
    """Threads that never keep the process alive."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._started = 0
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        if self._started < self._num_threads:
            self._started += 1
            threading.Thread(target=self._run, daemon=True).start()
        future: Future[T] = Future()
        self._work.put((future, call))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._work.get()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - told to whoever waits
                future.set_exception(error)
