"""Write a command's output: standard output, standard error, the exit code.

Results go to standard output, progress and errors to standard error, so output can be piped.

Exit codes: 0 done; 1 the user's kernels or manifest are wrong, or the machine lacks something; 2
wrong usage; 3 a bug of ours; 130 interrupted.

Invariant: output may contain text of untrusted files, so all of it passes `show`, or `printable` if
rich prints it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import click

from aotc.ir.diagnostics import HostError, one_line, printable

if TYPE_CHECKING:
    from aotc.package.builder.workers import Failure

EXIT_DONE, EXIT_WRONG, EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
BUG_ADVICE = (
    "This is a bug in aotc, not in your kernels. Please report it on the project's issue tracker\n"
    "with the command, the kernel and the manifest; --debug shows where it happened."
)

_MAX_VARIANTS_LISTED = 4


def show(text: str, *, err: bool = False) -> None:
    """Print a text with the control characters of untrusted files escaped."""
    with writing("error" if err else "output"):
        click.echo(printable(text), err=err)


@contextlib.contextmanager
def writing(stream: str) -> Generator[None]:
    """Report a stream that cannot be written to. Raises: HostError, BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if stream == "output":
            give_up_output()
        raise HostError(f"cannot write to standard {stream}: {error.strerror}") from None


def give_up_output() -> None:
    """Keep Python from flushing the rest at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> None:
    """Print one line about the command as a whole to standard error."""
    show(f"aotc: {message}", err=True)


def report_failures(failures: Sequence[Failure], *, debug: bool) -> None:
    """Print each report once, with its variants; bugs last."""
    variants: dict[tuple[bool, str], list[Failure]] = {}
    for failure in sorted(failures, key=lambda failure: failure.is_bug):
        variants.setdefault((failure.is_bug, failure.report), []).append(failure)
    for (is_bug, report), alike in variants.items():
        show(f"aotc: internal error: {report}" if is_bug else report, err=True)
        for failure in alike[:_MAX_VARIANTS_LISTED]:
            show(f"  note: in {one_line(failure.label)}", err=True)
        if len(alike) > _MAX_VARIANTS_LISTED:
            count = len(alike) - _MAX_VARIANTS_LISTED
            show(f"  note: and in {count} more variants", err=True)
        if is_bug and debug:
            show(alike[0].detail, err=True)
    if any(failure.is_bug for failure in failures):
        show(BUG_ADVICE, err=True)
