"""Show the progress of a build or a verification: not at all, by a line per variant, or by a bar.

A listener gets the reports of `aotc.package` during the work. Its kind depends on standard error,
and on whether the result is JSON.

Invariant: a listener writes to standard error only, and leaves the terminal as it was.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aotc.cli.streams import is_quiet, show
from aotc.ir.diagnostics import one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from aotc.package.builder.workers import Outcome


class Listener:
    """Follow a build or a verification silently; keep the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def started(self, num_variants: int, num_cached: int) -> None:
        """Take the number of variants, and of those already cached."""

    def finished(self, outcome: Outcome) -> None:
        """Take a finished compile."""
        self.advanced(outcome.task.label, _state(outcome), outcome.seconds)

    def advanced(self, label: str, state: str, seconds: float) -> None:
        """Take a finished variant; `state` is empty if all is well."""

    def warned(self, message: str) -> None:
        """Keep a warning."""
        self.warnings.append(message)

    def noted(self, message: str) -> None:
        """Take a note, less than a warning."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class QuietListener(Listener):
    """Print warnings alone."""

    def warned(self, message: str) -> None:
        super().warned(message)
        show(one_line(f"warning: {message}"), err=True)


class PlainListener(QuietListener):
    """Print a line for each compile; for logs, and wherever there is no terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._total = 0
        self._done = 0

    def started(self, num_variants: int, num_cached: int) -> None:
        self._total = num_variants - num_cached

    def advanced(self, label: str, state: str, seconds: float) -> None:
        self._done += 1
        count = f"[{self._done}/{self._total}]"
        text = one_line(" ".join(part for part in (count, label, state) if part))
        show(f"{text} ({seconds:.2f} s)", err=True)

    def noted(self, message: str) -> None:
        show(one_line(f"note: {message}"), err=True)


class BarListener(Listener):
    """Show a progress bar; for a terminal. Nothing is shown while there is nothing to do."""

    def __init__(self, doing: str) -> None:
        super().__init__()
        self._doing = doing
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def started(self, num_variants: int, num_cached: int) -> None:
        if num_variants == num_cached:
            return
        from rich.console import Console  # noqa: PLC0415 - start-up time
        from rich.progress import Progress  # noqa: PLC0415

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._progress.start()
        self._task = self._progress.add_task(self._doing, total=num_variants - num_cached)

    def advanced(self, label: str, state: str, seconds: float) -> None:
        del seconds
        if self._progress is None or self._task is None:
            return
        from rich.markup import escape  # noqa: PLC0415 - start-up time

        if state:
            text = one_line(f"{state.lower()}: {label}")
            self._progress.console.print(text, markup=False, highlight=False)
        self._progress.update(self._task, advance=1, description=escape(one_line(label)))

    def warned(self, message: str) -> None:
        super().warned(message)
        text = one_line(f"warning: {message}")
        if self._progress is None:
            show(text, err=True)
        else:
            self._progress.console.print(text, markup=False, highlight=False)

    def noted(self, message: str) -> None:
        show(one_line(f"note: {message}"), err=True)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def listener_for(*, is_json: bool, doing: str) -> Listener:
    """Return a listener for the kind of standard error and result."""
    if is_json:
        return Listener()
    if is_quiet():
        return QuietListener()
    return BarListener(doing) if sys.stderr.isatty() else PlainListener()


def _state(outcome: Outcome) -> str:
    from aotc.package.cache.store import CachedKernel  # noqa: PLC0415

    if not isinstance(outcome.result, CachedKernel):
        return "FAILED"
    return "left out" if outcome.result.is_misfit else ""
