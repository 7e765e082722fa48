"""Label launches and configs in the table and the plots of `aotc bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aotc.package.archive.label import value_text

Row = Mapping[str, Any]


def launch_labels(rows: Sequence[Row]) -> list[str]:
    """Return a label for each launch: its kernel, and the values that differ among its launches."""
    seen: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for name, value in _values(row).items():
            seen.setdefault((row["kernel"], name), set()).add(repr(value))
    return [
        " ".join([
            row["kernel"],
            *(
                f"{name}={value_text(value)}"
                for name, value in _values(row).items()
                if len(seen[row["kernel"], name]) > 1
            ),
        ])
        for row in rows
    ]  # fmt: skip


def _values(row: Row) -> dict[str, object]:
    return {**row["types"], **row["choices"], **row["key"]}


def distinct_labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each config: the entries that differ among them."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    differing = [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]
    return [
        config_label({name: config[name] for name in differing if name in config})
        for config in configs
    ]


def config_label(config: Mapping[str, Any]) -> str:
    """Return the label of a config."""
    return " ".join(f"{name}={value_text(value)}" for name, value in config.items()) or "default"
