"""Read the log of a JIT monitor: the kernels compiled by Triton, with their specialisations.

Monitors are hooks of Triton's JIT (`knobs.runtime.jit_cache_hook`, `jit_post_compile_hook`, or around
`triton.compile`). Their lines have one of three forms, after any logger's prefix:

    …: NAME (key=[('*fp16', 'D'), ('i32', ''), ('constexpr', 64)]{'num_warps': 4}). …
    …: NAME (constexprs={BLOCK=64}; signature={x='*fp16', …}; extra_compile_info={…}; key=…). …
    {"name": …, "module": …, "specialization_data": "…"}, or the fields of that, one by one

The first two are from vLLM's monitor: by position, and by name with `--jit-monitor-verbose`. The
last is a hook's argument as JSON. From `TRITON_PRINT_AUTOTUNING=1`, the chosen configs are read.

Invariant: the log's text is never evaluated as code; unreadable lines are reported by number.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias, cast

from aotc.tuple_constant import tuple_text

Path: TypeAlias = tuple[int | str, ...]
"""A parameter, by position or name, then the indices into its nested tuples."""

_EVENT = re.compile(r"JIT compilation during inference: ([\w.<>]+)")
_AUTOTUNED = re.compile(r"Triton autotuning for function ([\w.<>]+)")
_CHOSEN = re.compile(r"best config selected: ([^\n;]*);")
_MAX_LINES_TO_CHOICE = 4  # length of an autotuner's message
_PAIR = re.compile(r"(\w+): ([^,]+)(?:, |$)")
_DIVISIBLE = re.compile(r"\(([\d, ]+)\): \[\[['\"]tt\.divisibility['\"], 16\]\]")
_OPTION = re.compile(
    r"\b(num_warps|num_stages|num_ctas|maxnreg|enable_fp_fusion|enable_reflect_ftz)=(\w+)"
)
_ARCH = re.compile(r"(?:sm_?|arch=['\"]?(?:sm_?)?)(\d{2,3})")
_OBJECT = re.compile(r"<[^<>]*>")
_BRACKETS = {**dict.fromkeys("([{", 1), **dict.fromkeys(")]}", -1)}
_MAX_DEPTH = 50  # recursive functions write and read the records
# Exceptions from parsing untrusted text.
_UNREADABLE = (
    ValueError, SyntaxError, LookupError, TypeError, AttributeError, RecursionError, MemoryError,
)  # fmt: skip
_NAMES = ("name", "fn", "kernel", "kernel_name", "function")
_OPTION_NAMES = (
    *("num_warps", "num_stages", "num_ctas", "maxnreg"),
    *("enable_fp_fusion", "enable_reflect_ftz"),
)


@dataclass(frozen=True)
class Compiled:
    """A compiled specialisation; `types` are by position or by name, lists for tuples.

    `constants` are in the recorder's form. With `open_promises`, the log omits the promises.
    """

    name: str
    module: str
    types: Sequence[Any] | Mapping[str, Any]
    constants: Mapping[Path, dict[str, Any]]
    divisible: frozenset[Path]
    options: Mapping[str, Any]
    arch: int = 0
    open_promises: bool = False


@dataclass
class JitLog:
    """The contents of a log: specialisations, autotuners' choices by function, problems."""

    compiled: list[Compiled] = field(default_factory=list[Compiled])
    choices: dict[str, list[dict[str, Any]]] = field(
        default_factory=dict[str, list[dict[str, Any]]]
    )
    problems: list[str] = field(default_factory=list[str])

    def read_entry(self, number: int, text: str) -> None:
        """Parse an entry beginning at line `number`, and add it."""
        event = _EVENT.search(text)
        try:
            _check_depth(text)
            compiled = _of_text(text) if event else _of_json(text)
        except _UNREADABLE as error:
            name = event[1].rstrip(".") if event else "a kernel"
            self.problems.append(f"line {number}: {name}: {error or type(error).__name__}")
        else:
            self.compiled += [] if compiled is None else [compiled]


