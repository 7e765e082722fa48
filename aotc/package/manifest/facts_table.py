"""Read the `[package.facts]` table: answers to a source's queries about the GPU.

[package.facts]
num_sms = 114                                  # by name: overrides the target's default
"torch.cuda.get_device_name()" = "NVIDIA H100 PCIe"  # by expression: a call without arguments
[package.facts.sm_80]                          # for one target
num_sms = 108
"""

from __future__ import annotations

from typing import TypeAlias

from aotc.ir.diagnostics import did_you_mean
from aotc.package.manifest.toml_table import Constant, Table, describe
from aotc.target import FACTS, TARGETS

Facts: TypeAlias = tuple[tuple[str, Constant], ...]


def read_facts(package: Table) -> dict[str, Facts]:
    """Return the facts of each target; errors are added to the table's mistakes."""
    section = package.optional_table("facts")
    for_all: dict[str, Constant] = {}
    for_one: dict[str, dict[str, Constant]] = {name: {} for name in TARGETS}
    for name in section:
        with package.mistakes.collected():
            if not section.is_table(name):
                for_all[name] = _fact(section, name)
                continue
            inner = section.table(name, None)
            if name not in TARGETS:
                message = f"expected a target, got {name!r}"
                raise section.wrong_key(name, message, did_you_mean(name, TARGETS))
            for_one[name] = {key: _fact(inner, key) for key in inner}
    return {
        name: tuple({**for_all, **target_facts}.items()) for name, target_facts in for_one.items()
    }


def _fact(section: Table, name: str) -> Constant:
    value = section.constant(name)
    kind = FACTS.get(name)
    if kind is None and name.isidentifier():
        message = f"expected a fact about GPUs or an expression that asks for one, got {name!r}"
        remedy = did_you_mean(name, FACTS) or f"facts are {', '.join(FACTS)}"
        raise section.wrong_key(name, message, remedy)
    if kind is not None and type(value) is not kind:
        expected = "an integer" if kind is int else "a string"
        raise section.wrong(name, f"expected {expected} for {name!r}, got {describe(value)}")
    return value
