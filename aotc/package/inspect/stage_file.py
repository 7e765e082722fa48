"""Go on with a compile from an edited stage: a file of `aotc dump`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aotc import stages
from aotc.compiler import CompileRequest
from aotc.config import CONFIG_KEYS, Config, config_value_problem
from aotc.edited_stage import EditedStage
from aotc.ir.diagnostics import IRError, ManifestError, did_you_mean
from aotc.package.inspect.dump import parse_constant

_TARGET = re.compile(r"(?m)^\.target (\w+)")


def go_on(
    edited: EditedStage,
    goal: str,
    target: str | None,
    settings: Mapping[str, str],
    without: Sequence[str] = (),
) -> str | bytes:
    """Return the stage `goal`, made from an earlier one.

    PTX names its target; elsewhere the default is sm_90a. `settings` are of the config.

    Raises: DiagnosticError.
    """
    order = (*stages.TEXT_STAGES, *stages.LISTINGS, "cubin")
    start = edited.stage
    if order.index(goal) <= order.index(start):
        message = f"expected a stage after {start}, got {goal}"
        later = order[order.index(start) + 1 :]
        raise ManifestError(message, remedy=f"after it come {', '.join(later)}")
    named = _TARGET.search(edited.text) if start == "ptx" else None
    request = CompileRequest(
        source=edited.file,
        kernel="",
        signature=(),
        constants=(),
        target=target or (named[1] if named else "sm_90a"),
        config=_config(settings),
        without=tuple(without),
        map_pointers=True,
    )
    try:
        return stages.continue_from(edited, goal, request)
    except IRError as error:
        raise edited.error(error) from None


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
