"""Write the manifest of recorded launches: one table per specialisation of a kernel.

Launches share a table if their types, constants and fixed values are equal. The table's configs
are theirs, including the autotuner's choices. A promise kept by only some of them is optional. So
the manifest builds the recorded launches, and little else.

Invariant: the output parses; a table refused by the manifest's reader becomes a comment.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aotc.config import CONFIG_KEYS
from aotc.frontend.python.resolve import function_names
from aotc.frontend.survey.support import Survey
from aotc.ir import expression
from aotc.ir.diagnostics import CompileError, DiagnosticError, one_line, printable
from aotc.ir.expression import ExpressionError
from aotc.limits import SPILL_BYTES
from aotc.package.init.dtypes import dtype_word
from aotc.package.init.grid import grid_of
from aotc.package.init.launches import launches_of
from aotc.package.manifest.read import parse, read_function
from aotc.package.manifest.toml_text import toml
from aotc.target import TARGETS

_TARGETS = {target.arch: name for name, target in TARGETS.items() if target.variant != "f"}
_DEFAULTS = {"num_warps": 4, "num_stages": 3}
_OPTION_DEFAULTS = {"num_ctas": 1, "maxnreg": None}
_SPILL_BYTES = 1 << 16
_MAX_GRIDS = 8  # listed in a comment
_COMMENT = re.compile(r"^(?=.)", re.MULTILINE)


@dataclass
class Written:
    """A manifest's text, its number of tables, and the refused kernels.

    `tables` are the names of tables by `table_key`; tables in `gridless` have no grid.
    """

    text: str
    num_kernels: int = 0
    refused: list[str] = field(default_factory=list[str])
    tables: dict[str, str] = field(default_factory=dict[str, str])
    gridless: set[str] = field(default_factory=set[str])


@dataclass
class _Group:
    """Launches sharing a table."""

    launches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def first(self) -> dict[str, Any]:
        return self.launches[0]


def package_name(folder: Path) -> str:
    """Derive a package name from a record's folder."""
    name = re.sub(r"\W", "_", folder.resolve().name, flags=re.ASCII)
    return name if name[:1].isalpha() else f"kernels_{name}"


def write_manifest(
    records: Sequence[dict[str, Any]], output: Path, name: str, *, has_all_configs: bool = False
) -> Written:
    """Return the manifest at `output` of recorded launches.

    With `has_all_configs`, autotuned kernels get all configs of their autotuner.

    Raises: CompileError if no launch was on a supported target.
    """
    launches = [record for record in records if "signature" in record and target_of(record)]
    if not launches:
        error = CompileError(
            "expected launches of Triton kernels on an NVIDIA GPU, got none",
            remedy="the program must launch them with kernel[grid](…), in a Python that is started "
            "without -S, -I and -E; of a log, lines with kernels' keys, and their --source",
        )
        for problem in dict.fromkeys(
            record["problem"] for record in records if "problem" in record
        ):
            error.add_context(problem)
        raise error
    tuned = tuned_constants(records)
    listed_configs = _listed_configs(records) if has_all_configs else {}
    groups: dict[str, _Group] = {}
    for launch in launches:
        group = groups.setdefault(table_key(launch, tuned), _Group())
        group.launches.append(launch)
    targets = sorted({target_of(launch) for launch in launches})
    listed = ", ".join(map(toml, targets))
    head = f'[package]\nname = {toml(name)}\nversion = "0.1.0"\ntargets = [{listed}]\n'
    written = Written(f"# Written from recorded launches.\n{head}")
    survey, names = Survey(targets[0]), set[str]()
    built: dict[str, set[str]] = {}  # parameters by kernel
    for key, group in groups.items():
        kernel = _key(group.first["kernel"])
        tunes, all_configs = tuned.get(kernel, set()), listed_configs.get(kernel, [])
        table = _Table(group, tunes, survey, output.parent, all_configs)
        name = table.name(names)
        if _add(written, head, table, name, output):
            names.add(name)
            written.tables[key] = name
            built.setdefault(kernel, set()).update(group.first["signature"])
    written.text += _tuned(records, built, output.parent)
    for record in records:
        if "problem" in record:
            written.refused.append(f"not recorded: {record['problem']}")
    return written