def read_log(text: str) -> JitLog:
    """Parse a log."""
    log = JitLog()
    for function, chosen in _autotuned(text):
        config = {name: _word(value) for name, value in _PAIR.findall(chosen)}
        log.choices.setdefault(function, []).append(config)
    for number, line in _entries(text):
        log.read_entry(number, line)
    return log


def _autotuned(text: str) -> Iterator[tuple[str, str]]:
    """Yield functions and their autotuners' chosen configs, in time linear in the text."""
    heads = [*_AUTOTUNED.finditer(text)]
    ends = [*(match.start() for match in heads[1:]), len(text)]
    for head, limit in zip(heads, ends, strict=False):  # an empty list of heads still has one end
        end = head.end()
        for _ in range(_MAX_LINES_TO_CHOICE + 1):
            newline = text.find("\n", end, limit)
            end = limit if newline < 0 else newline + 1
        chosen = _CHOSEN.search(text, head.end(), end)
        if chosen is not None:
            yield head[1], chosen[1]


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Yield event lines and JSON values (possibly multi-line), with line numbers."""
    decoder = json.JSONDecoder()
    position, number = 0, 1
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end]
        if _EVENT.search(line):
            yield number, line
        elif (brace := line.find("{")) >= 0:
            try:
                _, stop = decoder.raw_decode(text, position + brace)
            except ValueError:
                stop = 0
            except RecursionError:
                stop = 0
                yield number, line
            if stop:
                yield number, text[position + brace : stop]
                end = max(end, stop if text.find("\n", stop) < 0 else text.find("\n", stop))
        number += text.count("\n", position, end) + 1
        position = end + 1


def _check_depth(text: str) -> None:
    """Reject brackets nested too deeply to parse. Raises: ValueError."""
    depths = accumulate(_BRACKETS.get(char, 0) for char in text)
    if max(depths, default=0) > _MAX_DEPTH:
        raise ValueError(f"its brackets are nested deeper than {_MAX_DEPTH}")


def _word(text: str) -> Any:
    """Parse a literal (number, bool, None); return other text unchanged."""
    try:
        return ast.literal_eval(text.strip())
    except _UNREADABLE:
        return text.strip()


# ---- lines of text -----------------------------------------------------------------------------


def _of_text(line: str) -> Compiled:
    match = _EVENT.search(line)
    name = match[1].rstrip(".") if match else ""
    rest = line[match.end() :] if match else ""
    if rest.startswith(" (key=["):
        return _of_key(name, rest[len(" (key=") :])
    if "signature={" in rest:
        return _of_sections(name, rest)
    raise ValueError(
        "it is named without what it was compiled for; start vLLM with --jit-monitor-verbose"
    )


def _of_key(name: str, text: str) -> Compiled:
    """Read the key of Triton's cache: types with attributes, and the launch's options."""
    end = _end_of(text, 0)
    listed = _value(text[:end])
    options: Any = _value(text[end : _end_of(text, end)]) if text[end : end + 1] == "{" else {}
    constants: dict[Path, dict[str, Any]] = {}
    divisible: set[Path] = set()

    def walk(kind: Any, attributes: Any, path: Path) -> Any:
        if isinstance(kind, tuple):
            items = cast("tuple[Any, ...]", kind)
            return [
                walk(element, attributes[index], (*path, index))
                for index, element in enumerate(items)
            ]
        if kind == "constexpr":
            constants[path] = _constant(attributes)
        elif isinstance(attributes, str) and "D" in attributes:
            divisible.add(path)
        return kind

    types = [walk(kind, attributes, (index,)) for index, (kind, attributes) in enumerate(listed)]
    return Compiled(name, "", types, constants, frozenset(divisible), _options(options))


def _of_sections(name: str, text: str) -> Compiled:
    """Read the verbose form of vLLM's monitor; it truncates long values, promises included."""
    types = {key: _value(value) for key, value in _section(text, "signature")}
    constants: dict[Path, dict[str, Any]] = {}
    for key, value in _section(text, "constexprs"):
        owner, *indices = re.findall(r"\w+", key)
        constants[(owner, *map(int, indices))] = _constant(_value(value))
    extra = text[text.find("extra_compile_info=") :]
    divisible = {
        tuple(map(int, re.findall(r"\d+", indices)))
        for indices in _DIVISIBLE.findall(extra[extra.find("configs=") :].partition("...")[0])
    }
    is_cut = "..." in extra.partition("configs=")[2].partition(", device=")[0]
    arch = _ARCH.search(extra)
    return Compiled(
        name,
        "",
        {key: _listed(kind) for key, kind in types.items()},
        constants,
        frozenset(divisible),
        {key: _word(value) for key, value in _OPTION.findall(extra)},
        int(arch[1]) if arch else 0,
        open_promises=is_cut,
    )


