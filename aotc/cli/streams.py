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
import re
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
_QUIET = "aotc.quiet"
_COLOURS = {"error": "red", "warning": "yellow", "help": "green", "note": "cyan", "remark": "cyan"}
_WORD = re.compile(rf"(?m)^(?P<place>[^\s:]+(?::\d+)*: | *)(?P<word>{'|'.join(_COLOURS)}):")
_CARETS = re.compile(r"(?m)^ *\^+$")


def _be_quiet(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    ctx.meta[_QUIET] = bool(value)


quietly = click.option(
    *("-q", "--quiet"),
    is_flag=True,
    expose_value=False,
    callback=_be_quiet,
    help="Show no progress and no notes: results, warnings and errors alone.",
)


def is_quiet() -> bool:
    """Return whether the command was asked for results, warnings and errors alone."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_QUIET))


def show(text: str, *, err: bool = False) -> None:
    """Print a text with the control characters of untrusted files escaped."""
    with writing("error" if err else "output"):
        text = printable(text)
        click.echo(coloured(text) if err and has_colours() else text, err=err)


def tell(text: str) -> None:
    """Print a note or a summary to standard error, unless the command is to be quiet."""
    if not is_quiet():
        show(text, err=True)


def has_colours() -> bool:
    """Return whether standard error is a terminal whose user has not declined colours.

    Source: no-color.org.
    """
    declined = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stderr.isatty() and not declined


def coloured(report: str) -> str:
    """Colour the words that begin reports, and the carets below a source line."""
    text = _WORD.sub(
        lambda match: (
            match["place"] + click.style(f"{match['word']}:", _COLOURS[match["word"]], bold=True)
        ),
        report,
    )
    return _CARETS.sub(lambda match: click.style(match[0], "red", bold=True), text)


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
    from aotc.package.builder.workers import alike_failures  # noqa: PLC0415 - start-up time

    ordered = sorted(failures, key=lambda failure: failure.is_bug)
    for (is_bug, report), alike in alike_failures(ordered).items():
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
