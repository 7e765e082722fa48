"""Tuples with named items: named tuples, dataclasses, and the aggregates of newer Triton.

    Pair = namedtuple("Pair", ["low", "high"])
    class Pair(NamedTuple): low: tl.tensor; high: tl.tensor
    @aggregate
    class Pair: low: tl.tensor; high: tl.tensor
    @dataclass
    class Tuning: blocks: list; warps: int = 4

A record goes through branches, loops and calls as a tuple does. Functions of its class with
`@triton.jit` are its methods. The `__init__` of an aggregate may only set fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aotc.frontend.emitter import mistake
from aotc.frontend.language.arguments import bind_arguments
from aotc.frontend.values import (
    Operand,
    Parameters,
    Record,
    RecordType,
    is_tuple,
    show,
)
from aotc.ir.diagnostics import did_you_mean

_NAMED_TUPLE = Parameters(
    "collections.namedtuple",
    *(("typename", "field_names"), ("typename", "field_names")),
    ("rename", "defaults", "module"),
)


def make_record(kind: RecordType, args: Sequence[Operand], kwargs: Mapping[str, Operand]) -> Record:
    """Return a record of a type, from arguments in order and by name. Raises: CompileError."""
    required = tuple(name for name in kind.fields if name not in kind.defaults)
    parameters = Parameters(str(kind), kind.fields, required, noun="field")
    items = {**kind.defaults, **bind_arguments(parameters, args, kwargs)}
    return Record.of(kind, (items[name] for name in kind.fields))


def _check_field(kind: RecordType, name: str) -> None:
    if name not in kind.fields:
        remedy = did_you_mean(name, kind.fields) or f"its fields are ({', '.join(kind.fields)})"
        raise mistake(f"{kind} has no field {name!r}", remedy=remedy)


def replaced(record: Operand, /, **changes: Operand) -> Record:
    """Return a record with some of its fields changed. Raises: CompileError."""
    if not isinstance(record, Record):
        raise mistake(f"expected an aggregate or a named tuple, got {show(record)}")
    for name in changes:
        _check_field(record.kind, name)
    return Record.of(record.kind, ({**record.by_name, **changes}[f] for f in record.kind.fields))


def named_tuple(args: Sequence[Operand], kwargs: Mapping[str, Operand]) -> RecordType:
    """Return the type made by `collections.namedtuple(…)`. Raises: CompileError."""
    arguments = bind_arguments(_NAMED_TUPLE, args, kwargs)
    name, listed = arguments["typename"], arguments["field_names"]
    if isinstance(listed, str):
        listed = tuple(listed.replace(",", " ").split())
    if not isinstance(name, str) or not is_tuple(listed):
        raise mistake("a named tuple has a name, and a list of the names of its fields")
    fields = tuple(field for field in listed if isinstance(field, str))
    defaults = arguments.get("defaults", ())
    values = defaults if is_tuple(defaults) else ()
    return RecordType(name, fields, dict(zip(reversed(fields), reversed(values), strict=False)))
