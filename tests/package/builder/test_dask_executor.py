"""Jobs on a Dask cluster: shipped sources, losses, and error messages."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc.compiler import CompileRequest
from aotc.ir.diagnostics import HostError
from aotc.package.builder import dask_executor
from aotc.package.builder.dask_executor import DaskExecutor, check_workers, connected
from aotc.package.builder.run import BuildOptions, build, describe_result
from aotc.package.builder.workers import Batch, Failure, Job, Outcome, Task, compile_all, run_all
from aotc.package.cache.store import CachedKernel
from aotc.package.manifest.read import load
from tests.support.fake_compiler import compile_empty
from tests.support.listeners import Silent

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
psutil = pytest.importorskip("psutil")  # required by distributed


@pytest.fixture(scope="module")
def client() -> Generator[Any]:
    """Return a client of two worker processes; a task that ends a worker runs on one more."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=60
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def threads() -> Generator[Any]:
    """Return a client of two worker threads in this process."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def executor(client: Any) -> Generator[DaskExecutor]:
    executor = DaskExecutor(client)
    yield executor
    executor.shutdown()


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


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_job_comes_back_with_its_worker(executor: DaskExecutor, source: Path) -> None:
    tasks = _tasks(source, ["ok"] * 7)
    outcomes = list(compile_all(tasks, compile_empty, 1, executor))
    assert all(isinstance(result, CachedKernel) for result in _results(outcomes).values())
    assert all(outcome.worker.startswith("tcp://") for outcome in outcomes)
    assert {outcome.task for outcome in outcomes} == set(tasks)
    assert executor.sent_bytes > 0 < executor.received_bytes


def test_mistakes_and_bugs_are_told_apart(executor: DaskExecutor, source: Path) -> None:
    tasks = _tasks(source, ["user_error", "bug", "ok"])
    mistake, bug, fine = (
        _results(list(compile_all(tasks, compile_empty, 1, executor)))[task.label] for task in tasks
    )
    assert isinstance(mistake, Failure)
    assert isinstance(bug, Failure)
    assert (mistake.is_bug, bug.is_bug) == (False, True)
    assert mistake.report.startswith(f"{source}:1:1: error: expected a tile, got a list\n")
    assert "def kernel(x): pass" in mistake.report  # the worker shows a line of the shipped source
    assert isinstance(fine, CachedKernel)


@pytest.mark.slow
def test_one_job_that_ends_its_workers_is_named_and_the_rest_is_done(
    executor: DaskExecutor, source: Path
) -> None:
    tasks = [replace(task, label=f"k {task.label}") for task in _tasks(source, ["ok", "killed"])]
    results = _results(list(compile_all(tasks, compile_empty, 1, executor, lambda _: 1e-9)))
    assert isinstance(results["k ok 0"], CachedKernel)
    killed = results["k killed 1"]
    assert isinstance(killed, Failure)
    assert not killed.is_bug
    assert "2 workers ended while they had it, the last one at tcp://" in killed.report


def test_a_worker_killed_at_work_costs_nothing(
    client: Any, executor: DaskExecutor, source: Path
) -> None:
    _wait(lambda: len(client.nthreads()) == 2)
    tasks = _tasks(source, ["ok"] * 12)
    outcomes: list[Outcome] = []
    for outcome in compile_all(tasks, compile_empty, 1, executor):
        if not outcomes:
            victim = next(iter(client.run(os.getpid).values()))
            os.kill(victim, signal.SIGKILL)
        outcomes.append(outcome)
    assert all(isinstance(result, CachedKernel) for result in _results(outcomes).values())
    assert len(outcomes) == len(tasks)


_KERNEL = """\
import triton
import triton.language as tl
from helpers.sizes import BLOCK
import missing

@triton.jit
def fill(out_ptr, n, APPLY: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, APPLY(i), mask=i < n)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a manifest of a kernel using code from two other files."""
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("from . import sizes\n")
    (tmp_path / "helpers" / "sizes.py").write_text("BLOCK = 128\n")
    text = "import triton\n@triton.jit\ndef twice(x):\n    return x * 2\n"
    (tmp_path / "apply.py").write_text(text)
    (tmp_path / "k.py").write_text(_KERNEL)
    path = tmp_path / "kernels.toml"
    path.write_text("""\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_80"]
