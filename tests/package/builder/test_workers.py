"""Compiles in worker processes: their results, and recovery from a worker that dies."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aotc.compiler import CompileRequest, compile_kernel
from aotc.ir.diagnostics import HostError
from aotc.package.builder import workers
from aotc.package.builder.workers import (
    Failure,
    Job,
    Outcome,
    Task,
    compile_all,
    compile_both_ways,
    run_all,
)
from aotc.package.cache.store import Cache, CachedKernel
from tests.support.fake_compiler import compile_empty


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "k.py"
    path.write_text("def kernel(x): pass\n")
    return path


def _tasks(source: Path, modes: Sequence[str]) -> list[Task]:
    return [
        Task(
            f"{mode} {index}",
            CompileRequest(
                str(source), "kernel", (("x", "*fp32"),), (("MODE", mode), ("I", index)), "sm_80"
            ),
        )
        for index, mode in enumerate(modes)
    ]


def _results(outcomes: Sequence[Outcome]) -> dict[str, CachedKernel | Failure]:
    assert len({outcome.task.label for outcome in outcomes}) == len(outcomes)
    return {outcome.task.label: outcome.result for outcome in outcomes}


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_comes_back_once(source: Path, jobs: int) -> None:
    tasks, children = _tasks(source, ["ok"] * 5), multiprocessing.active_children()
    results = _results(list(compile_all(tasks, compile_empty, jobs)))
    assert set(results) == {task.label for task in tasks}
    assert all(isinstance(result, CachedKernel) for result in results.values())
    assert multiprocessing.active_children() == children  # `one_worker`'s may be among them


def test_no_tasks_start_no_process() -> None:
    assert list(compile_all([], compile_empty, 4)) == []


def test_a_users_mistake_and_a_bug_are_told_apart(source: Path) -> None:
    tasks = _tasks(source, ["user_error", "ok", "bug"])
    results = _results(list(compile_all(tasks, compile_empty, 1)))
    mistake, fine, bug = (results[task.label] for task in tasks)
    assert isinstance(mistake, Failure)
    assert not mistake.is_bug
    assert mistake.report.startswith(f"{source}:1:1: error: expected a tile, got a list")
    assert mistake.label == "user_error 0"
    assert isinstance(fine, CachedKernel)
    assert isinstance(bug, Failure)
    assert bug.is_bug
    assert bug.report == "ZeroDivisionError: ours"
    assert "Traceback" in bug.detail


def test_what_a_target_has_no_room_for_is_no_mistake(source: Path) -> None:
    (task,) = _tasks(source, ["misfit"])
    result = _results(list(compile_all([task], compile_empty, 1)))[task.label]
    assert isinstance(result, CachedKernel)
    assert result.is_misfit
    assert result.misfit == "3 moons, the limit is 1; what may help: fewer moons"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert result.metadata.source_files == ((str(source), digest),)


_TOO_LARGE = """
import triton
import triton.language as tl
from sizes import BLOCK_K

