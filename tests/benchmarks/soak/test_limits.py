"""The limit on a worker's processor time."""

from __future__ import annotations

import time

import pytest

from benchmarks.soak.limits import time_limit


def test_work_is_ended_and_waiting_is_not() -> None:
    with time_limit(0.05):
        time.sleep(0.2)  # as while others have the processor
    with pytest.raises(TimeoutError, match=r"took more than 0\.05 s"), time_limit(0.05):
        while True:
            pass
    end = time.process_time() + 0.1
    while time.process_time() < end:  # the limit has ended with its block
        pass
