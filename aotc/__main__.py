"""The process of the command `aotc`, with interrupts handled from start to end.

While the command line is being imported there is nothing to clean up, so an interrupt ends the
process at once. `cli.run` handles interrupts while a command runs. Once it is done, interrupts are
ignored.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"aotc: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line of the process and exit."""
    # Ignored signals stay ignored, as SIGINT in a shell's background jobs.
    answered = [number for number in _INTERRUPTS if signal.getsignal(number) != signal.SIG_IGN]
    for number in answered:
        signal.signal(number, _leave)
    from aotc.cli import run  # noqa: PLC0415 - takes long enough to be interrupted

    output: object = sys.stdout
    if isinstance(output, io.TextIOWrapper):
        output.reconfigure(errors="backslashreplace")  # as standard error has it
    code = run(sys.argv[1:])
    for number in answered:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # at exit Python collects garbage, at a fifth of a build from S3
    sys.exit(code)


if __name__ == "__main__":
    main()
