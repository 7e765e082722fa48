"""Extract a kernel from a running program: its source, and the values of its free names.

Static analysis cannot resolve a kernel's captured variables, a generated kernel without a file, or a
global computed by a call. The running program has their values. Each function becomes a file with
its names bound to values, and imports of its callees. Files are named by the SHA-256 of their text,
so the name of the kernel's file covers all others.

Invariant: the text is the same under Triton, under its stand-in, and on every machine. Only the
standard library is imported: the recorder loads this file into programs without aotc.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, cast

_LIBDEVICE = "triton.language.extra.cuda.libdevice"
_TORCH_DTYPES = {
    **{f"{kind}int{bits}": f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: name for name in ("float16", "bfloat16", "float32", "float64")},
    "bool": "int1", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5",
}  # fmt: skip
_TRITON_DTYPES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
    "fp8e4nv": "float8e4nv", "fp8e5": "float8e5", "fp8e4b15": "float8e4b15",
}  # fmt: skip
_HOST_PACKAGES = ("numpy", "torch")  # kernels call none of their functions
_MAX_FUNCTIONS = 256
_NAME_DIGITS = 16
_ABSENT = object()


class Extract(NamedTuple):
    """A function and its files: texts by name, the function's own last."""

    function: str
    files: dict[str, str]

    @property
    def file(self) -> str:
        """The name of the function's own file."""
        return next(reversed(self.files))

    @property
    def digest(self) -> str:
        """The SHA-256 of the function's own file."""
        return hashlib.sha256(self.files[self.file].encode()).hexdigest()


def extract(function: Any) -> Extract:
    """Extract a jitted function with its dependencies.

    Raises: OSError if its source cannot be read; ValueError if it is not one function, or captures
        a value without a source form.
    """
    extractor = _Extractor()
    extractor.file_of(_innermost(function))
    return Extract(_name_of(source_of(_innermost(function))), extractor.files)


def extracted_name(file: str) -> str:
    """Return the name of the function of an extract's file."""
    return file.removesuffix(".py").rpartition("_")[0]


def is_extract(file: str, digest: str) -> bool:
    """Return whether a file is an extract: its name has the digest of its text."""
    return file.removesuffix(".py").endswith(f"_{digest[:_NAME_DIGITS]}")


def has_other_source(function: Any) -> bool:
    """Return whether a jitted function's source was replaced at run time."""
    attributes = cast("dict[str, Any]", vars(function))
    if "_src" not in attributes or "raw_src" not in attributes:
        return "_src" in attributes  # the stand-in sets it only on replacement
    return _without_decorators(textwrap.dedent("".join(attributes["raw_src"]))) != source_of(
        function
    )


class _Extractor:
    """The files of a function and its callees."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self._modules: dict[int, str] = {}  # by id of function; "" while being written

    def file_of(self, function: Any) -> str:
        """Write a function's file; return its module, "" inside its own recursion."""
        is_python = isinstance(function, FunctionType)
        inner: Any = function if is_python else function.fn
        if id(inner) in self._modules:
            return self._modules[id(inner)]
        self._modules[id(inner)] = ""
        source = source_of(function)
        function_name = _name_of(source)
        scope = _scope_of(inner)
        lines: list[str] = []
        for name, attributes in _outer_names(ast.parse(source)).items():
            if name == function_name or name not in scope:
                continue
            binding = self._binding(name, scope[name], attributes)
            if not binding and name in inner.__code__.co_freevars:
                kind = type(scope[name]).__name__
                raise ValueError(f"{name} is of type {kind}, whose values no source says")
            lines += binding
        is_jit = not is_python and type(function).__name__ != "ConstexprFunction"
        text = (
            f"# Extracted from {inner.__qualname__}.\nimport triton\n\n"
            + "".join(f"{line}\n" for line in lines)
            + f"\n\n@triton.{'jit' if is_jit else 'constexpr_function'}\n{source}"
        )
        module = f"{function_name}_{hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]}"
        self.files[f"{module}.py"] = text
        self._modules[id(inner)] = module
        return module

    def _binding(self, name: str, value: Any, attributes: list[str]) -> list[str]:
        """Return the lines binding a name; none for a value without a source form."""
        imported = self._import(name, value)
        if imported:
            return [imported]
        text = _expression(value)
        if text:
            return ["import triton" if text == name else f"{name} = {text}"]
        if not isinstance(value, (ModuleType, type)):
            return []
        before: list[str] = []
        members: list[str] = []
        for attribute in attributes:
            member = getattr(value, attribute, _ABSENT)
            alias = f"_{name}_{attribute}"
            imported = self._import(alias, member)
            before += [imported] if imported else []
            text = alias if imported else _expression(member)
            members += [f"    {attribute} = {text}"] if text else []
        return [*before, f"class {name}:", *members] if members else []

    def _import(self, name: str, value: Any) -> str:
        """Return the import of a function; "" for Triton's and for other values."""
        if _triton_path(value):
            return ""
        function = value if isinstance(value, FunctionType) else _innermost(value)
        if function is None or len(self._modules) >= _MAX_FUNCTIONS:
            return ""
        if str(getattr(function, "fn", function).__module__).partition(".")[0] in _HOST_PACKAGES:
            return ""
        try:
            module = self.file_of(function)
        except (OSError, ValueError, TypeError):
            return ""
        return f"from {module} import {extracted_name(module)} as {name}" if module else ""


