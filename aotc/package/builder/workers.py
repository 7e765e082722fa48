"""Compile and verify in worker processes, so that no kernel can crash the build.

LLVM ends its process on some mistakes, and the system kills a process for using up the memory.
`concurrent.futures` then fails every task of the pool without naming the cause. So the unfinished
tasks run once more, one at a time, and the culprit is reported. Everything else goes on in a new
pool.

Workers are spawned, never forked: they share no locks and no state with the build. They ignore
Ctrl-C, which a terminal sends to the whole process group, and let the parent stop them. They end by
themselves when the parent is gone for any reason. Their temporary files are in one folder of the
pool, removed with it: a killed worker cannot remove its own.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar, final

from aotc.compiler import CompiledKernel, CompileRequest
from aotc.ir.diagnostics import DiagnosticError, HostError, ResourceError, host_error
from aotc.metadata import Metadata
from aotc.package.archive import stored_ptx
from aotc.package.builder.batches import batches
from aotc.package.builder.condition import NEVER, launch_condition
from aotc.package.cache.store import CachedKernel
from aotc.source_snapshot import NotInSnapshotError

# Tasks submitted per worker at once: enough that no worker waits, few enough that little is run
# twice when one dies.
_TASKS_PER_WORKER = 2
_STOP_SECONDS = 2.0
# For a remote executor: its least number of jobs, so that its scheduler sees a use for more
# workers; the default time of a job; and how often a job failed by a machine is retried.
_MIN_REMOTE_JOBS = 64
_SECONDS = 0.5
_RETRIES = 2
# Signals sent by the system or by other people; the other ones are faults of the process itself.
_FOREIGN_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU)
_TERMINATED = 128 + signal.SIGTERM  # as in a shell
_SEMAPHORE_ERRNOS = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOSYS)
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Environment variables read by BLAS libraries when they are loaded.
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_POLL_SECONDS = 0.01

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Job(Generic[RequestT]):
    """A request and its label in messages."""

    label: str
    request: RequestT


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason a job failed; `is_bug` if the fault is ours and not the user's.

    `label` names the variant or kernel; the report does not, so that equal reports are shown once.
    `detail` is the traceback of a bug, for `--debug`. `is_host` means that this machine lacked a
    resource, so the job may succeed on another. `mistakes` are the user's mistakes as data.
    """

    label: str
    report: str
    is_bug: bool = False
    detail: str = ""
    is_host: bool = False
    mistakes: tuple[dict[str, object], ...] = ()

    @staticmethod
    def of(label: str, error: DiagnosticError) -> Failure:
        """Return the failure for a user's mistake and the further mistakes in it."""
        mistakes = tuple(mistake.describe() for mistake in (error, *error.others))
        return Failure(label, error.render(), mistakes=mistakes)


