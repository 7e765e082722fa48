"""A worker process that stays for the next test: starting one takes as long as verifying a small kernel.

It is for tests of what is compiled and verified, not of how: those have workers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from types import TracebackType
from typing import NoReturn

import pytest
from typing_extensions import Self

from aotc.package import workers

_Pool = workers._Pool  # type: ignore[attr-defined]


class OneWorker:
    """What stands for a pool of workers, as often as it is asked for."""

    def __init__(self) -> None:
        self._pool: workers._Pool | None = None  # type: ignore[name-defined]

    @property
    def executor(self) -> object:
        if self._pool is None:
            self._pool = _Pool(1)
        return self._pool.executor

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
        """Give up: a test whose worker dies has to have one of its own."""
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


@pytest.fixture
def one_worker(monkeypatch: pytest.MonkeyPatch, _one_worker: OneWorker) -> None:
    """Let all jobs of a test run in the one worker that stays."""
    monkeypatch.setattr(workers, "_Pool", lambda _jobs: _one_worker)
