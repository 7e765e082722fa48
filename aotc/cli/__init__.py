"""The command line; the only folder that prints or exits.

`process` runs a command, `commands` has them, `progress` follows their work, and all that is shown
goes through `streams`.
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
