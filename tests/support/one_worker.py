"""A worker process reused by later tests, since starting one takes as long as verifying a small kernel.

It serves tests of compile and verify results; tests of workers themselves start their own. A job sees
the folder and the environment of its test, as in a process started by the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeVar

import pytest
from typing_extensions import Self

from aotc.package.builder import workers

_Pool = workers._Pool  # type: ignore[attr-defined]
_T = TypeVar("_T")


def _as_there(
    folder: str, environment: Mapping[str, str], work: Callable[..., _T], *args: object
) -> _T:
    """Do a job as if this process had been started in a folder, with an environment."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return work(*args)


class _HereExecutor(Executor):
    """Gives jobs to another executor, along with this process's folder and environment."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, work: Callable[..., _T], /, *args: object) -> Future[_T]:
        return self._executor.submit(_as_there, str(Path.cwd()), dict(os.environ), work, *args)


class OneWorker:
    """A stand-in for a pool of workers, reusable any number of times."""

    def __init__(self) -> None:
        self._pool: workers._Pool | None = None  # type: ignore[name-defined]

    @property
    def executor(self) -> Executor:
        if self._pool is None:
            self._pool = _Pool(1)
        return _HereExecutor(self._pool.executor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:  # jobs may be under way: the next test has another worker
            self.close(error)

    def cause_of_death(self, label: str) -> NoReturn:
        """Fail: a test that kills its worker must have its own."""
        self.close(BrokenExecutor())
        pytest.fail(f"{label}: the worker of several tests died")

    def close(self, error: BaseException | None = None) -> None:
        """End the process, at once on an error."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(None if error is None else type(error), error, None)


@pytest.fixture(scope="session")
def _one_worker() -> Iterator[OneWorker]:
    worker = OneWorker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def one_worker(_one_worker: OneWorker) -> Iterator[None]:
    """Run all jobs of a file in the one shared worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_Pool", lambda _jobs: _one_worker)
        yield


@pytest.fixture
def own_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test in such a file have workers of its own."""
    monkeypatch.setattr(workers, "_Pool", _Pool)
