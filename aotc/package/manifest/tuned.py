"""Read `[[tuned]]` tables: an autotuner's chosen config for values of its key.

A kernel's tables list the variants to build; these tables choose among them at launch. An archive
cannot hold them, since one function may be several of its kernels. They go to `NAME.sources.json`,
read by `aotc.triton`.
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

    Entries of the key that are None are left out.
    """

    source: str
    function: str
    key: dict[str, Constant]
    dtypes: dict[str, Constant]
    config: dict[str, Constant]


def read_tuned(table: Table, source: str, function: Function) -> TunedConfig:
    """Read a table with a function as its `source`.

    Raises:
        ManifestError: a name is no parameter, or a value is invalid for a key or a config.
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