def _listed_configs(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the configs of autotuners by kernel."""
    return {_key(record["kernel"]): record["configs"] for record in records if "configs" in record}


def _add(written: Written, head: str, table: _Table, name: str, output: Path) -> bool:
    """Add a table; without its grid if the reader refuses it, or as a comment if all fails.

    Returns whether a table was added.
    """
    problem = table.problem()
    for grid in () if problem else (table.grid(), []):
        text = table.text(name, grid)
        try:
            parse(f"{head}\n{text}", str(output))
        except DiagnosticError as error:
            problem = error.message
        else:
            written.text += f"\n{text}"
            written.num_kernels += 1
            written.gridless |= set() if grid else {name}
            return True
    kernel = table.first["kernel"]
    written.refused.append(f"{kernel['function']} ({kernel['file']}): {problem}")
    written.text += "\n" + _COMMENT.sub("# ", printable(f"{problem}\n{table.text(name, [])}"))
    return False


def _tuned(records: Sequence[dict[str, Any]], built: Mapping[str, set[str]], folder: Path) -> str:
    """Return the `[[tuned]]` tables: autotuners' choices by key, the last for repeated keys."""
    tables: dict[str, str] = {}
    for record in records:
        parameters: set[str] = (
            built.get(_key(record["kernel"]), set()) if "choice" in record else set()
        )
        if not parameters or "key" not in record:
            continue
        key = {name: value for name, value in record["key"].items() if value is not None}
        config = {
            name: value
            for name, value in record["choice"].items()
            if name in parameters or name in CONFIG_KEYS
        }
        head = [
            "[[tuned]]",
            f"source = {toml(_source(record['kernel'], folder))}",
            f"key = {_inline(key)}",
            f"dtypes = {_inline({name: dtype_word(text) for name, text in record['dtypes'].items()})}",
        ]
        tables["\n".join(head)] = f"config = {_inline(config)}"
    return "".join(f"\n{head}\n{config}\n" for head, config in tables.items())


def _inline(values: Mapping[str, Any]) -> str:
    return f"{{ {', '.join(f'{name} = {toml(value)}' for name, value in values.items())} }}"


def _source(kernel: Mapping[str, Any], folder: Path) -> str:
    """Return a kernel's source, relative to the manifest's folder."""
    file = Path(os.path.relpath(kernel["file"], folder.resolve())).as_posix()
    return f"{file}:{_function(kernel)}"


def _function(kernel: Mapping[str, Any]) -> str:
    """Return a function's name for a manifest: dotted if nested."""
    return str(kernel["function"]).replace(".<locals>", "")


def _key(kernel: Mapping[str, Any]) -> str:
    return f"{kernel['file']}:{kernel['function']}"


def recorded_target(records: Sequence[dict[str, Any]]) -> str:
    """Return the first recorded target, by default sm_90a."""
    targets = sorted({target_of(record) for record in records if "signature" in record} - {""})
    return targets[0] if targets else "sm_90a"


def target_of(launch: Mapping[str, Any]) -> str:
    """Return the target of a launch, "" if unsupported."""
    backend, arch = launch["target"]
    return _TARGETS.get(arch, "") if backend == "cuda" else ""


def tuned_constants(records: Sequence[dict[str, Any]]) -> dict[str, set[str]]:
    """Return the constants set by autotuners, by kernel."""
    tuned: dict[str, set[str]] = {}
    for record in records:
        if "tuned" in record:
            tuned.setdefault(_key(record["kernel"]), set()).update(record["tuned"])
    return tuned


def table_key(launch: Mapping[str, Any], tuned: Mapping[str, set[str]]) -> str:
    """Return the key shared by all launches of a table, given the `tuned_constants`."""
    tunes = tuned.get(_key(launch["kernel"]), set())
    constants = {k: v for k, v in launch["constants"].items() if k not in tunes}
    unbuilt = launch.get("unbuilt", {})
    key = [launch["kernel"], launch["signature"], constants, *_switches(launch).items()]
    key += [unbuilt] if unbuilt else []
    return json.dumps(key, sort_keys=True)


_SWITCHES = {
    "enable_fp_fusion": True, "enable_reflect_ftz": True, "launch_cooperative_grid": False,
}  # fmt: skip


def _switches(launch: Mapping[str, Any]) -> dict[str, bool]:
    """Return a launch's kernel options that differ from the defaults."""
    options = {name: launch["options"].get(name) for name in _SWITCHES}
    return {name: on for name, on in options.items() if on not in (None, _SWITCHES[name])}


# ---- one table --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """The table of a group of launches."""

    group: _Group
    tunes: set[str]
    survey: Survey
    folder: Path
    all_configs: list[dict[str, Any]]  # of its autotuner, with `has_all_configs`

    @property
    def first(self) -> dict[str, Any]:
        return self.group.first

    def problem(self) -> str:
        """Return the reason a manifest cannot express the kernel, "" if it can."""
        kernel = self.first["kernel"]
        name, file = _function(kernel), kernel["file"]
        if not Path(file).is_file():
            return f"{file} is no file: its source cannot be read"
        try:
            opened = self.survey.globals.open(file)
            if name not in function_names(opened):
                read_function(file, name)
        except DiagnosticError as error:
            return error.message
        if captured := kernel.get("captured"):
            reason = f": {kernel['unsaid']}" if "unsaid" in kernel else ""
            return f"{name} captures {', '.join(captured)} of the function around it{reason}"
        for option, value in self.first.get("unbuilt", {}).items():
            return f"it is launched with {option}={value}, which no manifest can say"
        for parameter, constant in self.first["constants"].items():
            is_text = "." in parameter and isinstance(constant.get("value"), str)
            if "other" in constant or is_text:
                value = constant.get("other") or repr(constant["value"])
                return f"{parameter} is {value}, which a manifest cannot say"
        return ""

    def name(self, names: set[str]) -> str:
        """Return a unique table name."""
        kernel = self.first["kernel"]
        base = re.sub(r"\W", "_", kernel["function"].rpartition(".")[2], flags=re.ASCII)
        numbered = (f"{base}_{index}" for index in range(2, len(names) + 3))
        return next(candidate for candidate in (base, *numbered) if candidate not in names)

    def text(self, name: str, grid: Sequence[str]) -> str:
        signature = self.signature()
        lines = [
            "[[kernel]]",
            f"name = {toml(name)}",
            f"source = {toml(_source(self.first['kernel'], self.folder))}",
        ]
        if reason := self.first["kernel"].get("extracted"):
            lines.append(one_line(f"# extracted: {reason}"))
        if grid:
            lines.append(f"grid = [{', '.join(map(toml, grid))}]")
        else:
            grids = [launch["grid"] for launch in self.group.launches if "grid" in launch]
            seen = dict.fromkeys(str(tuple(extents)) for extents in grids)
            more = ", …" if len(seen) > _MAX_GRIDS else ""
            note = f"; seen: {', '.join([*seen][:_MAX_GRIDS])}{more}" if seen else ""
            lines.append(f"# grid: callers give it{note}")
        if any("?" in value for value in signature.values()):
            lines.append('guards = "together"')
        lines += [f"{name} = {toml(is_on)}" for name, is_on in _switches(self.first).items()]
        # The program asks for this config and no other: a slow one is better than none.
        lines.append(f"limits = {{ {SPILL_BYTES} = {_SPILL_BYTES} }}")
        sections = {"signature": signature, "constants": self.constants()}
        for title, values in sections.items():
            if values:
                lines.append(f"[kernel.{title}]")
                lines += self.overlaps() if title == "signature" else []
                lines += [f"{key} = {toml(value)}" for key, value in values.items()]
        return "\n".join([*lines, *self._config_lines()]) + "\n"

    def _config_lines(self) -> list[str]:
        """Return the lines of configs; as axes if all configs form a cross product."""
        configs = self.configs()
        axes = _axes(configs) if self.all_configs else {}
        if axes:
            return [
                "[kernel.configs]",
                *(f"{name} = {toml(values)}" for name, values in axes.items()),
            ]
        lines: list[str] = []
        for config in configs:
            lines.append("[[kernel.config]]")
            lines += [f"{key} = {toml(value)}" for key, value in config.items()]
        return lines

    def overlaps(self) -> list[str]:
        """Return a comment on overlapping arguments; the user may then promise `noalias`."""
        recorded = [launch["overlaps"] for launch in self.group.launches if "overlaps" in launch]
        if not recorded:
            return []
        pairs = dict.fromkeys(
            " and ".join(pair) for launch_pairs in recorded for pair in launch_pairs
        )
        num = f"{len(recorded)} launch{'' if len(recorded) == 1 else 'es'}"
        return [one_line(f"# overlaps seen in {num}: {', '.join(pairs) or 'none'}")]

    def signature(self) -> dict[str, str]:
        """Return the type of each argument, with promises and fixed values."""
        types: dict[str, str] = {}
        for name, text in self.first["signature"].items():
            if name in self.first["constexprs"]:
                continue
            types[name] = self._type(name, text)
        return types

    def _type(self, name: str, kind: Any) -> str:
        """Return the type of an argument, or of a tuple's item (`name` is its path)."""
        if isinstance(kind, dict):
            structure = cast("dict[str, list[Any]]", kind)
            labels = [f"{field}: " for field in structure["fields"]] or [""] * len(
                structure["items"]
            )
            items = [
                label + self._type(f"{name}.{index}", item)
                for index, (label, item) in enumerate(zip(labels, structure["items"], strict=True))
            ]
            return f"({', '.join(items)}{',' * (len(items) == 1)})"
        if kind == "constexpr":
            constant = self.first["constants"][name]
            if "function" in constant:
                return self._function_text(constant["function"])
            value = constant.get("value")
            if not isinstance(value, int | float | None):
                return "none"  # of a table with a problem
            kinds = {bool: "i1", int: "i32", float: "fp32"}
            return "none" if value is None else f"{kinds[type(value)]}={str(value).lower()}"
        is_divisible = [name in launch["divisible"] for launch in self.group.launches]
        promise = ":16" * any(is_divisible) + "?" * (any(is_divisible) and not all(is_divisible))
        element = str(kind).replace("*k", "*", 1)
        if element.lstrip("*") == "u1":  # Triton's name of a bool
            element = element.replace("u1", "i1")
        return element + promise

    def _function_text(self, function: Mapping[str, Any]) -> str:
        """Return the name of a function relative to the kernel's folder."""
        folder = Path(self.first["kernel"]["file"]).parent
        file = Path(os.path.relpath(function["file"], folder)).as_posix()
        return f"{file}:{function['function']}"

    def constants(self) -> dict[str, Any]:
        """Return the constants, except those set by autotuners."""
        constants: dict[str, Any] = {}
        for name in self.first["constexprs"]:
            constant = self.first["constants"].get(name)
            if constant is None or name in self.tunes or name in CONFIG_KEYS:
                continue  # a parameter named num_warps gets the config's value
            if "function" in constant:
                constants[name] = self._function_text(constant["function"])
            elif "value" in constant:
                constants[name] = "None" if constant["value"] is None else constant["value"]
        return constants

    def configs(self) -> list[dict[str, Any]]:
        """Return the distinct launched configs in order, then `all_configs`."""
        configs: dict[str, dict[str, Any]] = {}
        for launch in self.group.launches:
            config = {
                name: launch["constants"][name]["value"]
                for name in sorted(self.tunes & launch["constants"].keys())
            }
            config |= self._options(launch["options"])
            configs.setdefault(json.dumps(config), config)
        for settings in self.all_configs:
            names = sorted(self.tunes & settings.keys() & self.first["signature"].keys())
            config = {name: settings[name] for name in names} | self._options(
                {**_DEFAULTS, **{name: settings[name] for name in CONFIG_KEYS if name in settings}}
            )
            configs.setdefault(json.dumps(config), config)
        return list(configs.values())

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options a config must state."""
        return {
            name: value
            for name, value in options.items()
            if name not in _SWITCHES
            and value is not None
            and (
                name in self.first["constexprs"]
                or _OPTION_DEFAULTS.get(name, value) != value
                or name not in _OPTION_DEFAULTS
            )
        }

    def grid(self) -> list[str]:
        """Return the grid from the launching source if it matches all recorded launches."""
        integers = {name for name, text in self.signature().items() if re.match(r"[iu]\d", text)}
        names = integers | set(self.constants()) | self.tunes
        kernel = _function(self.first["kernel"]).rpartition(".")[2]
        parameters = tuple(self.first["signature"])
        source_grid: list[str] | None = None
        for file, line in sorted(self._callers()):
            try:
                launches = launches_of(
                    self.survey, self.survey.globals.open(file), kernel, parameters
                )
            except DiagnosticError:
                return []
            reached = [launch for launch in launches if line is None or launch.line <= line]
            for launch in reached if line is None else reached[-1:]:
                grid = grid_of(launch, names)
                if grid is None or source_grid not in (None, grid):
                    return []
                source_grid = grid
            if not reached:
                return []
        launches = self.group.launches
        # Triton launches nothing on an empty grid; a manifest's grid has at least one CTA.
        is_empty = any(0 in launch.get("grid", ()) for launch in launches)
        agrees = source_grid and all(_agrees(source_grid, launch) for launch in launches)
        return source_grid if source_grid and agrees and not is_empty else []

    def _callers(self) -> set[tuple[str, int | None]]:
        """Return the launches' call sites (file, line); by default the kernel's own file."""
        kernel_file = {"file": self.first["kernel"]["file"], "line": None}
        callers = [launch.get("caller", kernel_file) for launch in self.group.launches]
        return {(caller["file"], caller["line"]) for caller in callers}


def _axes(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the axes of configs forming a cross product, else an empty mapping."""
    axes: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in config.items():
            values = axes.setdefault(name, [])
            if value not in values:
                values.append(value)
    size = math.prod(len(values) for values in axes.values())
    is_grid = all(config.keys() == axes.keys() for config in configs) and size == len(configs)
    return axes if is_grid and size > 1 else {}


def _agrees(grid: Sequence[str], launch: Mapping[str, Any]) -> bool:
    """Return whether a grid's expressions evaluate to a launch's recorded grid, if any."""
    if "grid" not in launch:
        return True
    values = {k: v["value"] for k, v in launch["constants"].items() if "value" in v}
    values |= {**launch["options"], **launch["integers"]}
    integers = {k: v for k, v in values.items() if isinstance(v, int)}
    try:
        seen = [expression.evaluate(expression.parse(text), integers) for text in grid]
    except (ExpressionError, KeyError):
        return False
    return seen == list(launch["grid"])[: len(seen)] and all(
        extent == 1 for extent in launch["grid"][len(seen) :]
    )