def _section(text: str, title: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of `title={name=value, …}`."""
    start = text.find(f"{title}={{")
    if start < 0:
        return
    start += len(title) + 1
    for part in _split(text[start + 1 : _end_of(text, start) - 1]):
        name, _, value = part.partition("=")
        yield name.strip(), value


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    parts, position = [""], 0
    while position < len(text):
        if text[position] == ",":
            parts.append("")
            position += 1
            continue
        end = _end_of(text, position) if text[position] in "([{'\"" else position + 1
        parts[-1] += text[position:end]
        position = end
    return [part.strip() for part in parts if part.strip()]


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def _end_of(text: str, start: int) -> int:
    """Return the end of the bracket or quotes opening at `start`. Raises: ValueError."""
    open_, position = list[str](), start
    while position < len(text):
        char = text[position]
        if char in "'\"":
            position += 1
            while position < len(text) and text[position] != char:
                position += 2 if text[position] == "\\" else 1
        elif char in _CLOSING:
            open_.append(_CLOSING[char])
        elif open_ and char == open_[-1]:
            open_.pop()
        position += 1
        if not open_:
            return position
    raise ValueError("the line is cut short")


# ---- reprs of values ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Function:
    module: str
    name: str


@dataclass(frozen=True)
class _Other:
    text: str


def _value(text: str) -> Any:
    """Parse the repr of a value; nothing is executed. Raises: SyntaxError."""
    shown = _OBJECT.sub(
        lambda match: repr(match[0]), re.sub(r"(JITFunction\([\w.]+):", r"\1|", text)
    )
    return _of_node(ast.parse(shown.strip(), mode="eval").body)


def _of_node(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        is_object = isinstance(node.value, str) and _OBJECT.fullmatch(node.value)
        return _Other(str(node.value)) if is_object else node.value
    if isinstance(node, ast.Tuple):
        return tuple(map(_of_node, node.elts))
    if isinstance(node, ast.List):
        return list(map(_of_node, node.elts))
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _of_node(key) for key in node.keys]
        return dict(zip(keys, map(_of_node, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_of_node(node.operand)
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "constexpr":
        return _of_node(node.slice)
    if isinstance(node, ast.Attribute) and "language" in ast.unparse(node.value):
        return _dtype(node.attr)
    if isinstance(node, ast.Name):
        return float(node.id) if node.id in ("inf", "nan") else _dtype(node.id)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "JITFunction":
        module, _, name = ast.unparse(node.args[0]).partition("|")
        return _Function(module.strip(), name.strip())
    return _Other(ast.unparse(node))


def _dtype(word: str) -> str:
    """Return the manifest's name of a dtype."""
    kind, bits = re.fullmatch(r"(u?int|float|bfloat)?(.*)", word).groups()  # type: ignore[union-attr]
    short = {"int": "i", "uint": "u", "float": "fp", "bfloat": "bf"}.get(kind or "", "")
    return f"{short}{bits}"


def _constant(value: Any) -> dict[str, Any]:
    """Return a constant in the recorder's form; a function as module and name."""
    if isinstance(value, _Function):
        return {"function": {"module": value.module, "function": value.name}}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    is_list = isinstance(value, list)  # in the records, as JSON
    text = tuple_text(tuple(cast("list[Any]", value)) if is_list else value)
    if text:
        return {"value": text}
    return {"other": value.text if isinstance(value, _Other) else repr(value)[:200]}


def _listed(kind: Any) -> Any:
    """Return a type with lists for tuples."""
    return list(map(_listed, cast("tuple[Any]", kind))) if isinstance(kind, tuple | list) else kind


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _OPTION_NAMES if name in options}


