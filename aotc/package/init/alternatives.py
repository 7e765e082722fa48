"""Alternatives for the guessed lines of a draft, likeliest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from aotc.package.init.draft import Draft, as_list, listed
from aotc.package.init.subject import Line, todo
from aotc.package.manifest.toml_text import toml

_ELEMENTS = ("i32", "i64", "u8", "fp32", "i1", "i8", "fp8e4nv")
_KINDS = (
    ("bf16", "fp32", "fp16", "fp64"),
    ("i64", "i32", "u8", "i8", "u32"),
    ("i1", "i8", "u8", "i32", "fp32"),
)
_OPERANDS = ("i8", "fp8e4nv", "i32")  # of dots and shifts, where no float fits
_DTYPES = ("fp32", "bf16", "fp16", "i32", "u8")
_SCALARS = ("i32", "fp32", "i64", "i1")
_SMALLEST = 16
_SIZES = (64, 32, 16, 128, 8, 4, 2, 1, 256)
_STRIDES, _COUNTS = (4096, 16, 1, 64), (4, 64)
_WORDS = ("bf16", "fp32", True, 1, 2, 64, 16, 32, 4, 8, 128, "tf32", False)
_DTYPE_GUESS = "chosen because the kernel's types fit"
_SIZE_NOTE = "the sizes that launches pass"


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement line for one name; `size` is the current size if the change halves it."""

    section: str
    name: str
    line: Line
    size: int = 0


def type_changes(draft: Draft) -> Iterator[Change]:
    """Yield other types for guessed type variables, arguments and descriptors."""
    lines = draft.sections["signature"]
    for name, line in lines.items():
        if not line.is_given and "none" in listed(line)[1:]:
            yield Change("signature", name, Line('"none"', "others do not build"))
    for name, line in lines.items():
        if not line.is_given and "tensordesc" in line.value:
            yield from _descriptors(draft, name, line)
    for name, line in draft.sections["types"].items():
        values = listed(line)
        kind = next((dtypes for dtypes in _KINDS if values[0] in dtypes), ())
        for other in (*kind, *(dtype for dtype in _OPERANDS if dtype not in kind)):
            if (other,) != values and not line.is_given:
                yield Change("types", name, replace(line, value=as_list([other])))
    for name, line in lines.items():
        if not line.is_given and "*" in line.value:
            yield from _pointers(draft, name, line)
        elif not line.is_given and "tensordesc" not in line.value:
            yield from _scalars(draft, name, line)


def computed_changes(draft: Draft) -> Iterator[Change]:
    """Yield values (false, sizes) for constants computed by heuristics at launch."""
    for name in draft.computed:
        if not any(name in lines for lines in draft.sections.values()):
            for value in (False, 1, 16, 64):
                line = todo(toml(value), "a heuristic computes it from what a launch passes")
                yield Change("constants", name, line)


def value_changes(draft: Draft) -> Iterator[Change]:
    """Yield other values of guessed constants, choices and configs."""
    for section in ("choices", "configs", "constants", "captures"):
        for name, line in draft.sections[section].items():
            values = listed(line)
            if values:
                yield from _listed(section, name, line, values)
            elif line.is_todo:
                for word in _WORDS:
                    if toml(word) != line.value:
                        yield Change(section, name, replace(line, value=toml(word)))


def choice_changes(draft: Draft) -> Iterator[Change]:
    """Yield each choice with another of its values first."""
    for name, line in draft.sections["choices"].items():
        values = listed(line)
        for index in range(1, len(values)):
            reordered = [values[index], *values[:index], *values[index + 1 :]]
            yield Change("choices", name, replace(line, value=as_list(reordered)))


def launch_changes(draft: Draft, *, is_empty: bool = False) -> Iterator[Change]:
    """Yield other guessed constants, for programs that meet or a launch that `is_empty`."""
    numbers = {
        name: line
        for name, line in draft.sections["constants"].items()
        if line.is_todo and line.value.isdigit()
    }
    yield from choice_changes(draft) if is_empty else ()
    for size in _COUNTS if is_empty else _STRIDES:
        for name, line in numbers.items():
            if line.value != str(size):
                yield Change("constants", name, replace(line, value=str(size)))
    yield from () if is_empty else choice_changes(draft)


def smaller_changes(draft: Draft) -> Iterator[Change]:
    """Yield changes halving the guessed sizes."""
    for section in ("configs", "choices", "constants", "captures"):
        for name, line in draft.sections[section].items():
            if line.is_given or name.startswith("num_"):
                continue
            values = listed(line) or ((int(line.value),) if line.value.isdigit() else ())
            if not values or not all(type(size) is int and size > _SMALLEST for size in values):
                continue
            halved = [size // 2 for size in values if isinstance(size, int)]
            value = as_list(list(dict.fromkeys(halved))) if listed(line) else str(halved[0])
            yield Change(section, name, replace(line, value=value), 2 * halved[0])


def _listed(section: str, name: str, line: Line, values: tuple[object, ...]) -> Iterator[Change]:
    for index in range(1, len(values)):  # another one first
        reordered = [values[index], *values[:index], *values[index + 1 :]]
        yield Change(section, name, replace(line, value=as_list(reordered)))
    if all(choice in _DTYPES for choice in values) and not line.is_given:
        for dtype in _DTYPES:
            if dtype not in values:
                yield Change(section, name, replace(line, value=as_list([dtype])))
    if line.is_todo:
        for size in _SIZES:
            if (size,) != values:
                yield Change(section, name, replace(line, value=as_list([size])))


def _pointers(draft: Draft, name: str, line: Line) -> Iterator[Change]:
    promise = ":16?" if ":16?" in line.value else ""
    for element in (*draft.sections["types"], *_ELEMENTS):
        text = f"*{element}{promise}"
        if toml(text) in line.value:
            continue
        value = as_list([text, "none"]) if listed(line) else toml(text)
        yield Change("signature", name, Line(value, _DTYPE_GUESS))
    for scalar in ("i32", "fp32"):
        yield Change("signature", name, Line(toml(scalar), _DTYPE_GUESS))


def _scalars(draft: Draft, name: str, line: Line) -> Iterator[Change]:
    pointers = [f"*{variable}:16?" for variable in draft.sections["types"]] if line.is_todo else []
    for kind in (*_SCALARS, *pointers, *(["*bf16:16?"] if line.is_todo and not pointers else [])):
        if not line.value.startswith(f'"{kind}'):
            yield Change("signature", name, replace(line, value=toml(kind)))


def _descriptors(draft: Draft, name: str, line: Line) -> Iterator[Change]:
    start, _, block = line.value.partition("[")
    dims = block.partition("]")[0].split(", ")
    named = [
        size
        for section in ("configs", "constants", "choices")
        for size, value in draft.sections[section].items()
        if not size.startswith("num_") and _is_size(value)
    ]
    named += [size for size in draft.tuned if not size.startswith("num_")]
    shapes = [
        [*dims[:axis], size, *dims[axis + 1 :]] for axis in range(len(dims)) for size in named
    ]
    shapes += [["1"] * (len(dims) - 2) + list(pair) for pair in permutations(named, 2)]
    shapes += [[size] for size in (*named, "64")]
    for shape in shapes:
        yield Change("signature", name, todo(f'{start}[{", ".join(shape)}]>"', line.note))
    yield Change("signature", name, Line('"none"', "others do not build"))


def _is_size(line: Line) -> bool:
    values = listed(line) or ((int(line.value),) if line.value.isdigit() else ())
    return bool(values) and all(type(size) is int and size >= 1 for size in values)
