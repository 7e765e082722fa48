"""The process of the command `aotc`: it answers interrupts from its first moment to its last.

While the command line is still being imported there is nothing to clean up, so an interrupt ends
the process there and then; `cli.run` answers those that come while a command runs; and once it is
done, one can no longer change anything.
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
    # What is ignored, as a shell ignores SIGINT for what it runs in the background, stays ignored.
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
    gc.freeze()  # Python looks for garbage as it ends, and a fifth of a build from S3 would go to that
    sys.exit(code)


if __name__ == "__main__":
    main()
