"""Fields of op classes, and the constructor and properties generated from them.

An op class is written like a dataclass (see `aotc.ir.core`); each of its fields is one of the
markers below. Constructor and properties are generated once for each class: building ops is the
most frequent work of a pass, and a generic constructor would go through the declarations each time.

Invariant: operands, results and blocks stand in an op's lists in the order of their fields, and the
variadic field of each, if any, is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aotc.ir.diagnostics import current_loc

if TYPE_CHECKING:
    from aotc.ir.core import Block, Op, Value

MISSING: Any = object()
"""The default of a field that has none."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Describe one declared field of an op class."""

    role: Literal["operand", "operands", "attribute", "result", "results", "block"]
    default: Any = MISSING
    name: str = ""


@dataclass(frozen=True, slots=True)
class Arity:
    """Count an op class's operands, results and blocks, to check generic parts.

    `required` are the indices of the mandatory operands; with `variadic`, any number of operands
    may follow the first `num_operands`.
    """

    num_operands: int = 0
    required: tuple[int, ...] = ()
    variadic: bool = False
    num_blocks: int = 0

    @classmethod
    def of(cls, fields: Sequence[FieldSpec]) -> Arity:
        operands = [spec for spec in fields if spec.role == "operand"]
        return cls(
            len(operands),
            tuple(i for i, spec in enumerate(operands) if spec.default is MISSING),
            any(spec.role == "operands" for spec in fields),
            sum(spec.role == "block" for spec in fields),
        )


def operand(*, default: Any = MISSING) -> Any:
    """Declare an operand; `default=None` makes it optional."""
    return FieldSpec("operand", default)


def operands() -> Any:
    """Declare the variadic operand group; it must be the last operand field."""
    return FieldSpec("operands")


def attribute(*, default: Any = MISSING) -> Any:
    """Declare an attribute: an immutable, hashable plain value."""
    return FieldSpec("attribute", default)


def result(*, init: Literal[False] = False) -> Any:
    """Declare a single result."""
    del init
    return FieldSpec("result")


def results(*, init: Literal[False] = False) -> Any:
    """Declare a variadic group of results; it must be the last result field."""
    del init
    return FieldSpec("results")


def block() -> Any:
    """Declare a nested block."""
    return FieldSpec("block")


def _slot_getter(index: int) -> Callable[[Op], Value | None]:
    return lambda self: self.slots[index]


def _group_getter(index: int) -> Callable[[Op], tuple[Value | None, ...]]:
    return lambda self: tuple(self.slots[index:])


def _result_getter(index: int) -> Callable[[Op], Value]:
    return lambda self: self.results[index]


def _results_getter(index: int) -> Callable[[Op], tuple[Value, ...]]:
    return lambda self: tuple(self.results[index:])


def _block_getter(index: int) -> Callable[[Op], Block]:
    return lambda self: self.blocks[index]


_GETTERS: dict[str, Callable[[int], Callable[[Op], object]]] = {
    "operand": _slot_getter,
    "operands": _group_getter,
    "result": _result_getter,
    "results": _results_getter,
    "block": _block_getter,
}
_POSITIONS = {
    "operand": "slot",
    "operands": "slot",
    "result": "result",
    "results": "result",
    "block": "block",
}


def define_accessors(cls: type[Op]) -> None:
    """Give `cls` its field properties and an `__init__` written for exactly its fields."""
    counts = {"slot": 0, "result": 0, "block": 0}
    parameters: list[str] = []
    slot_parts: list[str] = []
    block_names: list[str] = []
    body: list[str] = []
    defaults: dict[str, Any] = {}
    for spec in cls.fields:
        name = spec.name
        if spec.role != "attribute":
            kind = _POSITIONS[spec.role]
            setattr(cls, name, property(_GETTERS[spec.role](counts[kind])))
            counts[kind] += 1
        elif isinstance(cls.__dict__.get(name), FieldSpec):
            delattr(cls, name)
        if spec.role in ("result", "results"):
            continue
        if spec.default is MISSING:
            parameters.append(name)
        else:
            defaults[f"_default_{name}"] = spec.default
            parameters.append(f"{name}=_default_{name}")
        if spec.role == "operand":
            slot_parts.append(name)
        elif spec.role == "operands":
            slot_parts.append(f"*{name}")
        elif spec.role == "block":
            block_names.append(name)
        else:
            body.append(f"    self.{name} = {name}")
    block_tuple = "".join(f"{name}, " for name in block_names)
    body.append(f"    self._setup([{', '.join(slot_parts)}], ({block_tuple}), _loc())")
    source = f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(body)
    namespace: dict[str, Any] = {"_loc": current_loc, **defaults}
    exec(source, namespace)  # noqa: S102 - written from the declared fields, as dataclasses does
    cls.__init__ = namespace["__init__"]