def _innermost(value: Any) -> Any:
    """Return the jitted function under decorators such as an autotuner, None without one."""
    while hasattr(getattr(value, "fn", None), "fn"):
        value = value.fn
    return value if hasattr(getattr(value, "fn", None), "__code__") else None


def source_of(function: Any) -> str:
    """Return a function's source without its decorators."""
    source = getattr(function, "src", None)
    if not isinstance(source, str):
        source = textwrap.dedent(
            "".join(inspect.getsourcelines(getattr(function, "fn", function))[0])
        )
    return _without_decorators(source)


def _name_of(source: str) -> str:
    """Return the name in a function's source: a program may give a function another source."""
    name = re.match(r"def\s+(\w+)", source)
    return name[1] if name else ""


def _without_decorators(source: str) -> str:
    start = re.search(r"^def\s+\w+\s*\(", source, re.MULTILINE)
    if start is None:
        raise ValueError("expected the source of a function")
    return source[start.start() :].rstrip() + "\n"


def _scope_of(function: Any) -> dict[str, Any]:
    """Return a function's globals and captured variables."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())  # noqa: B905 - Python 3.9
    captured = {name: _content(cell) for name, cell in cells}
    bound = {name: content for name, content in captured.items() if content is not _ABSENT}
    return {**function.__globals__, **bound}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _ABSENT


def _outer_names(tree: ast.AST) -> dict[str, list[str]]:
    """Return a function's free names, with the attributes read from each."""
    nodes = list(ast.walk(tree))
    bound_names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound_names |= {
        n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    }
    names: dict[str, list[str]] = {}
    for node in _in_order(tree):
        name = node.value if isinstance(node, ast.Attribute) else node
        if isinstance(name, ast.Name) and name.id not in bound_names:
            attributes = names.setdefault(name.id, [])
            if isinstance(node, ast.Attribute) and node.attr not in attributes:
                attributes.append(node.attr)
    return names


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


# ---- values ------------------------------------------------------------------------------------


def _expression(value: Any) -> str:
    """Return an expression for a value, "" if none exists."""
    if type(value).__name__ == "constexpr":
        value = value.value
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return "None"
    dtype = _dtype(value)
    if dtype:
        return f"triton.language.{dtype}"
    path = _triton_path(value)
    if path:
        return path
    text = _literal(value)
    return f"triton.language.constexpr({text})" if text else ""


def _literal(value: Any) -> str:
    if isinstance(value, float) and value - value != 0:
        return f'float("{value}")'
    if isinstance(value, (bool, int, float, str)):
        return repr(value)
    if type(value) is tuple:
        items = [_literal(element) for element in cast("tuple[Any, ...]", value)]
        return f"({', '.join(items)}{',' * (len(items) == 1)})" if all(items) else ""
    return ""


def _dtype(value: Any) -> str:
    """Return Triton's name of a dtype (torch's or Triton's), "" for other values."""
    if type(value).__name__ != "dtype":
        return ""
    if type(value).__module__ == "torch":
        return _TORCH_DTYPES.get(str(value).rpartition(".")[2], "")
    name = getattr(value, "name", "")
    return _TRITON_DTYPES.get(name, name) if isinstance(name, str) else ""


def _triton_path(value: Any) -> str:
    """Return the public path of a Triton module, function or class; "" for other values.

    Internal modules such as `triton.language.standard` are dropped from the path.
    """
    if isinstance(value, ModuleType):
        path = value.__name__
    elif type(value).__name__ == "Name":  # the stand-in's, for anything of the language
        path = repr(value)
    else:
        owner = getattr(value, "fn", value)
        path = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__name__', '')}"
    parts = path.split(".")
    if parts[0] != "triton" or not all(parts):
        return ""
    if "libdevice" in parts:
        return ".".join([_LIBDEVICE, *parts[parts.index("libdevice") + 1 :]])
    if parts[:2] != ["triton", "language"] or len(parts) <= 3 or isinstance(value, ModuleType):
        return path
    if parts[2] == "target_info":
        return path
    if "extra" in parts:
        return path if len(parts) <= 4 else f"triton.language.extra.cuda.{parts[-1]}"
    return f"triton.language.{parts[-1]}"
