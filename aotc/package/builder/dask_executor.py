"""Run jobs on a Dask cluster: a `concurrent.futures` executor, with workers that only need aotc.

A task is a `Shipment`: a batch of jobs, the content of their sources (`snapshots`), and the digest
of the required compiler. Its key names the kernel, for the dashboard. A worker asks for a missing
source file; the rest of the batch is sent again with the answer. Dask itself reruns the tasks of a
lost worker. This file handles the other losses:

- a batch that kills its workers: `WorkerLostError`, and `run_all` finds the job;
- a worker that hangs, or is very slow at the end of a run: its batch also runs on another one;
- no workers for minutes, or no scheduler: `HostError`.

Invariant: a job has one result, however often it ran, and after `shutdown` the scheduler has no
task of this executor.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing import resource_tracker
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, cast

import zstandard

from aotc.compiler import CompileRequest
from aotc.ir.diagnostics import HostError
from aotc.package.builder.snapshots import Snapshots
from aotc.package.builder.toolchain import compiler_digest, installed_versions
from aotc.package.builder.workers import (
    Batch,
    Done,
    Failure,
    Job,
    RemoteExecutor,
    WorkerLostError,
    do,
)
from aotc.source_snapshot import NotInSnapshotError, Search, Snapshot, using

LOCAL = "local"
_LOOPBACK = "127.0.0.1"
"""Replaces a scheduler's address: start workers on this machine."""

_CONNECT_SECONDS = 20.0
_FIRST_WORKER_SECONDS = 120.0
_NO_WORKERS_SECONDS = 300.0
_STRAGGLER_SECONDS = 20.0
_POLL_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_MAX_QUESTIONS = 1000  # of a batch: each adds a file or a search to its snapshot
# Number of threads that fetch results, and results per fetch. A hanging worker does not block the
# others' results, and many results share a round trip.
_COLLECTORS = 4
_GATHERED = 32
_LEVEL = 3  # of zstandard: cubins shrink to a third, sources to a fifth

Requests: TypeAlias = Callable[[Any], CompileRequest | None]
_Result: TypeAlias = tuple[Any, float]


@dataclass(frozen=True)
class Answer:
    """The results of the first jobs of a batch, and the next one's missing file."""

    results: list[_Result]
    question: str | Search | None
    worker: str


@dataclass(frozen=True)
class Shipment:
    """A packed batch with its sources, called by the worker."""

    batch: bytes
    snapshot: bytes
    digest: str

    def __call__(self) -> bytes:
        """Return the packed `Answer`. Raises: WrongToolchainError."""
        worker = worker_name()
        if _own_digest() != self.digest:
            raise WrongToolchainError(worker, installed_versions())
        batch: Batch[Any, Any] = unpack(self.batch)
        results: list[_Result] = []
        question: str | Search | None = None
        with using(_snapshot(self.snapshot)):
            for task in batch.tasks:
                try:
                    outcome = do(batch.work, task)
                except NotInSnapshotError as error:
                    question = error.question
                    break
                results.append((outcome.result, outcome.seconds))
        return pack(Answer(results, question, worker))


class WrongToolchainError(Exception):
    """A worker has another compiler, or other tools, than the build."""

    def __init__(self, worker: str, versions: dict[str, str]) -> None:
        super().__init__(worker, versions)
        self.worker = worker
        self.versions = versions


def worker_name() -> str:
    """Return the name of this Dask worker, or its address if it has none."""
    worker: Any = _distributed().get_worker()
    return worker.name if isinstance(worker.name, str) else worker.address


def _distributed() -> Any:
    """Import an optional extra without types. Raises: ImportError."""
    return importlib.import_module("distributed")


def pack(value: object) -> bytes:
    """Serialize and compress an object."""
    return zstandard.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), _LEVEL)


def unpack(data: bytes) -> Any:
    """Invert `pack`."""
    return pickle.loads(zstandard.decompress(data))  # noqa: S301 - Dask's own messages are pickled too


@lru_cache(maxsize=64)
def _snapshot(data: bytes) -> Snapshot:
    return unpack(data)


@lru_cache(maxsize=1)
def _own_digest() -> str:
    return compiler_digest()


def identify() -> tuple[dict[str, str], str]:
    """Return the versions and the digest of this process's compiler."""
    return installed_versions(), _own_digest()


@dataclass(eq=False)
class _Flight:
    """A batch in flight: its remaining jobs, its future here, and its tasks there by key."""

    batch: Batch[Any, Any]
    left: tuple[Job[Any], ...]
    future: Future[list[Done[Any, Any]]] = field(default_factory=Future[list[Done[Any, Any]]])
    copies: dict[object, Any] = field(default_factory=dict[object, Any])
    results: list[Done[Any, Any]] = field(default_factory=list[Done[Any, Any]])
    sent: float = 0.0
    num_questions: int = 0
    has_copy: bool = False


