"""Read `[[tuned]]` tables: which config an autotuner chose for which values of its key.

A kernel's tables say what is built; these say what to take of it. An archive has no place for them,
since a function may be several of its kernels: `NAME.sources.json` has, and `aotc.triton` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.config import CONFIG_KEYS
from aotc.ir.diagnostics import did_you_mean
from aotc.package.manifest.parameters import Function
from aotc.package.manifest.toml_table import Constant, Table

TUNED_KEYS = ("source", "key", "dtypes", "config")


@dataclass(frozen=True, slots=True)
class TunedConfig:
    """The config of a function for some values of its autotuner's key, and dtypes of its tensors.

    What is None in the key is left out.
    """

    source: str
    function: str
    key: dict[str, Constant]
    dtypes: dict[str, Constant]
    config: dict[str, Constant]


def read_tuned(table: Table, source: str, function: Function) -> TunedConfig:
    """Read a table whose `source` is a function.

    Raises:
        ManifestError: a name is no parameter, or a value is none that a key or a config has.
    """
    names = [parameter.name for parameter in function.parameters]
    return TunedConfig(
        source=source,
        function=function.name,
        key=_values(table, "key", names),
        dtypes=_values(table, "dtypes", names),
        config=_values(table, "config", [*names, *CONFIG_KEYS]),
    )


def _values(table: Table, title: str, names: list[str]) -> dict[str, Constant]:
    section = table.optional_table(title)
    for name in section:
        if name not in names:
            message = f"expected a parameter, got {name!r}"
            if title == "config":
                message = f"expected a config key or a parameter, got {name!r}"
            raise section.wrong_key(name, message, did_you_mean(name, names))
    return {name: section.constant(name) for name in section}