@triton.jit
def multiply(a_ptr, b_ptr, c_ptr):
    m, k = tl.arange(0, 128), tl.arange(0, BLOCK_K)
    acc = tl.zeros([128, 128], tl.float32)
    for start in range(0, 4096, BLOCK_K):
        a = tl.load(a_ptr + m[:, None] * 4096 + (start + k)[None, :])
        b = tl.load(b_ptr + m[None, :] * 4096 + (start + k)[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * 128 + m[None, :], acc)
"""


def test_a_module_that_shadows_may_make_room(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "k.py").write_text(_TOO_LARGE)
    (tmp_path / "sizes.py").write_text(
        "import triton.language as tl\nBLOCK_K = tl.constexpr(256)\n"
    )
    signature = tuple((f"{name}_ptr", "*fp32:16") for name in "abc")
    request = CompileRequest(str(package / "k.py"), "multiply", signature, (), "sm_90a")
    refused = compile_both_ways(compile_kernel, request)
    assert "of shared memory, the limit is" in refused.misfit
    warnings: list[str] = []

    def found() -> CachedKernel | None:
        return Cache(tmp_path / "cache", "c1", warnings.append).find(request)

    Cache(tmp_path / "cache", "c1", warnings.append).store(request, refused)
    assert found() == refused
    shadow = package / "sizes.py"
    shadow.write_text("import triton.language as tl\nBLOCK_K = tl.constexpr(32)\n")
    assert found() is None
    assert not compile_both_ways(compile_kernel, request).is_misfit
    shadow.unlink()
    assert found() == refused
    assert warnings == []


@pytest.mark.parametrize(("mode", "name"), [("killed", "SIGKILL"), ("abort", "SIGABRT")])
def test_a_worker_that_dies_is_named_and_the_rest_is_done(
    source: Path, mode: str, name: str
) -> None:
    tasks = _tasks(source, ["ok", "ok", mode, "ok", "ok", "ok", "ok"])
    results = _results(list(compile_all(tasks, compile_empty, 2)))
    assert len(results) == len(tasks)
    dead = results.pop(f"{mode} 2")
    assert isinstance(dead, Failure)
    assert dead.is_bug == (mode == "abort")
    assert name in dead.report
    assert ("out of memory" in dead.report) == (mode == "killed")
    assert all(isinstance(result, CachedKernel) for result in results.values())


def test_a_worker_that_others_end_is_no_bug(source: Path) -> None:
    (outcome,) = compile_all(_tasks(source, ["terminated"]), compile_empty, 1)
    assert isinstance(outcome.result, Failure)
    assert not outcome.result.is_bug
    assert outcome.result.report.startswith("error: the worker process was ended by SIGTERM")


@pytest.mark.parametrize("mode", ["full", "no memory"])
def test_what_the_machine_refuses_a_worker_is_no_bug(source: Path, mode: str) -> None:
    (outcome,) = compile_all(_tasks(source, [mode]), compile_empty, 1)
    assert isinstance(outcome.result, Failure)
    assert not outcome.result.is_bug
    reason = "No space left on device (errno 28)" if mode == "full" else "out of memory"
    assert outcome.result.report.startswith(f"error: {reason}\n  help: free ")


def test_no_room_for_semaphores_is_told(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(workers, "ProcessPoolExecutor", refuse)
    with pytest.raises(
        HostError, match=r"cannot make a semaphore: No space .*\n  help: .*/dev/shm"
    ):
        list(compile_all(_tasks(source, ["ok"]), compile_empty, 1))


def _blas_threads(name: str) -> str | None:
    return os.environ.get(name)


def test_a_worker_leaves_the_other_cores_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")  # a user's own wish stays
    names = ["OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]
    outcomes = list(run_all([Job(name, name) for name in names], _blas_threads, 2))
    assert {outcome.task.label: outcome.result for outcome in outcomes} == dict(
        zip(names, "13", strict=True)
    )
    assert "OPENBLAS_NUM_THREADS" not in os.environ


_LOADS_NUMPY = """
import os
SEEN = os.environ.get("OPENBLAS_NUM_THREADS")  # as NumPy would, if it were loaded here
from aotc.package.builder.workers import Job, run_all

def work(_):
    return SEEN

if __name__ == "__main__":
    print(*(done.result for done in run_all([Job("a", 0), Job("b", 0)], work, 2)), SEEN)
"""


def test_what_a_program_loads_itself_has_one_thread_in_workers(tmp_path: Path) -> None:
    """A BLAS library reads how many threads it may have when it is loaded, with NumPy."""
    script = tmp_path / "loads.py"
    script.write_text(_LOADS_NUMPY)
    environment = {n: v for n, v in os.environ.items() if n != "OPENBLAS_NUM_THREADS"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    process = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env=environment
    )
    assert process.stdout == "1 1 None\n"


def _temporary_folder(_: str) -> str:
    return tempfile.mkdtemp()


def test_what_a_worker_leaves_goes_with_the_pool() -> None:
    (outcome,) = run_all([Job("leave", "leave")], _temporary_folder, 1)
    assert isinstance(outcome.result, str)
    assert not Path(outcome.result).exists()
    assert not Path(outcome.result).parent.exists()
    assert Path(outcome.result).parent != Path(tempfile.gettempdir())


def test_leaving_early_stops_the_workers(source: Path) -> None:
    tasks = _tasks(source, ["ok", "slow", "slow", "slow"])
    children_before = multiprocessing.active_children()
    outcomes = compile_all(tasks, compile_empty, 2)
    first = next(outcomes)
    assert first.task.label == "ok 0"
    children = [
        process for process in multiprocessing.active_children() if process not in children_before
    ]
    assert children
    start = time.monotonic()
    outcomes.close()
    assert time.monotonic() - start < 10
    assert not any(child.is_alive() for child in children)


def test_an_interrupt_while_jobs_wait_leaves_no_traceback(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The threads of an executor print their errors.
    monkeypatch.setattr(workers, "_TASKS_PER_WORKER", 8)  # more than the workers, so that some wait
    tripped: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", tripped.append)

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(compile_all(_tasks(source, ["slow"] * 16), compile_empty, 2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert not tripped


def test_takes_any_executor_and_leaves_it_open(source: Path) -> None:
    tasks = _tasks(source, ["ok", "user_error", "ok"])
    with ThreadPoolExecutor(2) as executor:
        results = _results(list(compile_all(tasks, compile_empty, 2, executor)))
        assert executor.submit(int).result() == 0
    kinds = [isinstance(results[task.label], CachedKernel) for task in tasks]
    assert kinds == [True, False, True]


def test_a_foreign_executor_that_breaks_fails_what_is_left(source: Path) -> None:
    tasks = _tasks(source, ["killed", "ok", "ok", "ok", "ok", "ok"])
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        results = _results(list(compile_all(tasks, compile_empty, 1, executor)))
    assert set(results) == {task.label for task in tasks}
    failure = results["ok 5"]
    assert isinstance(failure, Failure)
    assert failure.report == "the executor broke"


class _Lossy(Executor):
    """Fail to bring results back, as when one cannot be pickled."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(TypeError("cannot pickle"))
        return future


def test_a_result_that_is_lost_is_a_bug(source: Path) -> None:
    (outcome,) = compile_all(_tasks(source, ["ok"]), compile_empty, 1, _Lossy())
    assert outcome.result == Failure("ok 0", "TypeError: cannot pickle", is_bug=True)
