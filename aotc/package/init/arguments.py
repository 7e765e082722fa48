"""Infer the types of a kernel's arguments from its source and its launches.

Evidence in order of priority: the annotation, values passed by launches, uses in the code, the
name. A tensor's dtype is never assumed: unless written out, it is a type variable.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aotc.ir.diagnostics import ManifestError
from aotc.ir.types import SCALARS
from aotc.package.init.dtypes import dtype_name
from aotc.package.init.subject import Line, Subject, todo
from aotc.package.init.use import Use
from aotc.package.manifest import argument_type

_TYPE_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "T": ("bf16", "fp16", "fp32"),
    "STAT": ("fp32", "bf16", "fp16"),
    "INDEX": ("i64", "i32"),
    "MASK": ("i1", "i8", "i32"),
    "ADDRESS": ("i64", "u64"),
    "PACKED": ("i32", "u8", "i8", "u32", "i64"),
}
_DATA, _STAT, _INDEX, _MASK, _ADDRESS, _PACKED = _TYPE_VARIABLES
_POINTER_NAMES = re.compile(r"(^|_)ptrs?($|_)|pointer", re.IGNORECASE)
_BLOCK_NAMES = re.compile(r"BLOCK|TILE|CHUNK|^B[A-Z]{0,2}$", re.IGNORECASE)
_NO_POINTER_NAMES = re.compile(
    r"ptrs?_.*(stride|size|shape|numel|offset|len|dim|rows|cols)", re.IGNORECASE
)
_INDEX_NAMES = re.compile(
    r"idx|ids\b|indices|index|cu_|seqlens?|lens\b|offsets|table|slots?\b|positions|_map\b|labels?\b"
    r"|targets?\b|sorted|expert",
    re.IGNORECASE,
)
_STAT_NAMES = re.compile(
    r"rstd|mean|lse|stat|scale|(^|_)(var|sum|max|loss|norm|amax|m|l|delta)(_ptr|s|$)", re.IGNORECASE
)
_FLOAT_NAMES = re.compile(
    r"eps|scale|alpha|beta|gamma|^lr$|momentum|softcap|_cap$|dropout|^p$|theta|inv_|_inv|decay|clip"
    r"|lambda|factor|multiplier|smoothing|slope|temperature|coef|rate$|fp8_m(in|ax)",
    re.IGNORECASE,
)
_INTEGER_NAMES = re.compile(
    r"strides?|^[nm]$|^[nm]_|_n$|num|size|len|dim|count|^(?-i:[A-Z][A-Z]?\d?)$|rows?|cols?|heads?|batch|seq|seed"
    r"|offset|start|end|idx|index|step|width|height|length|group|numel|elements",
    re.IGNORECASE,
)
_MOVES = re.compile(r"offset|start|begin|pos|idx|index|seed", re.IGNORECASE)
_PYTHON_TYPES = {"int": "i32", "float": "fp32", "bool": "i1"}
_UNKNOWN = "the source does not tell whether it is a pointer, an integer or a float"


@dataclass
class Signature:
    """The lines of `[kernel.signature]`, their type variables, and the omitted arguments."""

    lines: dict[str, Line] = field(default_factory=dict[str, Line])
    types: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    parameters: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = ()
    """The dtypes of `T`, if the user chose them."""
    has_all: bool = True
    """True if type variables list all their dtypes, false for the likeliest alone."""

    def variable(self, name: str) -> str:
        """Add a type variable; return its name, distinct from all parameters."""
        chosen = f"{name}_DTYPE" if name in self.parameters else name
        dtypes = _TYPE_VARIABLES[name] if self.has_all else _TYPE_VARIABLES[name][:1]
        self.types[chosen] = self.dtypes if self.dtypes and name == _DATA else dtypes
        return chosen

    def integers(self) -> frozenset[str]:
        """Return the integer arguments, usable in a grid or a condition."""
        names = (name for name, line in self.lines.items() if line.value.startswith('"i'))
        return frozenset(name for name in names if not self.lines[name].is_todo)


def signature_of(
    subject: Subject, dtypes: Sequence[str] = (), *, has_all: bool = True
) -> Signature:
    """Return the types of all arguments; `dtypes` are the user's choice for data."""
    parameters = frozenset(parameter.name for parameter in subject.function.parameters)
    signature = Signature(parameters=parameters, dtypes=tuple(dtypes), has_all=has_all)
    for parameter in subject.function.arguments:
        name = parameter.name
        reason = _left_out(subject, name)
        if reason:
            signature.left_out[name] = reason
            continue
        signature.lines[name] = _typed(subject, name, signature)
    return signature


def _left_out(subject: Subject, name: str) -> str:
    """Return why an argument keeps its default, or nothing if it needs a type."""
    if name not in subject.defaults:
        return ""
    if subject.launches and not subject.is_passed(name):
        return "no launch passes it"
    is_pointer = subject.uses.of(name) & Use.POINTER or _POINTER_NAMES.search(name)
    default = subject.defaults[name]
    if isinstance(default, ast.Constant) and default.value is None and not is_pointer:
        return "its default is None, and nothing tells its type"
    return ""


