"""Generate the Python module of a wheel: `load`, and each kernel with its types.

A kernel is an attribute with a protocol as its type: type checkers and editors see the arguments
and choices. The attribute is the loader's own object, so a call has no overhead.

Invariant: every text of the archive becomes a Python literal or is dropped, and every name is an
identifier, unique in its scope. So the module is always valid.
"""

from __future__ import annotations

import keyword
import re

from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import to_text
from aotc.package.archive.index import Archive, Kernel, Param, Value, canonical

_INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
_KEYWORDS = ("stream: object = None", "config: Mapping[str, Value] | None = None")
_GRID = "grid: int | Sequence[int]"
_TAKEN = ("library", "self")


def _identifier(text: str) -> str:
    """Return a text as a Python identifier."""
    name = re.sub(r"[^0-9A-Za-z_]", "_", text)
    name = f"_{name}" if not name or name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) or name in _TAKEN else name


def attribute_names(archive: Archive) -> dict[str, str]:
    """Return the Python attribute name of each kernel.

    Raises:
        ManifestError: two kernels would have the same name.
    """
    kernel_by_attribute: dict[str, str] = {}
    for kernel in archive.kernels:
        name = _identifier(kernel.name)
        if name in kernel_by_attribute:
            message = f"expected kernels with distinct names in Python, {name!r} would be two:"
            raise ManifestError(f"{message} {kernel_by_attribute[name]!r} and {kernel.name!r}")
        kernel_by_attribute[name] = kernel.name
    return {kernel: name for name, kernel in kernel_by_attribute.items()}


def _scalar_type(kernel: Kernel, param: Param) -> str:
    kinds = {
        "bool" if dtype == "i1" else "int" if dtype in _INTEGERS else "float"
        for dtype in kernel.elements(param)
    }
    if param.element not in kernel.elements(param) or len(kinds) != 1:
        return "object"  # of a type variable: also a number with its dtype
    return kinds.pop()


def _annotation(kernel: Kernel, param: Param) -> str:
    return _scalar_type(kernel, param) if param.kind == "scalar" else "object"


def _choice_type(values: tuple[Value, ...]) -> str:
    if any(isinstance(value, float) for value in values):
        return "Value"
    return f"Literal[{', '.join(repr(value) for value in values)}]"


def _call(kernel: Kernel) -> list[str]:
    """Return the parameters of a call."""
    positional = [f"{param.name}: {_annotation(kernel, param)}" for param in kernel.params]
    names = [param.name for param in kernel.params] + [choice.name for choice in kernel.choices]
    reserved = {"self", "grid", "stream", "config"}
    if len({*names, *reserved}) != len(names) + len(reserved) or not all(
        name.isidentifier() and name.isascii() and not keyword.iskeyword(name) for name in names
    ):
        return ["*args: object", "**keywords: object"]
    keywords = [
        f"{choice.name}: {_choice_type(choice.values)}"
        + (f" = {choice.values[0]!r}" if len(choice.values) == 1 else "")
        for choice in kernel.choices
    ]
    grid = _GRID if kernel.grid_rank == 0 else f"{_GRID} | None = None"
    return [*positional, "*", *keywords, grid, *_KEYWORDS]


def _protocol(kernel: Kernel, name: str) -> list[str]:
    lines = [f"class {name}Kernel(Protocol):", f"    {_docstring(kernel)}", ""]
    lines += ["    def __call__(", "        self,"]
    lines += [f"        {part}," for part in _call(kernel)]
    return [*lines, "    ) -> None: ..."]


def _docstring(kernel: Kernel) -> str:
    """Return a docstring literal with the required types and guards."""
    parts = [f"Launch {kernel.name}."]
    parts += [f"{v.name} is {', '.join(v.dtypes)}." for v in kernel.type_variables]
    parts += [
        f"{param.name} may be None." for param in kernel.params if param.name in kernel.nullable
    ]
    parts += [f"Promised: {guard.text}." for guard in kernel.guards if guard.is_promise]
    if kernel.grid_rank:
        grid = ", ".join(to_text(extent) for extent in kernel.variants[0].grid)
        parts.append(f"The first variant's grid is ({grid}).")
    return repr(" ".join(parts))


def module_text(archive: Archive, file_name: str) -> str:
    """Return the module; the archive is next to it as `file_name`.

    Raises:
        ManifestError: two kernels would have the same name.
    """
    archive = canonical(archive)
    names = attribute_names(archive)
    title = f"{archive.name} {archive.version} for {', '.join(archive.targets)}"
    lines = [
        repr(f"Kernels of {title}, compiled ahead of time by aotc. Generated: do not edit."),
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Iterable, Mapping, Sequence",
        "from pathlib import Path",
        "from typing import Any, Literal, Protocol, Union",
        "",
        "from aotc.runtime import Library",
        "from aotc.runtime import load as _load",
        "",
        f"__version__ = {archive.version!r}",
        f"TARGETS = {archive.targets!r}",
        f"ARCHIVE = Path(__file__).with_name({file_name!r})",
        "Value = Union[bool, int, float, str, None]",
    ]
    for kernel in archive.kernels:
        lines += ["", "", *_protocol(kernel, names[kernel.name])]
    lines += [
        "",
        "",
        "class Kernels:",
        '    """The kernels of a loaded library, which is `library`."""',
        "",
        "    def __init__(self, library: Library) -> None:",
        "        self.library = library",
    ]
    for kernel in archive.kernels:
        name = names[kernel.name]
        lines.append(f"        self.{name}: {name}Kernel = library[{kernel.name!r}]")
    lines += [
        "",
        "",
        "def load(device: int | Iterable[int] | None = None, **options: Any) -> Kernels:",
        '    """Make all kernels ready on a GPU, or several; `options` are those of `aotc.load`."""',
        "    return Kernels(_load(ARCHIVE, device=device, **options))",
    ]
    return "\n".join(lines) + "\n"
