"""The measuring process's task, its messages by lines of JSON, and the check that its GPU still works."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

BROKEN = 3
"""The exit code when the GPU's context is lost, and this process with it."""


@dataclass
class Task:
    """Workloads to measure, without `done` ones and `bad` candidates.

    Peers beside aotc are those in `peers`, all if it is None. Tuning a peer takes at most
    `seconds`. With `host` the host's time for a launch counts.
    """

    family: str
    items: list[str]
    only: list[str]
    archive: str
    seconds: float
    peers: list[str] | None
    host: bool
    triton_cache: str
    done: list[str]
    bad: list[str]

    def may_try(self, name: str) -> bool:
        """Report the try of `name` and return True, or False for a bad candidate."""
        if name in self.bad:
            return False
        tell(trying=name)
        return True

    def has(self, peer: str) -> bool:
        """Return whether a peer takes part."""
        return self.peers is None or peer in self.peers


def tell(**line: object) -> None:
    """Write one line for the reader."""
    print(json.dumps(line), flush=True)


def survive() -> None:
    """End this process if the GPU's context is lost: nothing more can be measured in it."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except Exception:  # noqa: BLE001
        sys.exit(BROKEN)