_Arrival: TypeAlias = tuple[_Flight, object, Any]
"""A batch, the key of one of its tasks, and this task, finished."""


def _outcome(sent: Any) -> bytes | BaseException:
    try:
        return sent.result()
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the batch
        return error


class DaskExecutor(RemoteExecutor):
    """Run batches on the workers of a Dask client; the client stays open.

    `request_of` returns the compile request of a job, if any: its sources are sent along.
    `sent_bytes` and `received_bytes` count the packed tasks and results.
    """

    def __init__(
        self,
        client: Any,
        request_of: Requests = lambda request: request,
        *,
        no_workers_seconds: float = _NO_WORKERS_SECONDS,
        straggler_seconds: float = _STRAGGLER_SECONDS,
    ) -> None:
        self._client: Any = client
        self._request_of = request_of
        self._no_workers_seconds = no_workers_seconds
        self._straggler_seconds = straggler_seconds
        self._snapshots = Snapshots()
        self._packed: dict[int, tuple[Snapshot, bytes]] = {}
        self._digest = _own_digest()
        self._run = uuid.uuid4().hex
        self._lock = threading.RLock()
        self._flights: dict[_Flight, None] = {}
        self._num_sent = 0
        self._longest_seconds = 0.0
        self._num_slots = max(1, sum(self._client.nthreads().values()))
        self._is_closed = threading.Event()
        self.sent_bytes = self.received_bytes = 0
        self._ended: SimpleQueue[_Arrival | None] = SimpleQueue()
        for work in (self._watch, *[self._collect] * _COLLECTORS):
            threading.Thread(target=work, daemon=True).start()

    @property
    def num_slots(self) -> int:
        return self._num_slots

    def wait_for(self, num_slots: int) -> None:
        """Wait until `num_slots` batches can run at a time. Raises: TimeoutError."""
        self._client.wait_for_workers(num_slots, timeout=_FIRST_WORKER_SECONDS)
        self._num_slots = max(1, sum(self._client.nthreads().values()))

    @property
    def dashboard_link(self) -> str:
        """URL of the scheduler's dashboard; empty without Bokeh there."""
        if importlib.util.find_spec("bokeh") is None:
            return ""
        return self._client.dashboard_link or ""

    def warnings(self) -> list[str]:
        """Return warnings about a valid but slow cluster set-up."""
        many = [address for address, n in self._client.nthreads().items() if n > 1]
        if not many:
            return []
        remedy = "start more workers with one each (dask worker --nworkers N --nthreads 1)"
        return [f"the worker at {many[0]} has several threads that compile in turn: {remedy}"]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a batch. Raises: TypeError for anything else."""
        if not isinstance(fn, Batch) or args or kwargs:
            raise TypeError(f"expected a batch, got {fn!r}")
        batch = cast("Batch[Any, Any]", fn)
        flight = _Flight(batch, batch.tasks)
        flight.future.add_done_callback(partial(self._forget, flight))
        with self._lock:
            self._flights[flight] = None
            self._send(flight)
        return flight.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - as Executor has it
        """Cancel the running batches; the client stays open."""
        self._is_closed.set()
        with self._lock:
            flights = list(self._flights)
            copies = [copy for flight in flights for copy in flight.copies.values()]
            for flight in flights:
                flight.copies.clear()
        if copies:
            with contextlib.suppress(Exception):  # without a scheduler there is nothing to cancel
                self._client.cancel(copies, force=True)
        for flight in flights:
            flight.future.cancel()
        for _ in range(_COLLECTORS):
            self._ended.put(None)

    def _send(self, flight: _Flight) -> None:
        requests = [self._request_of(task.request) for task in flight.left]
        snapshot = self._snapshots.of(request for request in requests if request is not None)
        batch = pack(Batch(flight.batch.work, flight.left))
        shipment = Shipment(batch, self._pack_snapshot(snapshot), self._digest)
        self.sent_bytes += len(shipment.batch) + len(shipment.snapshot)
        kernel, _, rest = flight.left[0].label.partition(" ")
        more = f" and {len(flight.left) - 1} more" if len(flight.left) > 1 else ""
        self._num_sent += 1
        key = (f"{kernel}-{self._run}", f"{rest}{more}", self._num_sent)
        try:
            sent = self._client.submit(shipment, key=key, pure=False)
        except Exception as error:  # noqa: BLE001 - a client without a scheduler raises any type
            self._fail(flight, _no_scheduler(str(error)))
            return
        flight.copies[key] = sent
        flight.sent = time.monotonic()
        sent.add_done_callback(partial(self._note_ended, flight, key))

    def _pack_snapshot(self, snapshot: Snapshot) -> bytes:
        # Equal snapshots hold the same objects, since contents are read once.
        names = (*snapshot.files, *snapshot.searches, *snapshot.problems)
        key = hash(names)
        packed = self._packed.get(key)
        if packed is None or packed[0] != snapshot:
            packed = self._packed[key] = (snapshot, pack(snapshot))
        return packed[1]

    def _note_ended(self, flight: _Flight, key: object, sent: Any) -> None:
        self._ended.put((flight, key, sent))

    def _collect(self) -> None:
        """Collect finished tasks, as many at once as possible: a round trip costs more than bytes."""
        while True:
            ended = [self._ended.get()]
            with contextlib.suppress(Empty):
                while len(ended) < _GATHERED:
                    ended.append(self._ended.get_nowait())
            arrived = [arrival for arrival in ended if arrival is not None]
            with self._lock:  # the first copy counts; results of cancelled batches are dropped
                arrived = [arrival for arrival in arrived if arrival[1] in arrival[0].copies]
            for arrival, result in zip(arrived, self._gather(arrived), strict=True):
                self._take_result(*arrival[:2], result)
            if None in ended:
                for _ in range(ended.count(None) - 1):
                    self._ended.put(None)  # each thread ends at its own None
                return

    def _gather(self, arrived: Sequence[_Arrival]) -> list[bytes | BaseException]:
        """Return the result of each task, or its error."""
        outcomes: dict[object, bytes | BaseException] = {}
        finished = {key: sent for _, key, sent in arrived if sent.status == "finished"}
        if len(finished) > 1:
            # If one of them is lost, fetch them one by one.
            with contextlib.suppress(Exception):
                outcomes.update(self._client.gather(finished))
        return [outcomes[key] if key in outcomes else _outcome(sent) for _, key, sent in arrived]

    def _take_result(self, flight: _Flight, key: object, result: bytes | BaseException) -> None:
        answer: Answer | None = None
        if isinstance(result, bytes):
            self.received_bytes += len(result)
            answer = unpack(result)
        with self._lock:
            copy = flight.copies.pop(key, None)
            if copy is None or flight.future.done():
                return
            copy.release()  # now: otherwise the thread's last reference keeps it alive
            if answer is not None:
                self._cancel(flight)
                self._take(flight, answer)
            elif isinstance(result, BaseException) and not flight.copies:
                self._fail(flight, _meaning(result))

    def _take(self, flight: _Flight, answer: Answer) -> None:
        tasks, flight.left = (
            flight.left[: len(answer.results)],
            flight.left[len(answer.results) :],
        )
        for task, (result, seconds) in zip(tasks, answer.results, strict=True):
            flight.results.append(Done(task, result, seconds, answer.worker))
        if answer.question is not None:
            requests = [self._request_of(task.request) for task in flight.left]
            compile_requests = [request for request in requests if request is not None]
            self._snapshots.answer(compile_requests, answer.question)
            flight.num_questions += 1
            if flight.num_questions <= _MAX_QUESTIONS:
                self._send(flight)
                return
            report = f"asked {_MAX_QUESTIONS} times for sources, last for {answer.question!r}"
            flight.results += [
                Done(task, Failure(task.label, report, is_bug=True), 0.0) for task in flight.left
            ]
        seconds = sum(outcome.seconds for outcome in flight.results)
        self._longest_seconds = max(self._longest_seconds, seconds)
        flight.future.set_result(flight.results)

    def _fail(self, flight: _Flight, error: BaseException) -> None:
        if not flight.future.done():
            flight.future.set_exception(error)

    def _forget(self, flight: _Flight, _future: Future[Any]) -> None:
        """Remove all tasks of a batch with a finished future."""
        with self._lock:
            self._flights.pop(flight, None)
            self._cancel(flight)

    def _cancel(self, flight: _Flight) -> None:
        for copy in flight.copies.values():
            copy.release()
        flight.copies.clear()

    def _watch(self) -> None:
        seen = tail = time.monotonic()
        while not self._is_closed.wait(_POLL_SECONDS):
            now = time.monotonic()
            try:
                slots = sum(self._client.nthreads().values())
            except Exception as error:  # noqa: BLE001 - of a connection, in any of its layers
                if self._client.status == "running":
                    continue
                self._fail_all(_no_scheduler(str(error)))
                return
            if slots:
                seen, self._num_slots = now, slots
            elif now - seen > self._no_workers_seconds:
                message = f"the cluster has had no workers for {now - seen:.0f} s"
                self._fail_all(HostError(message, remedy=_RESUME))
                return
            with self._lock:
                flights = list(self._flights)
                if len(flights) >= slots:
                    tail = now  # no worker is idle
                late = self._straggler_seconds + 2 * self._longest_seconds
                for flight in flights:
                    if not flight.has_copy and now - max(tail, flight.sent) > late:
                        flight.has_copy = True
                        self._send(flight)

    def _fail_all(self, error: HostError) -> None:
        with self._lock:
            for flight in list(self._flights):
                self._fail(flight, error)


_RESUME = "build again: what was compiled is in the cache"


def _no_scheduler(reason: str) -> HostError:
    text = f": {reason}" if reason else ""
    return HostError(f"the Dask scheduler is lost{text}", remedy=_RESUME)


def _meaning(error: BaseException) -> BaseException:
    """Translate an error of a task for the caller of the future."""
    distributed = _distributed()
    if isinstance(error, distributed.scheduler.KilledWorker):
        killed = cast("Any", error)
        times, address = killed.allowed_failures + 1, killed.last_worker.address
        message = f"{times} workers ended while they had it, the last one at {address}"
        return WorkerLostError(message)
    if isinstance(error, WrongToolchainError):
        return _mismatch(error.worker, error.versions)
    if isinstance(error, distributed.CancelledError):
        return _no_scheduler(str(error.args[-1]) if error.args else "")
    return error


@contextlib.contextmanager
def connected(
    address: str, num_workers: int, request_of: Requests = lambda request: request
) -> Generator[DaskExecutor]:
    """Connect to the scheduler at `address`, or start `num_workers` here if it is "local".

    Raises: HostError, as `connected_client`.
    """
    with connected_client(address, num_workers) as client:
        executor = DaskExecutor(client, request_of)
        try:
            yield executor
        finally:
            executor.shutdown()


@contextlib.contextmanager
def connected_client(address: str, num_workers: int) -> Generator[Any]:
    """Yield a client of the scheduler at `address`, or of one started here if it is "local".

    Raises: HostError if there is no scheduler, no worker, or a worker with another compiler.
    """
    client, cluster = _open(address, num_workers)
    try:
        try:
            client.wait_for_workers(1, timeout=_FIRST_WORKER_SECONDS)
        except TimeoutError:
            message = f"the Dask scheduler at {address} has no workers"
            raise HostError(message, remedy=f"start one: dask worker {address}") from None
        check_workers(client)
        yield client
    finally:
        for connection in (client, cluster):
            with contextlib.suppress(Exception):  # closing a lost connection may fail
                if connection is not None:
                    connection.close(timeout=_CLOSE_SECONDS)


def _open(address: str, num_workers: int) -> tuple[Any, Any]:
    """Return a client, and the cluster if it is started here."""
    try:
        distributed = _distributed()
    except ImportError as error:
        message = f"--dask needs dask.distributed: {error}"
        raise HostError(message, remedy="pip install 'aotc[dask]'") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    cluster = None
    target: Any = address
    # Threads and processes started now inherit the mask, so only this thread gets Ctrl-C. Start the
    # resource tracker first: it starts with the first process, and would unblock the signal.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if address == LOCAL:
            target = cluster = distributed.LocalCluster(
                n_workers=num_workers,
                threads_per_worker=1,
                host=_LOOPBACK,
                dashboard_address=f"{_LOOPBACK}:0",  # without a host it listens on all interfaces
                silence_logs=logging.CRITICAL,
            )
        return distributed.Client(target, timeout=_CONNECT_SECONDS, set_as_default=False), cluster
    except (OSError, ValueError, TimeoutError) as error:
        reason = str(error).strip().splitlines()
        message = f"no Dask scheduler answers at {address}: {reason[0] if reason else error!r}"
        remedy = "give the address that it prints, such as tcp://host:8786"
        raise HostError(message, remedy=remedy) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def check_workers(client: Any) -> None:
    """Check that all workers have this compiler and these tools. Raises: HostError naming one."""
    identities: dict[str, Any] = client.run(identify, on_error="return")
    for address, answer in identities.items():
        if not isinstance(answer, tuple):
            message = f"the worker at {address} cannot run aotc: {answer}"
            raise HostError(message, remedy=f"install aotc {installed_versions()['aotc']} there")
        versions, digest = cast("tuple[dict[str, str], str]", answer)
        if digest != _own_digest():
            raise _mismatch(address, versions)


def _mismatch(worker: str, versions: dict[str, str]) -> HostError:
    local_versions = installed_versions()
    differ = [name for name in local_versions if local_versions[name] != versions.get(name)]
    if differ:
        worker_text = ", ".join(f"{name} {versions.get(name, 'unknown')}" for name in differ)
        expected = ", ".join(f"{name} {local_versions[name]}" for name in differ)
        message = f"expected {expected} on the worker {worker}, got {worker_text}"
    else:
        message = f"the worker {worker} has another build of the same versions, or another Python"
    return HostError(message, remedy="install the same aotc and Python on all workers")