[[kernel]]
source = "k.py:fill"
[kernel.signature]
out_ptr = "*i32"
n = "i32"
[kernel.constants]
APPLY = "apply.py:twice"
[kernel.configs]
num_warps = [1, 2]
""")
    return path


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_what_was_not_sent_ahead_is_asked_for(
    project: Path, tmp_path: Path, executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aotc.package.builder.snapshots._searches", lambda path, content: [])
    manifest = load(str(project))
    results = [
        build(
            manifest,
            BuildOptions(tmp_path / name, 1),
            Silent(),
            cache=None,
            executor=build_executor,
        )
        for name, build_executor in (("far", executor), ("near", None))
    ]
    assert [result.failures for result in results] == [(), ()]
    assert _files(tmp_path / "far") == _files(tmp_path / "near")
    ran = describe_result(results[0], [])["ran"]
    assert isinstance(ran, list)
    assert {build_executor["variant"] for build_executor in ran} == {
        "fill sm_80 num_warps=1",
        "fill sm_80 num_warps=2",
    }
    assert all(
        build_executor["worker"].startswith("tcp://") and build_executor["seconds"] > 0
        for build_executor in ran
    )


def test_another_compiler_on_a_worker_is_an_error_that_names_it(
    client: Any, executor: DaskExecutor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_executor, "_own_digest", lambda: "other")
    with pytest.raises(HostError, match=r"the worker tcp://.* has another build of the same"):
        check_workers(client)
    other = {"aotc": "9.9", "llvmlite": "1"}
    monkeypatch.setattr(dask_executor, "installed_versions", lambda: other)
    with pytest.raises(HostError, match=r"expected aotc 9\.9, llvmlite 1 on the worker tcp://"):
        check_workers(client)
    # A worker that joins later is checked by its first task.
    late = DaskExecutor(client)
    with pytest.raises(HostError, match=r"on the worker tcp://"):
        list(compile_all(_tasks(source, ["ok"]), compile_empty, 1, late))
    late.shutdown()


def test_keys_name_kernels(threads: Any, source: Path) -> None:
    executor = DaskExecutor(threads)
    started, may_end = threading.Event(), threading.Event()
    _EVENTS[:] = [started, may_end]
    future = executor.submit(Batch(_wait_for_event, (Job("norm sm_80 num_warps=4", None),)))
    assert started.wait(20)
    (keys,) = (
        threads.processing().values()
        if len(threads.processing()) == 1
        else [keys for keys in threads.processing().values() if keys]
    )
    (key,) = keys
    assert key[0].startswith("norm-")
    assert key[1] == "sm_80 num_warps=4"
    assert dask.utils.key_split(key) == "norm"
    may_end.set()
    assert future.result(20)[0].result == "done"
    executor.shutdown()


_EVENTS: list[threading.Event] = []


def _wait_for_event(request: object) -> str:
    started, may_end = _EVENTS
    started.set()
    may_end.wait(20)
    return "done"


def test_closing_the_run_leaves_no_task(threads: Any, source: Path) -> None:
    executor = DaskExecutor(threads)
    _EVENTS[:] = [threading.Event(), threading.Event()]
    tasks = [Job(f"k{index}", None) for index in range(20)]
    outcomes = run_all(tasks, _first_is_quick, 1, executor)
    next(outcomes)
    outcomes.close()
    executor.shutdown()
    _EVENTS[1].set()
    _wait(lambda: not any(threads.processing().values()))
    _wait(lambda: not threads.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))


def _first_is_quick(request: object) -> str:
    started, may_end = _EVENTS
    if started.is_set():
        may_end.wait(20)
    started.set()
    return "done"


def test_a_straggler_is_run_on_another_worker_too(
    threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_executor, "_POLL_SECONDS", 0.05)
    executor = DaskExecutor(threads, straggler_seconds=0.1)
    _EVENTS[:] = [threading.Event(), threading.Event()]
    (outcome,) = run_all([Job("k", None)], _second_is_quick, 1, executor)
    assert outcome.result == "second"
    _EVENTS[1].set()
    executor.shutdown()


def _second_is_quick(request: object) -> str:
    started, may_end = _EVENTS
    if started.is_set():
        return "second"
    started.set()
    may_end.wait(20)
    return "first"


def test_no_workers_for_long_end_the_run(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "_POLL_SECONDS", 0.05)
    executor = DaskExecutor(threads, no_workers_seconds=0.1)
    _EVENTS[:] = [threading.Event(), threading.Event()]
    with monkeypatch.context() as patch, pytest.raises(HostError, match="has had no workers for"):
        patch.setattr(threads, "nthreads", dict)
        list(run_all([Job("k", None)], _wait_for_event, 1, executor))
    _EVENTS[1].set()
    executor.shutdown()


def test_what_a_machine_lacks_another_may_have(threads: Any, source: Path) -> None:
    executor = DaskExecutor(threads)
    _EVENTS[:] = [threading.Event(), threading.Event()]
    (outcome,) = run_all([Job("k", None)], _first_has_no_memory, 1, executor)
    assert outcome.result == "done"
    (outcome,) = compile_all(_tasks(source, ["no memory"]), compile_empty, 1, executor)
    assert isinstance(outcome.result, Failure)
    assert "out of memory" in outcome.result.report
    executor.shutdown()


def _first_has_no_memory(request: object) -> str:
    if not _EVENTS[0].is_set():
        _EVENTS[0].set()
        raise MemoryError
    return "done"


def test_a_lost_scheduler_ends_the_run_and_what_is_done_is_kept() -> None:
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    )
    client = distributed.Client(cluster, set_as_default=False)
    executor = DaskExecutor(client)
    _EVENTS[:] = [threading.Event(), threading.Event()]
    outcomes = run_all([Job(f"k{i}", None) for i in range(3)], _first_is_quick, 1, executor)
    assert next(outcomes).result == "done"
    _EVENTS[1].set()
    cluster.close()
    with pytest.raises(HostError, match="the Dask scheduler is lost") as caught:
        for _ in range(9):
            next(outcomes)
    assert "build again: what was compiled is in the cache" in caught.value.render()
    executor.shutdown()
    client.close(timeout=1)


def test_no_scheduler_and_no_extra_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "_CONNECT_SECONDS", 0.2)
    with (
        pytest.raises(HostError, match="no Dask scheduler answers at tcp://127.0.0.1:1"),
        connected("tcp://127.0.0.1:1", 1),
    ):
        pass
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with (
        pytest.raises(HostError, match="--dask needs dask.distributed") as caught,
        connected("x", 1),
    ):
        pass
    assert "pip install 'aotc[dask]'" in caught.value.render()


def test_a_local_cluster_listens_on_loopback_alone() -> None:
    """Anyone who reaches a scheduler or a worker can run code there."""

    def listening() -> set[tuple[str, int]]:
        me = psutil.Process()
        return {
            connection.laddr
            for process in (me, *me.children(recursive=True))
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }

    before = listening()
    with connected("local", 1):
        opened = listening() - before
    assert len(opened) >= 3  # the scheduler, its dashboard and the worker
    assert {host for host, _ in opened} == {"127.0.0.1"}
