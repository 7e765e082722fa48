"""The config of a kernel: choices that affect speed alone, one line a key.

A field of `Config` is the only declaration of its key: name, values, default and text for the docs.
Configs from a manifest, a source's autotuner, the command line or `aotc.compile` are all checked
against these. A new key is a line here and its use in the schedule.

Invariant: this module imports nothing of the compiler, so naming a config costs no start-up time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """Describe a key: integers from `low` to `high`, or a boolean if there are none.

    A `default` of None leaves the choice to the compiler, described by `open_choice`; `doc` is the
    key's text in the manifest's reference.
    """

    default: int | None
    doc: str
    low: int = 0
    high: int = 0
    is_power: bool = False
    open_choice: str = ""

    @property
    def values(self) -> str:
        """The values as a message names them."""
        if not self.high:
            return "a boolean"
        return (
            f"{'a power of two' if self.is_power else 'an integer'} from {self.low} to {self.high}"
        )

    def takes(self, value: object) -> bool:
        """Return whether `value` is one of the key's; None is none."""
        if not self.high or isinstance(value, bool):
            return isinstance(value, bool) and not self.high
        if not isinstance(value, int) or not self.low <= value <= self.high:
            return False
        return not self.is_power or value & (value - 1) == 0


def _integer(
    default: int | None,
    low: int,
    high: int,
    doc: str,
    *,
    is_power: bool = False,
    open_choice: str = "",
) -> Any:
    key = ConfigKey(default, doc, low, high, is_power, open_choice)
    return field(default=default, metadata={"key": key})


def _switch(doc: str, open_choice: str) -> Any:
    return field(default=None, metadata={"key": ConfigKey(None, doc, open_choice=open_choice)})


# More groups of warps than a target has threads are no mistake: this target drops the config.
@dataclass(frozen=True, slots=True)
class Config:
    """Hold the value of every config key; None leaves the choice to the compiler."""

    num_warps: int = _integer(4, 1, 32, "warps of a CTA, or of a consumer group", is_power=True)
    num_stages: int = _integer(3, 1, 32, "stages of a software pipeline")
    num_ctas: int = _integer(
        1,
        1,
        16,
        "CTAs in a cluster, one program; targets with clusters hold 8, sm_90a 16",
        is_power=True,
    )
    num_consumer_groups: int = _integer(
        1,
        1,
        3,
        "ping-pong consumer groups of `num_warps` warps, with tiles of their own",
    )
    maxnreg: int | None = _integer(
        None, 16, 255, "registers a thread may use", open_choice="the assembler's choice"
    )
    warp_specialize: bool | None = _switch(
        "a producer warp issues the loads of descriptors",
        "wherever it can",
    )
    mma_stages: int = _integer(
        1,
        1,
        2,
        "dots in flight: with 2, the next is issued before threads compute with the last",
    )
    persistent: bool | None = _switch(
        "a CTA runs several program instances, not one",
        "wherever loads can run ahead across them",
    )
    conditional_rescaling: bool | None = _switch(
        "softmax keeps its shift while it may, with other roundings",
        "where exact",
    )

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Config:
        """Return the config of the config keys among `values`, unchecked."""
        config: dict[str, Any] = {name: values[name] for name in CONFIG_KEYS if name in values}
        return cls(**config)


CONFIG_KEYS: dict[str, ConfigKey] = {
    key_field.name: key_field.metadata["key"] for key_field in fields(Config)
}
# The compiler chooses keys missing here.
CONFIG_DEFAULTS: dict[str, int] = {
    name: key.default for name, key in CONFIG_KEYS.items() if key.default is not None
}
# Keys of earlier releases, and their replacements.
_RENAMED = {"advance_products": "mma_stages = 2"}


def config_value_problem(name: str, value: object) -> str:
    """Return the problem of a reserved config key's value, or an empty string."""
    key = CONFIG_KEYS[name]
    return "" if key.takes(value) else f"expected {key.values} for {name}, got {value!r}"


def renamed_key(name: str) -> str:
    """Return a remedy for a config key of an earlier release, or ""."""
    return f"write {_RENAMED[name]}, the new name" if name in _RENAMED else ""


def config_table() -> str:
    """Return the table of config keys for the manifest's reference, in Markdown."""
    lines = ["|key|values|default|what it sets|", "|-|-|-|-|"]
    for name, key in CONFIG_KEYS.items():
        values = key.values if key.high else "`true` or `false`"
        default = key.open_choice if key.default is None else key.default
        lines.append(f"|`{name}`|{values}|{default}|{key.doc}|")
    return "\n".join(lines) + "\n"
