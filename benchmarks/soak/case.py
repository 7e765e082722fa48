"""A case: a compiled kernel or program, its launches and their expected memory.

Workers make cases, and separate processes launch them; between the two they are files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

Try: TypeAlias = Callable[[], str]
"""Run one launch and return what is wrong, "" if nothing is. Raises: ExecutionFault."""


WAITING, ON_HOST = "waiting", "on the host"
Say: TypeAlias = Callable[[str], None]
"""What is told of a launch on its way: the device is waited for, or the host is at work."""


class Device(Protocol):
    """A device for launches; each kind of case calls its own methods of it."""

    @property
    def name(self) -> str:
        """Device name and driver."""
        ...

    def watch(self, say: Say) -> None:
        """Say WAITING before the device is waited for, and ON_HOST when the host is at work."""
        ...


class Case(Protocol):
    """A variant or a program, ready to be launched.

    `name` is unique, `command` reproduces it; `remarks` are the compiler's. An `is_risky` case
    is launched after all others: see `risk.py`.
    """

    @property
    def name(self) -> str: ...

    @property
    def command(self) -> str: ...

    @property
    def remarks(self) -> tuple[str, ...]: ...

    @property
    def is_risky(self) -> bool: ...

    def opened(self, device: Any) -> AbstractContextManager[Iterator[tuple[str, Try]]]:
        """Load it; yield each launch, with the name to tell before it is tried."""
        ...