def _typed(subject: Subject, name: str, signature: Signature) -> Line:
    written = _annotated(subject.annotations.get(name, ""))
    if written:
        return Line(f'"{written}"', is_given=True)
    use = subject.uses.of(name)
    if use & Use.DESCRIPTOR and not use & Use.POINTER:
        return _descriptor(subject, name, signature)
    passed = subject.given(name)
    if (
        passed
        and len(passed) == len(subject.launches)
        and all(_is_none(node) for _, node in passed)
    ):
        return Line('"none"', is_given=True)
    kinds = {host.kind(node) for host, node in passed}
    is_named = _is_named_pointer(name, use)
    if use & Use.POINTER or is_named or kinds == {"tensor"}:
        is_mixed = bool(use & Use.POINTER and use & (Use.OFFSET | Use.BOUND)) and not is_named
        line = _pointer(subject, name, signature)
        return todo(line.value, "a pointer or an integer? it is used as both") if is_mixed else line
    return _scalar(subject, name, use, kinds)


def _descriptor(subject: Subject, name: str, signature: Signature) -> Line:
    """Return a descriptor type; its block shape is inferred from the steps of its offsets."""
    constexprs = {constexpr.name for constexpr in subject.function.constexprs}
    blocks = subject.uses.blocks.get(name, (None, None))
    shape: list[str] = []
    for steps in blocks:
        sizes = (
            sorted(steps & constexprs, key=lambda size: not is_block_name(size)) if steps else []
        )
        shape.append("64" if steps is None else sizes[0] if sizes else "1")
    text = f'"tensordesc<{signature.variable(_DATA)}[{", ".join(shape)}]>"'
    if None in blocks:
        return todo(text, "its block shape, as in [BLOCK_M, BLOCK_K]")
    return Line(text, "by the multiples of its offsets")


def is_block_name(name: str) -> bool:
    """Return whether a name looks like a block size."""
    return _BLOCK_NAMES.search(name) is not None


def _is_named_pointer(name: str, use: Use) -> bool:
    """Return whether a parameter is named like a pointer and no use contradicts it."""
    if not _POINTER_NAMES.search(name) or _NO_POINTER_NAMES.search(name):
        return False
    is_number = use & (Use.OFFSET | Use.BOUND | Use.INTEGER | Use.FLOAT)
    return bool(use & Use.POINTER) or not is_number


def _annotated(text: str) -> str:
    """Return the type named by an annotation, or an empty string."""
    text = text.strip("'\"")
    if text in _PYTHON_TYPES:
        return _PYTHON_TYPES[text]
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        node = None  # such as "*fp32"
    dtype = dtype_name(node) if node is not None else ""
    if dtype:
        return dtype
    if not text.startswith("*") and text not in SCALARS:
        return ""
    try:
        return text if argument_type.parse(text) else ""
    except ManifestError:
        return ""


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


# ---- pointers ---------------------------------------------------------------------------------


def _pointer(subject: Subject, name: str, signature: Signature) -> Line:
    use = subject.uses.of(name)
    stored = subject.uses.stored.get(name, set())
    element = _written_dtype(subject, name)
    note = "what is stored is cast to it" if len(stored) == 1 and not element else ""
    element = element or (
        next(iter(stored)) if note else signature.variable(_variable(subject, name, use))
    )
    promise = "" if name in subject.unspecialized else ":16?"
    text = f'"*{element}{promise}"'
    return Line(f'[{text}, "none"]' if use & Use.NONE_TEST else text, note)


def _written_dtype(subject: Subject, name: str) -> str:
    """Return the dtype of the tensors allocated for all launches, or an empty string."""
    passed = subject.given(name)
    dtypes = {host.dtype(node) for host, node in passed}
    return dtypes.pop() if len(dtypes) == 1 and len(passed) == len(subject.launches) else ""


def _variable(subject: Subject, name: str, use: Use) -> str:
    if use & Use.ADDRESSES:
        return _ADDRESS
    if use & Use.BITS:
        return _PACKED
    if use & Use.INDICES or _INDEX_NAMES.search(name):
        return _INDEX
    if "mask" in name.lower():
        return _MASK
    is_own = any(host.has_own_dtype(node) for host, node in subject.given(name))
    return _STAT if is_own or _STAT_NAMES.search(name) else _DATA


# ---- scalars ----------------------------------------------------------------------------------


def _scalar(subject: Subject, name: str, use: Use, kinds: set[str]) -> Line:
    integer = _integer(subject, name, use)
    kind = kinds.pop() if len(kinds) == 1 else ""
    if kind in _PYTHON_TYPES:
        return integer if kind == "int" else Line(f'"{_PYTHON_TYPES[kind]}"')
    if use & (Use.OFFSET | Use.BOUND):
        return integer
    is_float, is_integer = bool(use & Use.FLOAT), bool(use & Use.INTEGER)
    if is_float != is_integer:
        return Line('"fp32"') if is_float else integer
    default = subject.defaults.get(name)
    if isinstance(default, ast.Constant) and type(default.value).__name__ in _PYTHON_TYPES:
        return Line(f'"{_PYTHON_TYPES[type(default.value).__name__]}"')
    if _FLOAT_NAMES.search(name) and "stride" not in name.lower():
        return Line('"fp32"')
    return integer if _INTEGER_NAMES.search(name) else todo('"i32"', _UNKNOWN)


def _integer(subject: Subject, name: str, use: Use) -> Line:
    """Return an integer type; promise divisibility by 16 if it widens accesses."""
    widens = use & (Use.OFFSET | Use.BOUND) and not _MOVES.search(name)
    is_promised = widens and name not in subject.unspecialized
    return Line('"i32:16?"' if is_promised else '"i32"')
