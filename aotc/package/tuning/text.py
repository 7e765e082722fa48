"""Read and write a tuning table: TOML with one line per config and per launch's times.

    [[tuning]]
    kernel = "matmul"
    target = "sm_90a"
    gpu = "NVIDIA H200"
    driver = "12.8"
    clock_mhz = 1980
    date = "2026-11-28"
    l2 = "cold"
    confidence = 0.95
    configs = [
      { BLOCK_M = 64, num_warps = 4 },
      { BLOCK_M = 128, num_warps = 8 },
    ]
    rejected = [
      { config = 1, reason = "hangs" },
    ]

    [[tuning.launch]]
    types = { T = "bf16" }
    choices = {}
    key = { M = 16, N = 4096 }
    weight = 12.0
    microseconds = [8.192, nan]             # by config; nan if not measured

Invariant: equal tables have equal texts, and writing a table after reading it gives the same text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.toml_table import Constant, Document, Mistakes, Table, describe
from aotc.package.manifest.toml_text import toml, toml_table
from aotc.package.text_output import write_text
from aotc.package.tuning.table import CacheState, KernelTuning, Measurement, TuningTable
from aotc.regular_file import MAX_RECORDS_BYTES, read_regular

SUFFIX = ".tuning.toml"
_HEADER = "# Times of configs, written by `aotc tune`; `aotc tune merge` joins such tables.\n"
_TUNING_KEYS = (
    "kernel",
    "target",
    "gpu",
    "driver",
    "clock_mhz",
    "date",
    "l2",
    "confidence",
    "configs",
    "rejected",
    "launch",
)
_LAUNCH_KEYS = ("types", "choices", "key", "weight", "microseconds")
_DECIMALS = 3  # of microseconds: the resolution of a GPU's clock is far above a nanosecond


def tuning_path(manifest: Path) -> Path:
    """Return the path of a manifest's table: `kernels.tuning.toml` next to `kernels.toml`."""
    return manifest.with_name(manifest.stem + SUFFIX)


def rounded(seconds: float) -> float:
    """Round a time to the precision of a table's text."""
    return round(seconds * 1e6, _DECIMALS) / 1e6


def write_tuning(table: TuningTable, path: Path) -> None:
    """Write a table to a file, whole or not at all. Raises: HostError."""
    write_text(path, tuning_text(table))


def tuning_text(table: TuningTable) -> str:
    """Return a table as text, sorted."""
    kernels = sorted(table.kernels, key=lambda kernel: kernel.identity)
    return "\n".join([_HEADER, *("\n".join(_kernel_lines(kernel)) for kernel in kernels)])


def _kernel_lines(tuning: KernelTuning) -> Iterator[str]:
    yield "[[tuning]]"
    for name in ("kernel", "target", "gpu", "driver", "clock_mhz", "date", "l2", "confidence"):
        yield f"{name} = {toml(getattr(tuning, name))}"
    yield "configs = ["
    yield from (f"  {toml_table(config)}," for config in tuning.configs)
    yield "]"
    if tuning.rejected:
        yield "rejected = ["
        for index, reason in sorted(tuning.rejected.items()):
            yield f"  {toml_table({'config': index, 'reason': reason})},"
        yield "]"
    for launch in sorted(tuning.measurements, key=lambda launch: launch.identity):
        yield ""
        yield "[[tuning.launch]]"
        yield f"types = {toml_table(launch.types)}"
        yield f"choices = {toml_table(launch.choices)}"
        yield f"key = {toml_table(launch.key)}"
        yield f"weight = {float(launch.weight)!r}"
        yield f"microseconds = [{', '.join(map(_microseconds, launch.seconds))}]"
    yield ""


def _microseconds(seconds: float | None) -> str:
    return "nan" if seconds is None else repr(round(seconds * 1e6, _DECIMALS))


def read_tuning(path: Path) -> TuningTable:
    """Read the table at `path`. Raises: ManifestError."""
    return parse_tuning(read_document(path, "a tuning table"), str(path))


def read_document(path: Path, expected: str) -> str:
    """Return the text of a TOML file. Raises: ManifestError."""
    try:
        return read_regular(path, MAX_RECORDS_BYTES).decode().removeprefix("\ufeff")
    except OSError as error:
        message = f"expected {expected}, cannot read {path}: {error.strerror or error}"
        raise ManifestError(message) from None
    except UnicodeDecodeError as error:
        message = f"expected {expected} in UTF-8, {path} is not at byte {error.start}"
        raise ManifestError(message, remedy="save the file as UTF-8") from None


def parse_tuning(text: str, file: str) -> TuningTable:
    """Parse a table's text.

    Raises: ManifestError with all mistakes; names the file and the place.
    """
    mistakes = Mistakes()
    root = Document.parse(text, file).root(("tuning",), mistakes)
    tunings: dict[tuple[str, str, str], KernelTuning] = {}
    for table in root.tables("tuning", _TUNING_KEYS) if root.has("tuning") else ():
        with mistakes.collected():
            tuning = _tuning(table, mistakes)
            if tuning.identity in tunings:
                shown = " on ".join(filter(None, (tuning.kernel, tuning.gpu)))
                message = f"expected one table of {shown} for {tuning.target}, got another"
                remedy = "`aotc tune merge` joins two files"
                raise ManifestError(message, table.loc, remedy=remedy)
            tunings[tuning.identity] = tuning
    mistakes.check()
    return TuningTable(tuple(tunings[identity] for identity in sorted(tunings)))


