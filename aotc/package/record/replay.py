"""Run a program with its Triton kernels launched from archives, in all Python processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from aotc.ir.diagnostics import CompileError
from aotc.package.record.launches import cannot_run

_HOOK = Path(__file__).resolve().parents[2] / "triton" / "hook"


def run_replayed(
    command: Sequence[str],
    archives: Sequence[Path],
    *,
    strict: bool,
    stand_in: bool | None,
    record: str,
    driver: str | None,
) -> NoReturn:
    """Replace this process by a program installing archives; arguments as for `install`.

    Raises: CompileError if an archive or the command does not exist.
    """
    for path in archives:
        if not path.is_file():
            message = f"expected an archive, there is no {path}"
            raise CompileError(
                message, remedy="aotc build writes it: aotc build record/kernels.toml"
            )
    settings = {
        "archives": [str(path.resolve()) for path in archives],
        "strict": strict,
        "stand_in": stand_in,
        "record": str(Path(record).resolve()),
        "driver": driver,
    }
    path = os.pathsep.join([str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "AOTC_REPLAY": json.dumps(settings)}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - what the user asks for
    except OSError as error:
        raise cannot_run(command[0], error, "aotc replay -- python app.py") from None
