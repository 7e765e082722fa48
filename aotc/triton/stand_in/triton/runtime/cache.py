"""Base classes of the JIT's cache for programs to extend; there is no JIT to use them."""

from __future__ import annotations

import os
from typing import Any


def default_cache_dir() -> Any:
    """Return Triton's cache folder."""
    return os.path.join(os.path.expanduser("~"), ".triton", "cache")  # noqa: PTH111, PTH118 - start-up time


class CacheManager:
    """A store of compiled kernels."""

    def __init__(self, key: Any, override: Any = False, dump: Any = False) -> None:  # noqa: FBT002 - as Triton has it
        self.key, self.override, self.dump = key, override, dump

    def get_file(self, filename: Any) -> Any:
        """Return None: nothing is there."""
        del filename

    def put(self, data: Any, filename: Any, binary: Any = True) -> Any:  # noqa: FBT002 - as Triton has it
        """Keep nothing."""
        del data, filename, binary

    def get_group(self, filename: Any) -> Any:
        """Return None: nothing is there."""
        del filename

    def put_group(self, filename: Any, group: Any) -> Any:
        """Keep nothing."""
        del filename, group


class FileCacheManager(CacheManager):
    """The same, in files."""
