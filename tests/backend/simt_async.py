"""Asynchronous copies of the lockstep machine: they land when they are waited for, and no sooner."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

Space = Callable[[str, int, int], tuple[bytearray, int]]
_COPY = re.compile(
    r"(?:@\$(\d+) )?cp\.async\.(ca|cg)\.shared\.global\S* "
    r"\[\$(\d+)\+(-?\d+)\], \[\$(\d+)\+(-?\d+)\], (\d+)(?:, \$(\d+))?(?:, \$(\d+))?;"
)


class AsyncCopies:
    """Track copies in flight: ungrouped ones, and the groups."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.open: list[tuple[int, bytes]] = []
        self.groups: list[list[tuple[int, bytes]]] = []

    def run(self, code: str, args: list[Any], threads: int) -> int:
        """Run one instruction of the family; return how many threads started a copy."""
        if code == "cp.async.commit_group;":
            self.groups.append(self.open)
            self.open = []
            return 0
        wait = re.fullmatch(r"cp\.async\.wait_group (\d+);", code)
        if wait:
            landed = max(0, len(self.groups) - int(wait[1]))
            for start, content in [copy for group in self.groups[:landed] for copy in group]:
                memory, start_byte = self.space("shared", start, len(content))
                memory[start_byte : start_byte + len(content)] = content
            self.groups = self.groups[landed:]
            return 0
        match = _COPY.fullmatch(code)
        assert match is not None, code
        predicate, cache, target, to, source, by, size_text, third, fourth = match.groups()
        size = int(size_text)
        assert size in (4, 8, 16)
        assert cache == "ca" or size == 16
        # A policy is 64 bits wide, the ignore-source predicate one.
        ignored = [args[int(n)] for n in (third, fourth) if n and args[int(n)].dtype == bool]
        active = args[int(predicate)] if predicate else np.ones(threads, bool)
        for thread in np.flatnonzero(active):
            content = bytes(size)
            if not ignored or not ignored[0][thread]:
                memory, start_byte = self.space(
                    "global", int(args[int(source)][thread]) + int(by), size
                )
                content = bytes(memory[start_byte : start_byte + size])
            address = int(args[int(target)][thread]) + int(to)
            self.space("shared", address, size)
            self.open.append((address, content))
        return int(active.sum())