# ---- JSON ----------------------------------------------------------------------------------------


def _of_json(text: str) -> Compiled | None:
    """Read the fields passed to Triton's hook; None for other JSON."""
    event: Any = json.loads(text)
    if not isinstance(event, dict):
        return None
    fields = cast("dict[str, Any]", event)
    inner = fields.get("compile")
    fields = {**fields, **(cast("dict[str, Any]", inner) if isinstance(inner, dict) else {})}
    data = fields.get("specialization_data")
    specialization: Any = json.loads(data) if isinstance(data, str) else data
    if isinstance(specialization, dict):
        fields = {**cast("dict[str, Any]", specialization), **fields}
    if "signature" not in fields or not any(isinstance(fields.get(label), str) for label in _NAMES):
        return None
    name = next(fields[label] for label in _NAMES if isinstance(fields.get(label), str))
    module = fields.get("module") or ""
    if not module and "." in name:  # a fully qualified name: manifests have no nested kernels
        module, _, name = name.rpartition(".")
    options: Any = {**fields, **_mapping(fields.get("options", {}))}
    arch = _ARCH.search(f"{options.get('arch', '')} {fields.get('target', '')}")
    return Compiled(
        name.removeprefix(f"{module}."),
        module,
        {key: _listed(kind) for key, kind in _mapping(fields["signature"]).items()},
        {path: _json_constant(value) for path, value in _paths(fields, "constant", "constants")},
        frozenset(
            path
            for path, attributes in _paths(fields, "attrs", "attrs")
            if ["tt.divisibility", 16] in [list(attribute) for attribute in attributes]
        ),
        _options(options),
        int(arch[1]) if arch else 0,
    )


def _json_constant(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        tagged = cast("dict[str, Any]", value)
        if "constexpr" in tagged:
            return _constant(tagged["constexpr"])
        if "jit_function" in tagged:
            module, _, name = str(tagged["jit_function"]).partition(":")
            return {"function": {"module": module, "function": name}}
    return _constant(value)


def _mapping(value: Any) -> dict[Any, Any]:
    """Return a mapping, parsing it from its repr if necessary; empty for anything else."""
    mapping: Any = _value(value) if isinstance(value, str) and value.startswith("{") else value
    return cast("dict[Any, Any]", mapping) if isinstance(mapping, dict) else {}


def _paths(fields: Mapping[str, Any], prefix: str, name: str) -> Iterator[tuple[Path, Any]]:
    """Yield values by path, from Triton's serialized key and value lists, or a mapping."""
    if f"{prefix}_keys" in fields:
        for key, value in zip(fields[f"{prefix}_keys"], fields[f"{prefix}_vals"], strict=True):
            yield tuple(cast("list[int]", key)) if isinstance(key, list) else (key,), value
        return
    configs: Any = fields.get("configs")
    values: Any = fields.get(name, configs[0] if name == "attrs" and configs else {})
    for key, value in _mapping(values).items():
        path: Any = _word(key) if isinstance(key, str) else key
        yield cast("Path", path) if isinstance(path, tuple) else (path,), value
