"""A limit of time on work in a worker process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = {signal.ITIMER_REAL: signal.SIGALRM, signal.ITIMER_PROF: signal.SIGPROF}


@contextmanager
def time_limit(seconds: float, *, of_processor: bool = False) -> Iterator[None]:
    """Raise TimeoutError in the block once it has taken so long; for a process's main thread.

    The seconds are those of a clock, or `of_processor`, which other processes take nothing from.
    """
    timer = signal.ITIMER_PROF if of_processor else signal.ITIMER_REAL

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    former = signal.signal(_SIGNALS[timer], expire)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(_SIGNALS[timer], former)
