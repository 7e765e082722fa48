"""`python -m aotc.triton --archive A.aotc -- app.py args…`: run a program with archives installed.

`aotc replay`, where aotc is installed whole, does so in child processes too.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys

from aotc.runtime.errors import AotcError
from aotc.triton import install

_HINT = "the same, and in child processes too: aotc replay --archive FILE -- python app.py"


def main() -> None:
    """Install the archives, then run the program as Python would."""
    parser = argparse.ArgumentParser(
        prog="python -m aotc.triton",
        description="Run a program whose Triton kernels launch from archives.",
    )
    parser.add_argument("--archive", action="append", required=True, help="may be repeated")
    parser.add_argument(
        "--no-strict", action="store_true", help="let Triton compile what no archive has"
    )
    parser.add_argument("--stand-in", action="store_true", help="even where Triton is installed")
    parser.add_argument("--record", default="record", help="folder of what no archive has")
    parser.add_argument("--driver", help="the CUDA driver's library")
    is_whole = importlib.util.find_spec("aotc.cli") is not None
    parser.epilog = _HINT if is_whole else None
    parser.add_argument("program", nargs=argparse.REMAINDER, help="-- app.py …, or -- -m module …")
    options = parser.parse_args()
    program = options.program[options.program[:1] == ["--"] :]
    if is_whole and sys.stderr.isatty():
        sys.stderr.write(f"hint: {_HINT}\n")
    is_module = program[:1] == ["-m"]
    if len(program) < 1 + is_module:
        parser.error("expected a program, as in: -- app.py")
    if not is_module and not os.path.exists(program[0]):  # noqa: PTH110 - start-up time
        parser.error(f"expected a program, there is no {program[0]}; of a module: -- -m MODULE")
    if not is_module and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
        del sys.path[0]  # put there by `-m`; a script has its own folder instead
    try:
        install(
            options.archive,
            strict=not options.no_strict,
            stand_in=True if options.stand_in else None,
            record=options.record,
            driver=options.driver,
        )
    except (AotcError, ValueError) as error:
        sys.exit(f"error: {error}")
    if is_module:
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(program[0])  # noqa: PTH100 - start-up time
    sys.argv = program
    sys.path.insert(0, os.path.dirname(path))  # noqa: PTH120
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main()
