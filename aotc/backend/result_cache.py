"""A bounded per-process cache of compile results, keyed by input text and options.

Configs without effect on a kernel, such as the stages of one without a loop, give the same LLVM IR
and PTX. A build compiles them one after the other. LLVM and ptxas depend on their input alone, so a
cached result equals a new one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_MAX_BYTES = 64 << 20

Value = TypeVar("Value")


class ResultCache(Generic[Value]):
    """Keep the latest values of at most `max_bytes` in all.

    `has_hit` tells whether the last look-up had a value.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.has_hit = False
        self._values: OrderedDict[tuple[str, bytes], tuple[Value, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()  # a worker's threads may compile at once

    def find(self, text: str, options: str) -> Value | None:
        """Return the value of a text with options, if cached."""
        key = _key(text, options)
        with self._lock:
            entry = self._values.pop(key, None)
            self.has_hit = entry is not None
            if entry is None:
                return None
            self._values[key] = entry  # the latest
        return entry[0]

    def keep(self, text: str, options: str, value: Value, num_bytes: int) -> None:
        """Cache the value of a text with options, evicting the oldest."""
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