def alike_failures(failures: Iterable[Failure]) -> dict[tuple[bool, str], list[Failure]]:
    """Return the failures by `is_bug` and report: a mistake fails all variants alike."""
    alike: dict[tuple[bool, str], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((failure.is_bug, failure.report), []).append(failure)
    return alike


@dataclass(frozen=True)
class Done(Generic[RequestT, ResultT]):
    """The result of a job, its time in the worker, and the worker if remote."""

    task: Job[RequestT]
    result: ResultT | Failure
    seconds: float
    worker: str = ""


@dataclass(frozen=True)
class Batch(Generic[RequestT, ResultT]):
    """Jobs run one after the other: the callable of an executor."""

    work: Callable[[RequestT], ResultT]
    tasks: tuple[Job[RequestT], ...]

    def __call__(self) -> list[Done[RequestT, ResultT]]:
        return [do(self.work, task) for task in self.tasks]


class WorkerLostError(Exception):
    """A worker ended while it had a batch; the message says which one, and how often."""


class RemoteExecutor(Executor):
    """An executor with remote workers, so that sending a job takes a while.

    So it takes batches, and more of them at once. The future of a batch raises `WorkerLostError` if
    it kills its workers. A `HostError` means that no workers are left, and ends the run.
    """

    @property
    def num_slots(self) -> int:
        """Number of concurrent batches."""
        raise NotImplementedError


Compiler: TypeAlias = Callable[[CompileRequest], CompiledKernel]
Task: TypeAlias = Job[CompileRequest]
Outcome: TypeAlias = Done[CompileRequest, CachedKernel]


def default_jobs() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compile_all(
    tasks: Sequence[Task],
    compiler: Compiler,
    jobs: int,
    executor: Executor | None = None,
    seconds: Callable[[CompileRequest], float] | None = None,
) -> Generator[Outcome, None, None]:
    """Yield the outcome of every compile, in order of completion; see `run_all`."""
    return run_all(tasks, partial(compile_both_ways, compiler), jobs, executor, seconds)


def run_all(
    tasks: Sequence[Job[RequestT]],
    work: Callable[[RequestT], ResultT],
    jobs: int,
    executor: Executor | None = None,
    seconds: Callable[[RequestT], float] | None = None,
) -> Generator[Done[RequestT, ResultT], None, None]:
    """Yield the result of every job, in order of completion.

    With an `executor` the jobs run there, and it is left open. Otherwise they run in `jobs` new
    processes, which end when the iterator is exhausted, closed or interrupted. `work` must be
    picklable; a `DiagnosticError` it raises is the user's mistake. `seconds` returns the expected
    time of a request.

    Raises: HostError if a `RemoteExecutor` has lost its workers for good.
    """
    if isinstance(executor, RemoteExecutor):
        expected = [_SECONDS if seconds is None else seconds(task.request) for task in tasks]
        names = [task.label.partition(" ")[0] for task in tasks]
        index_batches = batches(names, expected, executor.num_slots)
        queue = deque(tuple(tasks[index] for index in batch) for batch in index_batches)
        jobs, retries = max(executor.num_slots, _MIN_REMOTE_JOBS), _RETRIES
    else:
        queue, retries = deque((task,) for task in tasks), 0
    if executor is not None:
        lost: list[Job[RequestT]] = []
        yield from _run(queue, work, jobs, executor, lost, retries)
        for task in (*lost, *(task for batch in queue for task in batch)):
            yield Done(task, Failure(task.label, "the executor broke", is_bug=True), 0.0)
        return
    while queue:
        suspects: list[Job[RequestT]] = []
        with _Pool(min(jobs, len(queue))) as pool:
            yield from _run(queue, work, jobs, pool.executor, suspects, is_own=True)
        yield from _run_isolated(suspects, work)


def _run(
    waiting: deque[tuple[Job[RequestT], ...]],
    work: Callable[[RequestT], ResultT],
    jobs: int,
    executor: Executor,
    lost: list[Job[RequestT]],
    retries: int = 0,
    *,
    is_own: bool = False,
) -> Generator[Done[RequestT, ResultT], None, None]:
    """Run batches from `waiting` until none is left or the executor breaks.

    Running batches are cancelled when the run ends early, unless the executor `is_own` and ends
    too. When it breaks, running jobs go to `lost`. The jobs of a batch that ended its workers run
    again one by one, to find the culprit; a job failed by a machine runs again.
    """
    running: dict[Future[list[Done[RequestT, ResultT]]], tuple[Job[RequestT], ...]] = {}
    failed_by_host: Counter[str] = Counter()
    try:
        while (waiting and not lost) or running:
            while waiting and not lost and len(running) < jobs * _TASKS_PER_WORKER:
                batch = waiting.popleft()
                try:
                    running[executor.submit(Batch(work, batch))] = batch
                except BrokenExecutor:
                    lost += batch
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            # Iterate in the order of submission: a set has none.
            for future in [future for future in running if future in finished]:
                batch = running.pop(future)
                try:
                    results = future.result()
                except BrokenExecutor:
                    lost += batch
                except HostError:
                    raise
                except WorkerLostError as error:
                    if len(batch) > 1:
                        waiting.extend((task,) for task in batch)
                        continue
                    for task in batch:
                        yield Done(task, Failure(task.label, _lost_text(error)), 0.0)
                except Exception as error:  # noqa: BLE001 - a result that cannot be unpickled may raise any type
                    report = f"{type(error).__name__}: {error}"
                    for task in batch:
                        yield Done(task, Failure(task.label, report, is_bug=True), 0.0)
                else:
                    for outcome in results:
                        is_host = isinstance(outcome.result, Failure) and outcome.result.is_host
                        if is_host and failed_by_host[outcome.task.label] < retries:
                            failed_by_host[outcome.task.label] += 1
                            waiting.append((outcome.task,))
                        else:
                            yield outcome
    finally:
        # A pool that loses its processes fails its tasks, and trips over cancelled ones.
        for future in () if is_own else running:
            future.cancel()


def _run_isolated(
    tasks: Sequence[Job[RequestT]], work: Callable[[RequestT], ResultT]
) -> Generator[Done[RequestT, ResultT], None, None]:
    """Run tasks one at a time, each in its own process, and report any that end it."""
    for task in tasks:
        lost: list[Job[RequestT]] = []
        with _Pool(1) as pool:
            yield from _run(deque([(task,)]), work, 1, pool.executor, lost, is_own=True)
            if lost:
                yield Done(task, pool.cause_of_death(task.label), 0.0)


def do(work: Callable[[RequestT], ResultT], task: Job[RequestT]) -> Done[RequestT, ResultT]:
    """Run a job in this process; an exception becomes its result."""
    start = time.monotonic()
    result: ResultT | Failure
    try:
        result = work(task.request)
    except DiagnosticError as error:
        result = Failure.of(task.label, error)
    except (OSError, MemoryError) as error:
        result = _failed_by_host(task.label, error)
    except NotInSnapshotError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of any type is reported as one
        result = _bug(task.label, error)
    return Done(task, result, time.monotonic() - start)


def misfit_text(error: ResourceError) -> str:
    """Format a `ResourceError` as one line, for a remark."""
    return f"{error.message}; what may help: {error.remedy}" if error.remedy else error.message


def _lost_text(error: WorkerLostError) -> str:
    remedy = "their logs may say why: too little memory, or a fault in LLVM, which is ours"
    return HostError(str(error), remedy=remedy).render()


def _bug(label: str, error: Exception) -> Failure:
    report = f"{type(error).__name__}: {error}"
    return Failure(label, report, is_bug=True, detail=traceback.format_exc())


def _failed_by_host(label: str, error: OSError | MemoryError) -> Failure:
    """Return the failure of a job: a machine without enough resources, or else a bug."""
    report = host_error(error)
    if report is None:
        return _bug(label, error)
    return replace(Failure.of(label, report), is_host=True)


def compile_both_ways(compiler: Compiler, request: CompileRequest) -> CachedKernel:
    """Compile with tensor maps, and also without if not all launches can use them.

    If one of the two does not fit the target, only the other is built.
    """
    plain = replace(request, map_pointers=False)
    try:
        kernel = compiler(request)
    except ResourceError as error:
        if not request.map_pointers:
            return _misfit(request, error)
        compiled = compile_both_ways(compiler, plain)
        if compiled.is_misfit:
            return compiled
        remark = f"not built with tensor maps: {misfit_text(error)}"
        remarks = (*compiled.metadata.remarks, remark)
        return replace(compiled, metadata=replace(compiled.metadata, remarks=remarks))
    metadata = kernel.metadata
    condition = launch_condition(request, metadata.guards, metadata.params)
    fallback = None if condition is None else compile_both_ways(compiler, plain)
    if fallback is not None and condition == NEVER:
        return fallback
    misfit = ""
    if fallback is not None and fallback.is_misfit:
        fallback, misfit = None, fallback.misfit
    ptx = stored_ptx.join(kernel.asm["tile"], kernel.asm["ptx"]) if request.with_ptx else None
    return CachedKernel(kernel.cubin, metadata, ptx, fallback, misfit)


def _misfit(request: CompileRequest, error: ResourceError) -> CachedKernel:
    """Return the cache entry for a kernel too large for the target."""
    metadata = Metadata(
        name=request.kernel,
        symbol="",
        target=request.target,
        num_threads=0,
        num_ctas=request.config.num_ctas,
        shared_bytes=0,
        static_shared_bytes=0,
        registers=0,
        spill_bytes=0,
        stack_bytes=0,
        params=(),
        remarks=(),
        ptxas_warnings=(),
        source_files=error.source_files,
        searches=error.searches,
    )
    return CachedKernel(b"", metadata, misfit=misfit_text(error))


class _ShieldedProcess(SpawnProcess):
    """A process shielded from Ctrl-C, even while it starts: its parent ends it.

    Meanwhile the parent defers interrupts too, since it must record the process it starts.
    """

    def start(self) -> None:
        """Start the process with SIGINT blocked; it inherits the mask.

        Raises: KeyboardInterrupt.
        """
        # The resource tracker starts with the first process, and would unblock the signal.
        with _deferred_interrupts():
            resource_tracker.ensure_running()
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                with _one_blas_thread():
                    super().start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _one_blas_thread() -> Generator[None]:
    """Limit BLAS to one thread in processes started in the `with` block, unless users set a number.

    Each core has its worker, so a second thread in a worker would only spin: verifying attention
    takes half the time with one. The limit is inherited through the environment, since a worker may
    load NumPy before it receives any message.
    """
    added = [name for name in _BLAS_THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _deferred_interrupts() -> Generator[None]:
    """Defer interrupts in the `with` block to its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _INTERRUPTS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if caught:
        signal.raise_signal(caught[0])


def _start_worker(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: _end_worker())
    tempfile.tempdir = folder
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _end_worker()


def _end_worker() -> NoReturn:
    """End this process and its children; remove the pool's folder if the parent was killed.

    An exception would run through the current code, finalizers included.
    """
    backend = sys.modules.get("aotc.backend")  # imported with the first compile, if at all
    end_tools = getattr(backend, "end_tools", None)
    if end_tools is not None:
        end_tools()
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive() and tempfile.tempdir is not None:
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    os._exit(_TERMINATED)


class _RecordingContext(SpawnContext):
    """Spawn processes and record them, since an executor does not list them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        process = _ShieldedProcess(*args, **kwargs)
        self.started.append(process)
        return process


def _exit_code(process: SpawnProcess) -> int | None:
    """Wait for the end of a process and return its exit code.

    The executor's thread waits for it too. Only one of the two learns the exit code from the
    system; the other must wait until the first has stored it.
    """
    deadline = time.monotonic() + _STOP_SECONDS
    while process.exitcode is None and time.monotonic() < deadline:
        process.join(_STOP_SECONDS)
        time.sleep(_POLL_SECONDS)
    return process.exitcode


@final
class _Pool:
    """A process pool; it ends with its `with` block, at once on an exception."""

    def __init__(self, jobs: int) -> None:
        self._context = _RecordingContext()
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="aotc-", ignore_cleanup_errors=True)
        except OSError as error:
            raise host_error(error, "cannot make a temporary folder") or error from None
        try:
            self.executor = ProcessPoolExecutor(
                jobs,
                mp_context=self._context,
                initializer=_start_worker,
                initargs=(self._folder.name,),
            )
        except OSError as error:
            self._folder.cleanup()
            if error.errno not in _SEMAPHORE_ERRNOS:
                raise
            message = f"cannot make a semaphore: {error.strerror} (errno {error.errno})"
            remedy = "make sure that /dev/shm exists, is writable and has space"
            raise HostError(message, remedy=remedy) from None

    def __enter__(self) -> _Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._stop_processes()
        # The executor's own thread ends once it has reaped the processes.
        self.executor.shutdown(wait=True, cancel_futures=True)
        self._folder.cleanup()

    def _stop_processes(self) -> None:
        # A process that failed to start has no id, and nothing to stop.
        started = [process for process in self._context.started if process.pid is not None]
        for process in started:
            process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()

    def cause_of_death(self, label: str) -> Failure:
        """Return why the worker with job `label` ended, as far as the system tells."""
        for process in self._context.started:
            code = _exit_code(process)
            if not code:
                continue
            number = signal.SIGTERM if code == _TERMINATED else -code
            if number < 0:
                return Failure(label, f"the worker process ended with code {code}", is_bug=True)
            report = f"the worker process was ended by {signal.Signals(number).name}"
            if number not in _FOREIGN_SIGNALS:
                return Failure(label, report, is_bug=True)
            if number != signal.SIGKILL:
                return Failure.of(label, HostError(report, remedy="build again"))
            remedy = "free memory, or build with fewer jobs (-j)"
            return Failure.of(label, HostError(f"{report}; out of memory?", remedy=remedy))
        return Failure(label, "the worker process ended without a reason", is_bug=True)
