"""Cases and devices without a GPU: they are right, wrong, hang, or end their process as they are told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aotc.verify.checks.check import ExecutionFault, Unsuited
from aotc.verify.checks.device import NoDeviceError
from benchmarks.soak.case import ON_HOST, WAITING, Say, Try
from benchmarks.soak.journal import Outcome


@dataclass
class FakeDevice:
    """A device with a name and messages of its waits."""

    name: str = "a fake device"
    say: Say = lambda _: None

    def watch(self, say: Say) -> None:
        self.say = say


def no_device() -> FakeDevice:
    """Open a device where there is none."""
    raise NoDeviceError("no GPU here")


class NoDevice:
    """A device ending the process opening it."""

    def __init__(self) -> None:
        os._exit(3)


@dataclass(frozen=True)
class FakeCase:
    """A case with launches acting by their names."""

    name: str
    launches: tuple[str, ...] = ("right",)
    is_risky: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return f"run {self.name}"

    @contextmanager
    def opened(self, device: FakeDevice) -> Iterator[Iterator[tuple[str, Try]]]:
        assert device.name == "a fake device"
        yield ((launch, _attempt(launch, device)) for launch in self.launches)


def _attempt(launch: str, device: FakeDevice) -> Try:
    def attempt() -> str:
        if launch in ("busy host", "hang after it"):
            device.say(ON_HOST)
            time.sleep(1.2)
        if launch == "hang after it":
            device.say(WAITING)
            time.sleep(600)
        if launch == "hang":
            time.sleep(600)
        if launch == "slow":
            time.sleep(0.2)
        if launch == "fault":
            raise ExecutionFault("an address")
        if launch == "large":
            raise Unsuited("no room")
        if launch == "end":
            os._exit(9)
        if launch == "bug":
            raise KeyError(launch)
        return "1 is not 2" if launch == "wrong" else ""

    return attempt


@dataclass(frozen=True)
class FakePrepared:
    """A worker's output."""

    cases: list[FakeCase]
    outcomes: list[Outcome]


def prepare(task: tuple[FakeCase, ...]) -> FakePrepared:
    """Make nothing ready: the cases are the task; one called "dropped" is, "killed" ends the worker."""
    if any(case.name == "killed" for case in task):
        os._exit(7)
    dropped = [Outcome(case.name, "fake", "dropped") for case in task if case.name == "dropped"]
    return FakePrepared([case for case in task if case.name != "dropped"], dropped)
