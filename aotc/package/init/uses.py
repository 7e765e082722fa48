"""Collect the uses of a kernel's parameters, as evidence for their types and values.

A walk of the function's body and of all called jit functions. Abstract values track the base
pointer of an address sum, the parameters in its offset, and the pointer a value was loaded through.
After a branch, and in a loop, a variable's value is the join of its assignments.

Invariant: uses come from operations in the source, never from a parameter's name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aotc.frontend.source import SourceFile
from aotc.frontend.survey.support import Survey
from aotc.frontend.values import Function
from aotc.ir.diagnostics import CompileError
from aotc.package.init.dtypes import dtype_name
from aotc.package.init.nodes import (
    dotted_path,
    is_integer_literal,
    is_loop,
    is_negative,
    is_none,
    parameter_names,
)
from aotc.package.init.use import Use, Uses

_MAX_DEPTH = 8
_ROUNDS = 3  # of a loop: its values reach the head, through one more variable
_LOADS, _STORES = ("load",), ("store",)
_DESCRIPTOR_MAKERS = (
    "make_block_ptr",
    "make_tensor_descriptor",
    "_experimental_make_tensor_descriptor",
)
_SHAPED = ("arange", "zeros", "full", "broadcast_to", "reshape", "view")
_RANGES = ("range", "static_range")
_PROPERTIES = ("dtype", "shape", "type", "numel", "itemsize", "primitive_bitwidth")
_PROGRAM_INDICES = ("program_id", "num_programs")
_CASTS, _CAST_KEYWORDS = ("to", "cast"), ("dtype", "out_dtype")
# Functions of float arguments only.
_FLOAT_FUNCTIONS = (
    *("exp", "exp2", "log", "log2", "sqrt", "sqrt_rn", "rsqrt", "sin", "cos", "tanh", "sigmoid"),
    *("erf", "fma", "fdiv", "div_rn"),
)
_WORDS = {
    "cache_modifier": "",
    "eviction_policy": "",
    "sem": "relaxed",
    "scope": "gpu",
}  # usual ones
_LARGE = 64  # a code: floats are compared with smaller integers
_INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
_INTEGER_OPERATORS = (
    *(ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift),
    *(ast.BitAnd, ast.BitOr, ast.BitXor),
)


# Uses in a callee that apply to the caller's parameter only when it is passed unchanged.
_DIRECT = Use.FLOAT | Use.CONDITION | Use.NONE_TEST | Use.EXTENT | Use.TRIPS | Use.DTYPE
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Value:
    """The provenance of a value, as parameter names.

    `bases`: the parameter itself, or the base of a pointer sum. `parts`: all operands. `loaded`:
    pointers it was loaded through. `is_index`: it enumerates elements (`arange`). `steps`: it is a
    multiple of these.
    """

    bases: frozenset[str] = _NONE
    parts: frozenset[str] = _NONE
    loaded: frozenset[str] = _NONE
    is_float: bool = False
    is_index: bool = False
    is_integer: bool = False
    is_kernel_descriptor: bool = False
    steps: frozenset[str] = _NONE

    def __or__(self, other: _Value) -> _Value:
        return _Value(
            self.bases | other.bases,
            self.parts | other.parts,
            self.loaded | other.loaded,
            self.is_float or other.is_float,
            self.is_index or other.is_index,
            self.is_integer or other.is_integer,
            self.is_kernel_descriptor or other.is_kernel_descriptor,
            self.steps | other.steps,
        )

    @property
    def plain(self) -> _Value:
        """The value after an operation: no longer a parameter itself."""
        return replace(self, bases=_NONE, is_kernel_descriptor=False)


_EMPTY = _Value()


def uses_of(survey: Survey, function: Function) -> Uses:
    """Return the uses of a kernel's parameters; unknown operations count as none."""
    uses = _Walk(survey, function.file, function.node, {}, 0).run()
    for decorator in function.node.decorator_list:
        for node in ast.walk(decorator):
            if isinstance(node, ast.Compare) and is_none(node.comparators[0]):
                uses.add(_heuristic_argument(node.left), Use.NONE_TEST)
    return uses


