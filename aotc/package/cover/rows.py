"""Propose manifest rows to add the missing variant of a launch.

Invariant: with a row replacing the one of its key, the manifest is still valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aotc.config import CONFIG_KEYS, config_value_problem
from aotc.ir import expression
from aotc.package.archive.index import Kernel, Value, value_key
from aotc.package.cover.choose import Refusal, holds
from aotc.package.manifest.argument_type import PROMISED_DIVISOR, ArgumentType
from aotc.package.manifest.configs import fixed_values, integer_values
from aotc.package.manifest.spec import CartesianConfigs, KernelSpec, ListedConfigs
from aotc.package.manifest.toml_table import Constant
from aotc.package.manifest.toml_text import toml, toml_key
from aotc.package.tuning.shapes import Launch

_MAX_CONSTANT = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a `[[kernel]]` table: in `section`, `key` becomes `values`.

    Values with `is_list` are a list, others one value. A whole `[[kernel.config]]` is a `config`
    without key.
    """

    kernel: str
    section: str
    key: str = ""
    values: tuple[Value, ...] = ()
    is_list: bool = False
    config: tuple[tuple[str, Constant], ...] = field(default=())

    @property
    def text(self) -> str:
        """The row with its section, as TOML."""
        if self.config:
            lines = [f"{toml_key(name)} = {toml(value)}" for name, value in self.config]
            return "\n".join(["[[kernel.config]]", *lines])
        items = ", ".join(map(toml, self.values))
        value = f"[{items}]" if self.is_list else items
        return f"[kernel.{self.section}]\n{toml_key(self.key)} = {value}"


def joined(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Merge rows, each key once: lists of the same key have the values of all."""
    merged: dict[tuple[object, ...], Row] = {}
    for row in rows:
        identity = (row.kernel, row.section, row.key, row.config)
        before = merged.get(identity)
        if before is not None and row.is_list and row.section != "signature":
            values = {value_key(value): value for value in (*before.values, *row.values)}
            row = Row(row.kernel, row.section, row.key, tuple(values.values()), is_list=True)  # noqa: PLW2901
        merged[identity] = row
    return tuple(merged.values())


def row_of(kernel: Kernel, spec: KernelSpec | None, launch: Launch, why: Refusal) -> Row | None:
    """Return the row that would serve a refused launch; None if no single row does.

    `spec` is the manifest's table, None for an archive's kernel.
    """
    match why.problem:
        case "type":
            dtypes = next(v.dtypes for v in kernel.type_variables if v.name == why.name)
            return Row(kernel.name, "types", why.name, (*dtypes, why.value), is_list=True)
        case "choice":
            values = next(c.values for c in kernel.choices if c.name == why.name)
            return Row(kernel.name, "choices", why.name, (*values, why.value), is_list=True)
        case "constant" | "promise" if why.name and spec is not None:
            return signature_row(spec, why.name, launch)
        case "promise" if why.name:
            return _archived_row(kernel, why.name)
        case "condition" | "variant" if spec is not None:
            return _config_row(spec, launch)
        case _:
            return None


def signature_row(spec: KernelSpec, name: str, launch: Launch) -> Row | None:
    """Return the row that passes an argument, with its promise made optional."""
    if name not in spec.signature:
        return None
    argument = spec.signature[name]
    is_kept = launch.key.get(name, 0) % PROMISED_DIVISOR == 0
    text = _type_text(argument, is_promised=is_kept or argument.divisor > 1)
    for owner, kind in spec.tuples.items():
        if name in dict(kind.leaves(owner)):
            return Row(spec.name, "signature", owner, (kind.text(owner, {name: text}),))
    if argument.may_be_none:
        return Row(spec.name, "signature", name, (text, "none"), is_list=True)
    return Row(spec.name, "signature", name, (text,))


def _type_text(argument: ArgumentType, *, is_promised: bool) -> str:
    star = "*" if argument.kind == "pointer" else ""
    divisor = argument.divisor if argument.divisor > 1 else PROMISED_DIVISOR
    promise = f":{divisor}?" if is_promised else ""
    bounds = f" in {argument.bounds[0]}..{argument.bounds[1]}" if argument.bounds else ""
    return f"{star}{argument.element}{promise}{' noalias' if argument.noalias else ''}{bounds}"


def _archived_row(kernel: Kernel, name: str) -> Row:
    param = next(param for param in kernel.params if param.name == name)
    star = "*" if param.kind == "pointer" else ""
    text = f"{star}{param.element}:{PROMISED_DIVISOR}?"
    if name in kernel.nullable:
        return Row(kernel.name, "signature", name, (text, "none"), is_list=True)
    return Row(kernel.name, "signature", name, (text,))


def _config_row(spec: KernelSpec, launch: Launch) -> Row | None:
    """Return a config accepted by the kernel's `where` for a launch, close to an existing one."""
    if spec.where is None or not isinstance(spec.configs, CartesianConfigs | ListedConfigs):
        return None
    names = expression.free_names(spec.where.root)
    best: tuple[float, str, int, Mapping[str, Constant]] | None = None
    for config in _listed(spec.configs):
        fixed = {**fixed_values(spec, config), **launch.choices}
        for name, value in config:
            if name not in names or isinstance(value, bool) or not isinstance(value, int):
                continue
            for other in _near(name, value):
                values = {**integer_values({**fixed, name: other}), **launch.key}
                distance = abs(math.log2(other / max(value, 1)))
                if (best is None or distance < best[0]) and holds(spec.where.root, values):
                    best = distance, name, other, dict(config)
    if best is None:
        return None
    _, name, value, config = best
    if isinstance(spec.configs, ListedConfigs):
        return Row(spec.name, "config", config=tuple({**config, name: value}.items()))
    axis = dict(spec.configs.axes)[name]
    return Row(spec.name, "configs", name, (*axis, value), is_list=True)


def _listed(
    configs: CartesianConfigs | ListedConfigs,
) -> Sequence[tuple[tuple[str, Constant], ...]]:
    if isinstance(configs, ListedConfigs):
        return configs.configs
    # One axis is changed, the others keep their first or last values.
    corners = [tuple((name, values[index]) for name, values in configs.axes) for index in (0, -1)]
    return list(dict.fromkeys(corners))


def _near(name: str, value: int) -> list[int]:
    """Return powers of two valid for the entry, the nearest to its value first."""
    powers = [1 << bit for bit in range(_MAX_CONSTANT.bit_length())]
    allowed = [
        power
        for power in powers
        if power != value and not (name in CONFIG_KEYS and config_value_problem(name, power))
    ]
    return sorted(allowed, key=lambda power: abs(math.log2(power / max(value, 1))))
