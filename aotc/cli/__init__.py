"""The command line; only this folder prints or exits.

`process` runs a command, `commands` defines them, `progress` shows their work, and all output goes
through `streams`.
"""

from __future__ import annotations

from aotc.cli.process import main, run
from aotc.cli.streams import EXIT_BUG, EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE, EXIT_WRONG

__all__ = [
    "EXIT_BUG",
    "EXIT_DONE",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "EXIT_WRONG",
    "main",
    "run",
]