def _heuristic_argument(node: ast.expr) -> frozenset[str]:
    """Return the argument named by a heuristic's `args["name"]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return _NONE
    return frozenset([node.slice.value]) if isinstance(node.slice.value, str) else _NONE


class _Walk:
    """Walk one function."""

    def __init__(
        self,
        survey: Survey,
        file: SourceFile,
        node: ast.FunctionDef,
        uses_by_function: dict[ast.FunctionDef, Uses],
        depth: int,
    ) -> None:
        self.survey = survey
        self.file = file
        self.node = node
        self.uses_by_function = uses_by_function
        self.depth = depth
        self.uses = Uses()
        self.parameters = parameter_names(node)
        self.counters: dict[str, int] = {}
        self.is_in_loop = False
        self.values = {
            name: _Value(frozenset([name]), frozenset([name])) for name in self.parameters
        }

    def run(self) -> Uses:
        self.uses_by_function[self.node] = self.uses
        for statement in self.node.body:
            self.statement(statement)
        return self.uses

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            value = self.visit(node.value)
            for target in node.targets:
                self.bind(target, value, node.value)
                self.note_counter(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.bind(node.target, self.visit(node.value), node.value)
        elif isinstance(node, ast.AugAssign):
            whole = ast.BinOp(node.target, node.op, node.value)
            value = self.visit(whole)
            if self.is_in_loop and dotted_path(node.target) in self.counters:
                self.uses.add(value.loaded, Use.INDICES)
            self.bind(node.target, value, whole)
        elif isinstance(node, ast.For):
            self.bind(node.target, self.visit(node.iter), node.iter)
        elif isinstance(node, ast.If | ast.While):
            self.condition(node.test)
        elif isinstance(node, ast.Return) and node.value is not None:
            self.uses.returns_float |= self.visit(node.value).is_float
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.visit(child)
                elif isinstance(child, ast.stmt):
                    self.statement(child)
        outer = self.is_in_loop
        self.is_in_loop |= is_loop(node)
        if isinstance(node, ast.For | ast.While):
            for _ in range(_ROUNDS):
                self.join(self.block(node.body))
        elif isinstance(node, ast.If):
            after = self.block(node.body)
            self.values = self.block(node.orelse)
            self.join(after)
        self.is_in_loop = outer

    def block(self, body: Sequence[ast.stmt]) -> dict[str, _Value]:
        """Walk a block; return the values after it, and keep those before."""
        before, self.values = self.values, dict(self.values)
        for statement in body:
            self.statement(statement)
        after, self.values = self.values, before
        return after

    def join(self, other: Mapping[str, _Value]) -> None:
        for name, value in other.items():
            self.values[name] = self.values.get(name, _EMPTY) | value

    def note_counter(self, target: ast.expr, value: ast.expr) -> None:
        """Record a variable initialized to an integer; a loop keeps it one."""
        if isinstance(target, ast.Name):
            self.counters.pop(target.id, None)
            if isinstance(value, ast.Constant) and type(value.value) is int:
                self.counters[target.id] = value.value

    def bind(self, target: ast.expr, value: _Value, source: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = source.elts if isinstance(source, ast.Tuple | ast.List) else []
            if len(parts) == len(target.elts):
                values = [self.visit(part) for part in parts]
                for bound in zip(target.elts, values, parts, strict=True):
                    self.bind(*bound)
            else:
                for element in target.elts:
                    self.bind(element, value, source)

    def condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.BoolOp):
            for part in test.values:
                self.condition(part)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.condition(test.operand)
        else:
            value = self.visit(test)
            if isinstance(test, ast.Name):
                self.uses.add(value.bases, Use.CONDITION)

    def visit(self, node: ast.expr) -> _Value:
        if isinstance(node, ast.Name):
            return self.values.get(node.id, _EMPTY)
        if isinstance(node, ast.Constant):
            return _Value(is_float=isinstance(node.value, float))
        if isinstance(node, ast.BinOp):
            return self.binary(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.Compare):
            return self.compare(node)
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Subscript):
            self.visit(node.slice)
            return self.visit(node.value)
        if isinstance(node, ast.IfExp):
            self.condition(node.test)
            return self.visit(node.body) | self.visit(node.orelse)
        value = _EMPTY
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                value |= self.visit(child)
        return value.plain

    def binary(self, node: ast.BinOp) -> _Value:
        left, right = self.visit(node.left), self.visit(node.right)
        combined = (left | right).plain
        if isinstance(node.op, ast.Mult):
            factors = _direct(node.left, left) | _direct(node.right, right)
            combined = replace(combined, steps=factors or combined.steps)
        elif not isinstance(node.op, ast.Add | ast.Sub):
            combined = replace(combined, steps=_NONE)
        if isinstance(node.op, _INTEGER_OPERATORS):
            self.uses.add(_direct(node.left, left) | _direct(node.right, right), Use.INTEGER)
            self.note_bits(node, left, right)
        elif isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            self.note_float(node.left, left, right)
            self.note_float(node.right, right, left)
        if isinstance(node.op, ast.Add | ast.Sub):
            for value, other in ((left, right), (right, left)):
                if other.is_index and not (value.is_float or other.is_float or other.loaded):
                    self.uses.add(value.loaded, Use.INDICES)
            return replace(combined, bases=left.bases or right.bases)
        return replace(combined, is_float=combined.is_float or isinstance(node.op, ast.Div))

    def note_bits(self, node: ast.BinOp, left: _Value, right: _Value) -> None:
        """Record integer loads: only integers are shifted or masked."""
        if isinstance(node.op, ast.LShift | ast.RShift):
            self.uses.add(left.loaded | right.loaded, Use.BITS)
        elif isinstance(node.op, ast.FloorDiv):
            self.uses.add(left.loaded | right.loaded, Use.INDICES)
        elif isinstance(node.op, ast.BitXor):
            self.uses.add(left.loaded | right.loaded, Use.BITS)
        elif isinstance(node.op, ast.BitAnd | ast.BitOr):
            if is_integer_literal(node.right) or right.is_integer:
                self.uses.add(left.loaded, Use.BITS)
            if is_integer_literal(node.left) or left.is_integer:
                self.uses.add(right.loaded, Use.BITS)

    def note_float(self, node: ast.expr, value: _Value, other: _Value) -> None:
        if other.is_float and not other.is_index:
            self.uses.add(_direct(node, value), Use.FLOAT)

    def compare(self, node: ast.Compare) -> _Value:
        sides = [node.left, *node.comparators]
        values = [self.visit(side) for side in sides]
        for position, (side, value) in enumerate(zip(sides, values, strict=True)):
            direct = _direct(side, value)
            other_sides = [side for index, side in enumerate(sides) if index != position]
            if any(is_none(side) for side in other_sides):
                self.uses.add(direct, Use.NONE_TEST)
                continue
            if any(is_negative(side) for side in other_sides):
                self.uses.add(value.loaded, Use.INDICES)
            if not value.is_float and any(self.number(side) >= _LARGE for side in other_sides):
                self.uses.add(value.loaded, Use.BITS)
            if all(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                for name in direct:
                    self.uses.compared.setdefault(name, []).extend(other_sides)
                continue
            rest = [value for index, value in enumerate(values) if index != position]
            if any(value.is_index for value in rest):
                self.uses.add(value.parts, Use.BOUND | Use.INTEGER)
                self.uses.add(value.loaded, Use.INDICES)
            elif any(value.is_integer for value in rest):
                self.uses.add(direct, Use.INTEGER)
                if any(
                    value.is_integer and not value.loaded and not value.is_float for value in rest
                ):
                    self.uses.add(value.loaded, Use.INDICES)
            elif any(value.is_float for value in rest):
                self.uses.add(direct, Use.FLOAT)
        return _EMPTY

    def number(self, node: ast.expr) -> int:
        """Return an integer literal, or that of a variable; 0 for anything else."""
        if isinstance(node, ast.Name):
            return self.counters.get(node.id, 0)
        return node.value if isinstance(node, ast.Constant) and type(node.value) is int else 0

    def attribute(self, node: ast.Attribute) -> _Value:
        if node.attr == "element_ty" and isinstance(node.value, ast.Attribute):
            self.uses.add(self.visit(node.value.value).bases, Use.POINTER)
            return _EMPTY
        value = self.visit(node.value)
        return _EMPTY if node.attr in _PROPERTIES else value

    def call(self, node: ast.Call) -> _Value:
        path = dotted_path(node.func)
        owner, _, name = path.rpartition(".")
        if isinstance(node.func, ast.Attribute) and not self.is_module(owner):
            return self.method(node, node.func)
        args = [self.visit(arg) for arg in node.args]
        named = {keyword.arg or "": self.visit(keyword.value) for keyword in node.keywords}
        for keyword in node.keywords:
            direct, word = _direct(keyword.value, named[keyword.arg or ""]), keyword.arg or ""
            self.uses.add(direct if word in _CAST_KEYWORDS else _NONE, Use.DTYPE)
            for option in direct if word in _WORDS else _NONE:
                self.uses.compared.setdefault(option, []).append(ast.Constant(_WORDS[word]))
        callee = self.callee(node.func)
        if callee is not None:
            return self.called(callee, node, args, named)
        joined = _EMPTY
        for value in (*args, *named.values()):
            joined |= value
        if name in _LOADS or name in _STORES or name.startswith("atomic_"):
            pointer = args[0] if args else named.get("pointer", _EMPTY)
            self.stored(pointer, node, args, is_atomic=name not in (*_LOADS, *_STORES))
            return self.access(pointer)
        if name in _DESCRIPTOR_MAKERS:
            base = args[0] if args else named.get("base", _EMPTY)
            self.uses.add(base.bases, Use.POINTER)
            self.uses.add(joined.parts - base.bases, Use.OFFSET | Use.INTEGER)
            return replace(base, is_kernel_descriptor=True)
        if name in _RANGES:
            self.uses.add(joined.parts, Use.INTEGER)
            self.uses.add(joined.loaded, Use.INDICES)
            if name == "static_range":
                for part, value in [*zip(node.args, args, strict=False)][:2]:
                    self.uses.add(_direct(part, value), Use.TRIPS)
            steps = _direct(node.args[2], args[2]) if len(args) > 2 else _NONE
            return replace(joined.plain, is_index=False, is_integer=True, steps=steps)
        if name in _SHAPED:
            self.shaped(node, args, named)
            values = replace(joined.plain, is_index=name == "arange", is_integer=name == "arange")
            return values if name in ("arange", "reshape", "view", "broadcast_to") else _EMPTY
        if name in _FLOAT_FUNCTIONS:
            for part, value in zip(node.args, args, strict=False):
                self.uses.add(_direct(part, value), Use.FLOAT)
            return replace(joined.plain, is_float=True)
        if name in ("where", "advance", "multiple_of", "max_contiguous"):
            passed = args[1:] if name == "where" else args[:1]
            selected = _EMPTY
            for value in passed:
                selected |= value
            if name == "advance":
                self.uses.add(joined.parts - selected.bases, Use.OFFSET | Use.INTEGER)
            return selected
        if name in _PROGRAM_INDICES or name.startswith("arg"):
            return _Value(is_integer=True)
        return joined.plain

    def is_module(self, owner: str) -> bool:
        """Return whether the owner of an attribute is a module, not a value of the kernel."""
        root = owner.partition(".")[0]
        return bool(root) and root not in self.values

    def access(self, pointer: _Value) -> _Value:
        """Record a memory access; return the loaded value."""
        self.uses.add(pointer.bases, Use.POINTER)
        self.uses.add(pointer.parts - pointer.bases, Use.OFFSET | Use.INTEGER)
        self.uses.add(pointer.loaded, Use.INDICES)
        return _Value(loaded=pointer.bases)

    def stored(
        self, pointer: _Value, node: ast.Call, args: Sequence[_Value], *, is_atomic: bool
    ) -> None:
        """Record stores of integers."""
        value = args[1] if len(args) > 1 else _EMPTY
        part = node.args[1] if len(node.args) > 1 else None
        method = part.func if isinstance(part, ast.Call) else None
        is_cast = isinstance(method, ast.Attribute) and method.attr in _CASTS
        if is_cast and isinstance(part, ast.Call) and part.args:
            dtype = dtype_name(part.args[0])
            for name in pointer.bases if dtype in _INTEGERS else ():
                self.uses.stored.setdefault(name, set()).add(dtype)
            return
        is_one = is_atomic and isinstance(part, ast.Constant) and type(part.value) is int
        is_integer = (value.is_integer or value.is_index) and not value.is_float
        of = [self.uses.of(name) for name in value.loaded]
        are_integers = of and all(use & (Use.INDICES | Use.BITS) for use in of)
        if is_one or (is_integer and not value.loaded) or (are_integers and not value.is_float):
            self.uses.add(pointer.bases, Use.INDICES)

    def shaped(self, node: ast.Call, args: Sequence[_Value], named: dict[str, _Value]) -> None:
        """Record the extents of a tile."""
        name = dotted_path(node.func).rpartition(".")[2]
        first = name in ("zeros", "full")
        shapes = args if name == "arange" else args[:1] if first else args[1:2]
        for extent in (
            *shapes,
            *(value for key, value in named.items() if key in ("shape", "end")),
        ):
            self.uses.add(extent.parts, Use.EXTENT)
        dtype_index = {"zeros": 1, "full": 2}.get(name, len(args))
        if dtype_index < len(args):
            self.uses.add(_direct(node.args[dtype_index], args[dtype_index]), Use.DTYPE)

    def method(self, node: ast.Call, function: ast.Attribute) -> _Value:
        value = self.visit(function.value)
        args = [self.visit(arg) for arg in node.args]
        named = [self.visit(keyword.value) for keyword in node.keywords]
        if function.attr in _CASTS and node.args:
            keywords = [keyword.arg for keyword in node.keywords]
            is_bitcast = "bitcast" in keywords or len(args) > 1
            converted = self.cast(function.value, value, node.args[0], args[0])
            return (
                replace(converted, loaded=_NONE) if is_bitcast or converted.is_float else converted
            )
        if function.attr in ("load", "store", "prefetch", "gather", "scatter", "atomic_add"):
            if not value.is_kernel_descriptor:
                self.uses.add(value.bases, Use.DESCRIPTOR)
                self.note_blocks(value, node)
            for offset in (*args[:1], *named[:1]):
                self.uses.add(offset.parts, Use.INTEGER)
            return _Value(loaded=value.bases)
        return value.plain

    def note_blocks(self, value: _Value, node: ast.Call) -> None:
        """Record the steps of a descriptor access's offsets, as its block."""
        offsets = node.args[0] if node.args else None
        if isinstance(offsets, ast.List | ast.Tuple):
            values = [(index, self.visit(index)) for index in offsets.elts]
            blocks = tuple(
                None if isinstance(index, ast.Constant) else offset.steps or _direct(index, offset)
                for index, offset in values
            )
            for name in value.bases:
                self.uses.blocks[name] = blocks

    def cast(self, subject: ast.expr, value: _Value, node: ast.expr, dtype: _Value) -> _Value:
        self.uses.add(_direct(node, dtype), Use.DTYPE)
        text = ast.unparse(node)
        if "pointer_type" in text:
            self.uses.add(value.loaded, Use.ADDRESSES)
            return value.plain
        is_float = "float" in text or "element_ty" in text or ".dtype" in text
        is_integer = "int" in text
        if is_float:
            self.uses.add(_direct(subject, value), Use.FLOAT)
        elif is_integer:
            self.uses.add(_direct(subject, value), Use.INTEGER)
        is_open = not (is_float or is_integer)  # a parameter names the dtype
        converted = replace(value.plain, is_float=value.is_float if is_open else "float" in text)
        return replace(converted, is_integer=is_integer) if is_float or is_integer else converted

    def callee(self, node: ast.expr) -> Function | None:
        """Return the called jit function, None if unknown."""
        path = dotted_path(node)
        if not path or path.partition(".")[0] in self.values or self.depth >= _MAX_DEPTH:
            return None
        try:
            function = self.survey.host_frame(self.file).visit(node)
        except CompileError:
            return None
        return function if isinstance(function, Function) and function.is_jit else None

    def called(
        self, callee: Function, node: ast.Call, args: Sequence[_Value], named: dict[str, _Value]
    ) -> _Value:
        inner = self.uses_by_function.get(callee.node)
        if inner is None:
            walk = _Walk(
                self.survey, callee.file, callee.node, self.uses_by_function, self.depth + 1
            )
            inner = walk.run()
        nodes = {keyword.arg or "": keyword.value for keyword in node.keywords}
        arguments = [
            *zip(parameter_names(callee.node), node.args, args, strict=False),
            *((name, nodes[name], value) for name, value in named.items()),
        ]
        result = _EMPTY
        for name, part, value in arguments:
            use = inner.of(name)
            self.uses.add(value.bases, use & (Use.POINTER | Use.DESCRIPTOR | Use.ADDRESSES))
            self.uses.add(value.bases, use & (Use.INDICES | Use.BITS))
            if use & (Use.OFFSET | Use.BOUND | Use.INTEGER):
                self.uses.add(
                    value.parts - (value.bases if use & Use.POINTER else _NONE),
                    use & (Use.OFFSET | Use.BOUND | Use.INTEGER),
                )
                self.uses.add(value.loaded, Use.INDICES)
            direct = use & _DIRECT
            self.uses.add(_direct(part, value), direct)
            for base in _direct(part, value):
                self.uses.compared.setdefault(base, []).extend(inner.compared.get(name, ()))
            if name in inner.stored:
                for base in value.bases:
                    self.uses.stored.setdefault(base, set()).update(inner.stored[name])
            if name in inner.blocks:
                outer = {
                    key: argument.steps or _direct(part, argument)
                    for key, part, argument in arguments
                }
                for base in value.bases:
                    self.uses.blocks[base] = _outer_blocks(inner.blocks[name], outer)
            result |= value
        is_float = result.is_float or inner.returns_float
        return replace(result.plain, steps=_NONE, is_float=is_float)


def _outer_blocks(
    blocks: tuple[frozenset[str] | None, ...], outer: Mapping[str, frozenset[str]]
) -> tuple[frozenset[str] | None, ...]:
    """Translate blocks to the caller's names."""
    return tuple(
        None if block is None else _NONE.union(*(outer.get(step, _NONE) for step in block))
        for block in blocks
    )


def _direct(node: ast.expr, value: _Value) -> frozenset[str]:
    """Return the parameters an expression names unchanged."""
    return value.bases if isinstance(node, ast.Name) and not value.is_kernel_descriptor else _NONE
