"""Resolve names and attributes: `x`, `tl.exp`, `desc.load`, `T.is_fp16`.

Local variables come first, then module-level names, then Python's builtins. A kernel reads only
immutable globals: constexprs, functions, types and modules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path

from aotc.config import CONFIG_DEFAULTS, CONFIG_KEYS
from aotc.frontend.emitter import mistake
from aotc.frontend.language import descriptors, dtypes
from aotc.frontend.language.builtins import DESCRIPTOR_METHODS, METHODS, PYTHON_BUILTINS
from aotc.frontend.language.constants import unwrap
from aotc.frontend.language.dtypes import dtype_attribute
from aotc.frontend.language.language_classes import (
    ConstexprType,
    TupleType,
    type_attribute,
    type_of,
)
from aotc.frontend.language.records import replaced
from aotc.frontend.language.shapes import trans
from aotc.frontend.python.frame import Frame
from aotc.frontend.python.python_names import PYTHON_METHODS, PYTHON_NAMES
from aotc.frontend.python.resolve import bindings
from aotc.frontend.python.scope import names_assigned_by
from aotc.frontend.values import (
    BlockPointer,
    BoundMethod,
    Builtin,
    Class,
    Config,
    Constexpr,
    Draft,
    External,
    Function,
    Loop,
    Missing,
    Module,
    Operand,
    PropagateNan,
    Record,
    RecordType,
    StaticCall,
    Unbound,
    UserModule,
    element,
    is_tuple,
    shape,
    show,
)
from aotc.ir.core import Value
from aotc.ir.diagnostics import did_you_mean
from aotc.ir.types import DescriptorType, PointerType, ScalarType, TileType

_READABLE_GLOBALS = (
    Builtin,
    Class,
    External,
    Function,
    Loop,
    Missing,
    Module,
    PropagateNan,
    RecordType,
    ScalarType,
    PointerType,
    StaticCall,
    UserModule,
)
_USUAL_IMPORTS = {
    "tl": "import triton.language as tl",
    "triton": "import triton",
    "libdevice": "from triton.language.extra import libdevice",
}


def visit_name(frame: Frame, node: ast.Name) -> Operand:
    """Evaluate a name. Raises: CompileError if undefined, or unreadable in a kernel."""
    name = node.id
    if name in frame.values:
        value = frame.values[name]
        if isinstance(value, Unbound):
            message = f"{name} has no value here: it {value.reason}"
            raise mistake(message, loc=frame.loc(node), remedy=value.remedy)
        return value
    value = frame.program.globals.lookup(frame.file, name)
    if frame.program.globals.is_known(value):
        return _global_in_kernel(frame, node, value) if frame.in_kernel else value
    python_names = PYTHON_BUILTINS if frame.in_kernel else PYTHON_NAMES
    if name in python_names:
        return python_names[name]
    if name == "__name__" and not frame.in_kernel:
        return Path(frame.file.path).stem
    raise mistake(
        f"{name} is not defined",
        loc=frame.loc(node),
        remedy=_remedy_for_unknown(frame, name),
        feature=f"{name}()" if name in PYTHON_NAMES else "a name that is not defined",
    )


def _remedy_for_unknown(frame: Frame, name: str) -> str:
    if name in _USUAL_IMPORTS:
        return f"write `{_USUAL_IMPORTS[name]}` at the top of {frame.file.path}"
    if frame.function is not None and name in names_assigned_by(frame.function.node.body):
        return "it is assigned elsewhere in the function, but not before this"
    python_names = PYTHON_BUILTINS if frame.in_kernel else PYTHON_NAMES
    return did_you_mean(name, [*frame.values, *bindings(frame.file), *python_names])


def _global_in_kernel(frame: Frame, node: ast.Name, value: Operand) -> Operand:
    if isinstance(value, Constexpr):
        return unwrap(value)
    if value is None or isinstance(value, _READABLE_GLOBALS):
        return value
    if isinstance(value, int | float):
        # Real kernels rely on Triton's switch for this. Here the value cannot change after the build.
        frame.emit.remark(
            f"{node.id} is read as {value!r}; Triton asks for tl.constexpr({value!r})"
        )
        return value
    raise mistake(
        f"kernels read only constexpr globals, {node.id} is a plain {type(value).__name__}",
        loc=frame.loc(node),
        remedy=f"write `{node.id} = tl.constexpr({value!r})` in {frame.file.path}, "
        "or pass it as a `tl.constexpr` argument",
        feature=f"a global that is a plain {type(value).__name__}",
    )


def visit_attribute(frame: Frame, node: ast.Attribute) -> Operand:
    """Evaluate an attribute. Raises: CompileError for an unknown name."""
    return attribute_of(frame, frame.visit(node.value), node.attr)


def attribute_of(frame: Frame, owner: Operand, name: str) -> Operand:
    """Return an attribute of an operand. Raises: CompileError."""
    if isinstance(owner, Value):
        if isinstance(owner.type, DescriptorType):
            return _descriptor_attribute(frame, owner, owner.type, name)
        return _value_attribute(frame, owner, name)
    if isinstance(owner, Constexpr):
        return owner.value if name == "value" else attribute_of(frame, owner.value, name)
    if isinstance(owner, BlockPointer) and name in _BLOCK_POINTER_ATTRIBUTES:
        return _BLOCK_POINTER_ATTRIBUTES[name](owner)
    if isinstance(owner, BlockPointer) and name in _BLOCK_POINTER_METHODS:
        return BoundMethod(owner, METHODS[name])
    if isinstance(owner, ScalarType | PointerType | TileType):
        return type_of(owner) if name == "type" else dtype_attribute(owner, name)
    if isinstance(owner, Record):
        return _record_attribute(frame, owner, name)
    if isinstance(owner, Draft) and name in owner.items:
        return owner.items[name]
    if isinstance(owner, Module | UserModule | External | Class):
        member = frame.program.globals.member(owner, name)
        if frame.in_kernel and isinstance(owner, UserModule | Class):
            _remark_number(frame, owner, name, member)
        if isinstance(owner, Class) and isinstance(member, Function) and member.is_class_method:
            return BoundMethod(owner, member)
        return unwrap(member) if frame.in_kernel and isinstance(member, Constexpr) else member
    if isinstance(owner, StaticCall) and name in owner.members:
        return owner.members[name]
    if isinstance(owner, Config) and name in ("kwargs", "all_kwargs", *CONFIG_KEYS):
        return _config_attribute(owner, name)
    if isinstance(owner, ConstexprType | TupleType):
        return type_attribute(owner, name)
    if name == "type" and frame.in_kernel:
        return type_of(owner)
    if name == "values" and is_tuple(owner):
        return owner
    # A constexpr in a kernel, an enumeration member on the host.
    if name == "value":
        return owner
    if name in PYTHON_METHODS.get(type(owner), ()):
        return StaticCall(name, getattr(owner, name))
    if isinstance(owner, int | float) and name in METHODS:
        return BoundMethod(owner, METHODS[name])
    is_number = isinstance(owner, int | float)
    remedy = did_you_mean(name, ["type", "value", *METHODS]) if is_number else ""
    if owner is None:
        remedy = "an argument may be None, or a function return nothing: test it with `is not None`"
    prefix = "the constant " if is_number else ""
    raise mistake(f"{prefix}{show(owner)} has no attribute {name!r}", remedy=remedy)


def _remark_number(frame: Frame, owner: UserModule | Class, name: str, member: Operand) -> None:
    """Remark on a number of a module or class frozen at build time."""
    if isinstance(member, int | float):
        owner_name = Path(owner.file.path).stem if isinstance(owner, UserModule) else owner.qualname
        frame.emit.remark(f"{owner_name}.{name} is read as {member!r}; later changes do not count")


def _config_attribute(config: Config, name: str) -> Operand:
    if name == "kwargs":
        return config.kwargs
    if name == "all_kwargs":
        return StaticCall("triton.Config.all_kwargs", lambda: _all_kwargs(config))
    return config.values.get(name, CONFIG_DEFAULTS.get(name))


_ALL_KWARGS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")


def _all_kwargs(config: Config) -> Operand:
    values = {name: config.values.get(name, CONFIG_DEFAULTS.get(name)) for name in _ALL_KWARGS}
    return {
        **config.kwargs,
        **{name: option for name, option in values.items() if option is not None},
    }


def _record_attribute(frame: Frame, owner: Record, name: str) -> Operand:
    kind = owner.kind
    if name in kind.fields:
        return owner.by_name[name]
    if name == "type" and frame.in_kernel:
        return type_of(owner)
    if name == "_replace":
        return StaticCall(name, partial(replaced, owner), takes_values=True)
    member = frame.program.globals.member(kind.owner, name) if kind.owner else None
    if isinstance(member, Function):
        return BoundMethod(owner, member)
    if member is not None:
        return unwrap(member)
    raise mistake(f"{kind} has no field {name!r}", remedy=did_you_mean(name, kind.fields))


_BLOCK_POINTER_ATTRIBUTES: dict[str, Callable[[BlockPointer], Operand]] = {
    "dtype": lambda pointer: pointer.base.type,
    "type": lambda pointer: pointer.base.type,
    "shape": lambda pointer: pointer.block,
}
_BLOCK_POINTER_METHODS = ("advance", "store")
_VALUE_ATTRIBUTES: dict[str, Callable[[Value], Operand]] = {
    "dtype": element,
    "type": lambda value: value.type,
    "shape": shape,
    "numel": lambda value: value.type.num_elems if isinstance(value.type, TileType) else 1,
}


VALUE_MEMBERS = frozenset(
    (
        *(*_VALUE_ATTRIBUTES, *_BLOCK_POINTER_ATTRIBUTES, *METHODS, "T", "value", "_replace"),
        *(*descriptors.ATTRIBUTES, *DESCRIPTOR_METHODS, *dtypes.ATTRIBUTES),
        *(name for names in PYTHON_METHODS.values() for name in names),
    )
)
"""The attributes of kernel values of any type, records excepted."""


def _value_attribute(frame: Frame, owner: Value, name: str) -> Operand:
    if name in _VALUE_ATTRIBUTES:
        return _VALUE_ATTRIBUTES[name](owner)
    if name in METHODS:
        return BoundMethod(owner, METHODS[name])
    if name == "T":
        return trans(frame.emit, owner)
    raise mistake(
        f"{show(owner)} has no attribute {name!r}",
        remedy=did_you_mean(name, [*_VALUE_ATTRIBUTES, *METHODS, "T"]),
        feature=f"the attribute {name!r}",
    )


def _descriptor_attribute(frame: Frame, owner: Value, kind: DescriptorType, name: str) -> Operand:
    if name in descriptors.ATTRIBUTES:
        return descriptors.ATTRIBUTES[name](frame.emit, owner, kind)
    if name in DESCRIPTOR_METHODS:
        return BoundMethod(owner, DESCRIPTOR_METHODS[name])
    raise mistake(
        f"a tensor descriptor has no attribute {name!r}",
        remedy=did_you_mean(name, [*descriptors.ATTRIBUTES, *DESCRIPTOR_METHODS]),
    )
