"""Map classes of a source file to record types with fields and defaults.

Functions decorated with `@triton.jit` are methods of the class, or plain functions if static.
Only an aggregate's `__init__` is evaluated, to set the fields.
"""

from __future__ import annotations

import ast

from aotc.frontend.language.constants import unwrap
from aotc.frontend.python.globals import Globals
from aotc.frontend.python.resolve import class_fields, class_statement, decorator_names
from aotc.frontend.values import Class, External, Operand, RecordType

_NAMED_TUPLES = ("typing.NamedTuple", "typing_extensions.NamedTuple")


def record_type(module: Globals, owner: Class) -> RecordType | None:
    """Return the record type of a class; None for a plain class."""
    if owner.node not in module.record_types:
        module.record_types[owner.node] = _record_type(module, owner)
    return module.record_types[owner.node]


def _record_type(module: Globals, owner: Class) -> RecordType | None:
    decorators = decorator_names(owner.node)
    # Host code passes dataclasses to functions making decorators and configs.
    is_aggregate = any(name.endswith("aggregate") or name == "dataclass" for name in decorators)
    fields: dict[str, ast.expr | None] = {}
    defaults: dict[str, Operand] = {}
    is_record = is_aggregate
    for base in module.bases(owner):
        if isinstance(base, External) and base.path in _NAMED_TUPLES:
            is_record = True
        inner = record_type(module, base) if isinstance(base, Class) else base
        if isinstance(inner, RecordType):
            is_record, is_aggregate = True, is_aggregate or inner.is_aggregate
            fields |= dict.fromkeys(inner.fields)
            defaults |= inner.defaults
    if not is_record:
        return None
    declared = class_fields(owner.node)
    defaults |= {
        name: unwrap(module.evaluate(owner.file, default))
        for name, default in declared.items()
        if default is not None
    }
    return RecordType(owner.qualname, (*{**fields, **declared},), defaults, owner, is_aggregate)


def object_type(module: Globals, owner: Class) -> RecordType | None:
    """Return the record type of a plain host class: the fields set by its `__init__`.

    None if it has no `__init__`, has bases or decorators, or sets anything but its own fields.
    """
    init = class_statement(owner.node, "__init__")
    if owner.node.bases or owner.node.decorator_list or not isinstance(init, ast.FunctionDef):
        return None
    functions = [function for function in owner.node.body if isinstance(function, ast.FunctionDef)]
    if any(function.decorator_list for function in functions):  # for example a property
        return None
    self_name = next((parameter.arg for parameter in (*init.args.posonlyargs, *init.args.args)), "")
    fields: dict[str, None] = {}
    for node in ast.walk(init):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if not isinstance(node.value, ast.Name) or node.value.id != self_name:
                return None
            fields[node.attr] = None
    if owner.node not in module.object_types:
        module.object_types[owner.node] = RecordType(
            owner.qualname, (*fields,), {}, owner, is_aggregate=True
        )
    return module.object_types[owner.node]


def initializer(kind: RecordType) -> ast.FunctionDef | None:
    """Return the `__init__` of an aggregate, or None if its fields are its arguments."""
    if kind.owner is None or not kind.is_aggregate:
        return None
    init = class_statement(kind.owner.node, "__init__")
    return init if isinstance(init, ast.FunctionDef) else None
