"""Go on with a compile from an edited stage: a file of `aotc dump`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from aotc import stages
from aotc.compiler import CompileRequest
from aotc.config import CONFIG_KEYS, Config, config_value_problem
from aotc.ir.diagnostics import CompileError, IRError, Loc, ManifestError, did_you_mean
from aotc.package.inspect.dump import parse_constant
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular

_TARGET = re.compile(r"(?m)^\.target (\w+)")


def read_stage(path: str) -> str:
    """Return the text of a stage's file. Raises: ManifestError."""
    try:
        return read_regular(Path(path), MAX_SOURCE_BYTES).decode()
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ManifestError(f"expected a stage as text, {path} is not UTF-8") from None


def go_on(
    path: str,
    start: str,
    goal: str,
    target: str | None,
    settings: Mapping[str, str],
    without: Sequence[str] = (),
) -> str | bytes:
    """Return the stage `goal`, made from the stage `start` in the file at `path`.

    PTX names its target; elsewhere the default is sm_90a. `settings` are of the config.

    Raises: DiagnosticError.
    """
    order = (*stages.TEXT_STAGES, *stages.LISTINGS, "cubin")
    if order.index(goal) <= order.index(start):
        message = f"expected a stage after {start}, got {goal}"
        later = order[order.index(start) + 1 :]
        raise ManifestError(message, remedy=f"after it come {', '.join(later)}")
    text = read_stage(path)
    named = _TARGET.search(text) if start == "ptx" else None
    request = CompileRequest(
        source=path,
        kernel="",
        signature=(),
        constants=(),
        target=target or (named[1] if named else "sm_90a"),
        config=_config(settings),
        without=tuple(without),
        map_pointers=True,
    )
    try:
        return stages.continue_from(start, text, goal, request)
    except IRError as error:
        raise stage_error(path, start, error) from None


def stage_error(path: str, stage: str, error: IRError) -> CompileError:
    """Return the report of an edited stage that a later one refuses."""
    line = getattr(error, "line", 0) or (error.loc.line if error.loc is not None else 0)
    loc = Loc(path, line) if line else None
    message = getattr(error, "reason", "") or str(error)
    remedy = "`aotc dump --stage` writes it as the compiler has it"
    return CompileError(f"expected {stage} of a kernel: {message}", loc, remedy=remedy)


def _config(settings: Mapping[str, str]) -> Config:
    values: dict[str, object] = {}
    for name, text in settings.items():
        if name not in CONFIG_KEYS:
            message = f"expected a config key, got {name!r}: the other values are in the stage"
            remedy = did_you_mean(name, CONFIG_KEYS) or f"they are {', '.join(CONFIG_KEYS)}"
            raise ManifestError(message, remedy=remedy)
        values[name] = parse_constant(text)
        problem = config_value_problem(name, values[name])
        if problem:
            raise ManifestError(problem)
    return Config.of(values)
