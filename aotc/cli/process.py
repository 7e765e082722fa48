"""Run a command as the process: arguments in, exit code out, on every path.

Invariant: no traceback reaches a user who did not ask for one with `--debug`.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import click

from aotc.cli.benching import commands
from aotc.cli.streams import (
    BUG_ADVICE,
    EXIT_BUG,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_WRONG,
    complain,
    give_up_output,
    show,
    writing,
)
from aotc.ir.diagnostics import DiagnosticError, host_error, one_line

if TYPE_CHECKING:
    from aotc.package.builder.workers import Compiler

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLEANING_SECONDS = 3.0  # during these, a second interrupt is ignored


def main() -> None:
    """Run the command line of the process and exit."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str], compiler: Compiler | None = None) -> int:
    """Run a command and return its exit code; `compiler` replaces the one for builds."""
    is_debug = "--debug" in args
    with _interruptible():
        try:
            code = commands.main(list(args), "aotc", standalone_mode=False, obj=compiler)
            if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - may be closed
                with writing("output"):
                    sys.stdout.flush()
        except click.ClickException as error:
            return _report_usage(error)
        except (click.Abort, KeyboardInterrupt):
            complain("interrupted")
            return EXIT_INTERRUPTED
        except DiagnosticError as error:
            show(error.render(), err=True)
            return EXIT_WRONG
        except BrokenPipeError:
            give_up_output()  # the reader closed the pipe
            return EXIT_WRONG
        except Exception as error:  # noqa: BLE001 - the last line of defence
            return _report_exception(error, is_debug=is_debug)
        return code if isinstance(code, int) else EXIT_DONE


def _report_usage(error: click.ClickException) -> int:
    """Report a wrong use of a command, with its usage, and return the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    message = " ".join(error.format_message().split())
    show(one_line(f"error: {message}"), err=True)
    if ctx is not None:
        show(f"  help: {ctx.get_usage()[len('Usage: ') :]}; `{ctx.command_path} --help`", err=True)
    return error.exit_code


def _report_exception(error: Exception, *, is_debug: bool) -> int:
    """Report an unhandled exception and return the exit code: a bug, or the machine's fault."""
    from aotc.package.archive.index import ArchiveError  # noqa: PLC0415 - start-up time

    if isinstance(error, ArchiveError):
        show(error.render(), err=True)
        return EXIT_WRONG
    refused = host_error(error) if isinstance(error, OSError | MemoryError) else None
    if refused is not None:
        show(refused.render(), err=True)
        return EXIT_WRONG
    complain(f"internal error: {type(error).__name__}: {error}")
    if is_debug:
        show(traceback.format_exc(), err=True)
    show(BUG_ADVICE, err=True)
    return EXIT_BUG


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """Let SIGTERM and SIGHUP interrupt like Ctrl-C, and let none interrupt the clean-up of another."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -_CLEANING_SECONDS

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _CLEANING_SECONDS:
            last = now
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _INTERRUPTS}
    # An ignored signal stays ignored; a handler outside of Python (None) could not be restored.
    answered = [n for n, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for number in answered:
            signal.signal(number, interrupt)
        yield
    finally:
        for number in answered:
            signal.signal(number, before[number])
