"""The language's classes for `isinstance` and `type`, and the types of values.

Tensors have the types of `aotc.ir.types`. The types of constants and tuples are declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aotc.frontend.emitter import mistake
from aotc.frontend.values import (
    BlockPointer,
    Class,
    Operand,
    Record,
    RecordType,
    StaticCall,
    is_descriptor,
    is_tuple,
    show,
    text_of,
)
from aotc.ir.core import Value
from aotc.ir.diagnostics import did_you_mean
from aotc.ir.types import DescriptorType, PointerType, ScalarType, TileType


@dataclass(frozen=True)
class ConstexprType:
    """The type of a constant, holding its value."""

    value: Operand

    def __str__(self) -> str:
        return f"constexpr_type[{text_of(self.value)}]"


@dataclass(frozen=True)
class TupleType:
    """The type of a tuple: types of its items, names of its fields if any."""

    types: tuple[Operand, ...]
    fields: tuple[str, ...] | None = None

    def __str__(self) -> str:
        names = [f"{name}:" for name in self.fields] if self.fields else [""] * len(self.types)
        items = zip(names, self.types, strict=True)
        return f"[{','.join(name + text_of(item) for name, item in items)}]"


def type_of(operand: Operand) -> Operand:
    """Return `.type` of a value or constant of a kernel."""
    if isinstance(operand, Value):
        return operand.type
    if isinstance(operand, BlockPointer):
        return operand.base.type
    if is_tuple(operand):
        fields = operand.kind.fields if isinstance(operand, Record) else None
        return TupleType(tuple(type_of(item) for item in operand), fields)
    return ConstexprType(operand)


def type_attribute(owner: ConstexprType | TupleType, name: str) -> Operand:
    """Return an attribute of the type of a constant or a tuple. Raises: CompileError."""
    attributes: dict[str, Operand] = (
        {"value": owner.value}
        if isinstance(owner, ConstexprType)
        else {"types": owner.types, "fields": owner.fields, "name": str(owner)}
    )
    if name in attributes:
        return attributes[name]
    raise mistake(
        f"the type {owner} has no attribute {name!r}",
        remedy=did_you_mean(name, attributes)
        or "a constant has a dtype once a variable has its value: `x = CONSTANT`",
    )


# ---- classes ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LanguageClass(StaticCall):
    """A class of the language; `holds` tests whether an operand is an instance."""

    holds: Callable[[Operand], bool] = lambda operand: operand is None

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class ClassUnion:
    """The classes of `A | B`."""

    kinds: tuple[Operand, ...]


def class_union(left: Operand, right: Operand) -> ClassUnion | None:
    """Return the union `left | right` of classes, or None for other operands."""
    if not all(
        isinstance(side, LanguageClass | ClassUnion | Class | RecordType) for side in (left, right)
    ):
        return None
    return ClassUnion((*classes_in(left), *classes_in(right)))


def classes_in(kind: Operand) -> tuple[Operand, ...]:
    """Return the classes of a tuple or a union, or the class itself."""
    if isinstance(kind, ClassUnion):
        return kind.kinds
    if is_tuple(kind):
        return tuple(part for item in kind for part in classes_in(item))
    return (kind,)


def _is_tensor(operand: Operand) -> bool:
    return isinstance(operand, Value | BlockPointer) and not is_descriptor(operand)


def _is_dtype(operand: Operand) -> bool:
    return isinstance(operand, ScalarType | PointerType | TileType)


def _is_base_value(operand: Operand) -> bool:
    return isinstance(operand, Value | BlockPointer) or is_tuple(operand)


def _is_descriptor_type(operand: Operand) -> bool:
    return isinstance(operand, DescriptorType)


def _is_base_type(operand: Operand) -> bool:
    return _is_dtype(operand) or isinstance(operand, ConstexprType | TupleType | DescriptorType)


def _is_constant(operand: Operand) -> bool:
    """Decide `isinstance(…, tl.constexpr)` outside of kernels."""
    return not isinstance(operand, Value | BlockPointer) and not is_tuple(operand)


_HOLDS: Mapping[str, Callable[[Operand], bool]] = {
    "tensor": _is_tensor,
    "tensor_descriptor": is_descriptor,
    "tensor_descriptor_base": is_descriptor,
    "tuple": is_tuple,
    "constexpr": _is_constant,
    "dtype": _is_dtype,
    "pointer_type": lambda operand: isinstance(operand, PointerType),
    "block_type": lambda operand: isinstance(operand, TileType),
    "tuple_type": lambda operand: isinstance(operand, TupleType),
    "constexpr_type": lambda operand: isinstance(operand, ConstexprType),
    "tensor_descriptor_type": _is_descriptor_type,
    "tensor_descriptor_base_type": _is_descriptor_type,
    "base_value": _is_base_value,
    "base_type": _is_base_type,
}
_CONSTEXPR = "tl.constexpr"
_MOST_SPECIFIC = (
    *("tensor_descriptor", "tensor", "tuple", "pointer_type", "block_type", "dtype"),
    *("tuple_type", "constexpr_type", "tensor_descriptor_type"),
)


def language_classes(makers: Mapping[str, Callable[..., Operand]]) -> dict[str, LanguageClass]:
    """Return the classes by name; a class with a maker is callable."""

    def refuse(name: str) -> Callable[..., Operand]:
        def call(*args: Operand, **kwargs: Operand) -> Operand:
            del args, kwargs
            raise mistake(
                f"a kernel makes no tl.{name} by calling the class",
                remedy="functions of tl make values, such as tl.full, tl.load or tl.zeros",
            )

        return call

    return {
        name: LanguageClass(
            f"tl.{name}", makers.get(name) or refuse(name), takes_values=True, holds=holds
        )
        for name, holds in _HOLDS.items()
    }


def python_class(name: str, kind: type[object], make: Callable[..., Operand]) -> LanguageClass:
    """Return one of Python's classes, a class of constants."""
    return LanguageClass(
        name, make, takes_values=True, holds=lambda operand: isinstance(operand, kind)
    )


def is_instance(subject: Operand, kind: Operand) -> bool:
    """Evaluate `isinstance` on a kernel's value and the language's classes.

    None is an instance of `tl.constexpr`: Triton tests the value inside a constant.
    Raises: CompileError.
    """
    if isinstance(kind, LanguageClass):
        return kind.name != _CONSTEXPR and kind.holds(subject)
    raise mistake(
        f"isinstance() does not know {show(kind)}",
        remedy="use a class such as tl.tensor, tl.dtype, tl.pointer_type or tl.block_type",
    )


def class_of(subject: Operand, classes: Mapping[str, Operand]) -> Operand:
    """Return the direct class of a value among `classes`. Raises: CompileError."""
    names = (*_MOST_SPECIFIC, type(subject).__name__)
    for name in names:
        cls = classes.get(name)
        if isinstance(cls, LanguageClass) and cls.holds(subject):
            return cls
    raise mistake(f"type() does not know {show(subject)}")