def _tuning(table: Table, mistakes: Mistakes) -> KernelTuning:
    configs = tuple(_constants(config_table) for config_table in _rows(table, "configs", None))
    if not configs:
        raise table.wrong("configs", "expected at least one config, got none")
    launches = table.tables("launch", _LAUNCH_KEYS) if table.has("launch") else ()
    measurements: dict[object, Measurement] = {}
    for launch in launches:
        with mistakes.collected():
            measurement = _measurement(launch, len(configs))
            if measurement.identity in measurements:
                raise ManifestError("expected each launch once, got one again", launch.loc)
            measurements[measurement.identity] = measurement
    return KernelTuning(
        kernel=table.string("kernel"),
        target=table.string("target"),
        gpu=_text(table, "gpu"),
        configs=configs,
        measurements=tuple(measurements.values()),
        rejected=_rejected(table, len(configs)),
        driver=_text(table, "driver"),
        clock_mhz=int(_number(table, "clock_mhz", 0)),
        date=_text(table, "date"),
        l2=_cache_state(table),
        confidence=_number(table, "confidence", 0.0),
    )


def _cache_state(table: Table) -> CacheState:
    state = table.data.get("l2", "cold")
    if state not in ("cold", "warm"):
        raise table.wrong("l2", f'expected "cold" or "warm" for \'l2\', got {describe(state)}')
    return state


def _rejected(table: Table, num_configs: int) -> dict[int, str]:
    rejected: dict[int, str] = {}
    for rejected_table in (
        _rows(table, "rejected", ("config", "reason")) if table.has("rejected") else ()
    ):
        index = rejected_table.data.get("config")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < num_configs:
            message = f"expected the index of a config, 0 to {num_configs - 1}, got"
            raise rejected_table.wrong("config", f"{message} {describe(index)}")
        rejected[index] = rejected_table.string("reason")
    return rejected


def _measurement(table: Table, num_configs: int) -> Measurement:
    key = _constants(table.table("key", None))
    for name, value in key.items():
        if not isinstance(value, int) or isinstance(value, bool):
            message = f"expected an integer for {name!r}, got {describe(value)}"
            raise table.table("key", None).wrong(name, message)
    types = _constants(table.optional_table("types"))
    for name, value in types.items():
        if not isinstance(value, str):
            message = f"expected a dtype for {name!r}, got {describe(value)}"
            raise table.table("types", None).wrong(name, message)
    weight = _number(table, "weight", 1.0)
    if weight < 0:
        raise table.wrong("weight", f"expected a weight from 0, got {weight}")
    return Measurement(
        key=cast("dict[str, int]", key),
        types=cast("dict[str, str]", types),
        choices=_constants(table.optional_table("choices")),
        seconds=_seconds(table, num_configs),
        weight=weight,
    )


def _seconds(table: Table, num_configs: int) -> tuple[float | None, ...]:
    name = "microseconds"
    if not table.is_list(name):
        value = table.data.get(name)
        shown = "none" if value is None else describe(value)
        raise table.wrong(name, f"expected a list for {name!r}, got {shown}")
    listed = cast("list[object]", table.data[name])
    if len(listed) != num_configs:
        message = f"expected {num_configs} times, one for each config, got {len(listed)}"
        raise table.wrong(name, message, "write nan where a config was not measured")
    seconds: list[float | None] = []
    for index, value in enumerate(listed):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or cast("float", value) <= 0 or math.isinf(cast("float", value)):
            message = f"expected a time above 0, or nan, got {describe(value)}"
            raise ManifestError(message, table.element(name, index))
        time = float(cast("float", value))
        seconds.append(None if math.isnan(time) else time / 1e6)
    return tuple(seconds)


def _rows(table: Table, key: str, allowed: tuple[str, ...] | None) -> Iterator[Table]:
    """Yield the tables of a list, possibly empty."""
    listed = table.data.get(key)
    if listed is not None and not isinstance(listed, list):
        raise table.wrong(key, f"expected a list of tables for {key!r}, got {describe(listed)}")
    for index, item in enumerate(cast("list[object]", listed or [])):
        if not isinstance(item, dict):
            message = f"expected a table in {key!r}, got {describe(item)}"
            raise ManifestError(message, table.element(key, index))
        yield table.inner(index, cast("dict[str, object]", item), key).checked(allowed)


def _constants(table: Table) -> dict[str, Constant]:
    return {name: table.constant(name) for name in table}


def _text(table: Table, key: str) -> str:
    """Return the string at `key`, possibly empty or missing."""
    value = table.data.get(key, "")
    if not isinstance(value, str):
        raise table.wrong(key, f"expected a string for {key!r}, got {describe(value)}")
    return value


def _number(table: Table, key: str, default: float) -> float:
    value = table.data.get(key, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise table.wrong(key, f"expected a number for {key!r}, got {describe(value)}")
    return value
