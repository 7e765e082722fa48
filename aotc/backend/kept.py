"""What a process has made lately, by what it made it of.

Configs that make no difference to a kernel, such as the stages of one without a loop, give the same
LLVM IR and the same PTX, and a build compiles them one after the other. LLVM and ptxas depend on
their input alone, so that what is found here is what they would make again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_MAX_BYTES = 64 << 20

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """Keep the latest values whose sizes add up to at most `max_bytes`.

    `found_last` says whether the last text that was looked up had a value.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.found_last = False
        self._values: OrderedDict[tuple[str, bytes], tuple[Value, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()  # a worker's threads may compile at once

    def find(self, text: str, options: str) -> Value | None:
        """Return what was made of a text with options, if that is kept."""
        key = _key(text, options)
        with self._lock:
            found = self._values.pop(key, None)
            self.found_last = found is not None
            if found is None:
                return None
            self._values[key] = found  # the latest
        return found[0]

    def keep(self, text: str, options: str, value: Value, num_bytes: int) -> None:
        """Keep what was made of a text with options, at the cost of the oldest."""
        key = _key(text, options)
        with self._lock:
            _, replaced_bytes = self._values.pop(key, (None, 0))
            self._values[key] = value, num_bytes
            self._num_bytes += num_bytes - replaced_bytes
            while self._num_bytes > self.max_bytes:
                _, (_, freed_bytes) = self._values.popitem(last=False)
                self._num_bytes -= freed_bytes


def _key(text: str, options: str) -> tuple[str, bytes]:
    return options, hashlib.sha256(text.encode()).digest()
