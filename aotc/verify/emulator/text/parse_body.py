"""Parse the body of a kernel: statements, scopes, registers and labels.

Invariant: a register's `row` is unique among the registers of its width, in order of declaration;
registers of the same name in different scopes are different registers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.syntax import (
    Address,
    Guard,
    Immediate,
    Instruction,
    Label,
    Operand,
    Pair,
    Register,
    Sink,
    SourceLocation,
    SpecialRegister,
    Symbol,
    TensorAddress,
    Vector,
)
from aotc.verify.emulator.text.functions import Function
from aotc.verify.emulator.text.program import Variable
from aotc.verify.emulator.text.special_registers import SPECIAL_REGISTERS
from aotc.verify.emulator.text.tokens import Cursor
from aotc.verify.emulator.text.variables import (
    SPACES,
    parse_constant,
    parse_type_bits,
    parse_variable,
)

_NUMBERED = re.compile(r"(.*?)(\d+)\Z", re.DOTALL)
# Their operands may name labels and functions.
_JUMPS = ("bra", "brx", "call")
# They read the carry flag; instructions with `.cc` write it. PTX leaves it implicit.
_RETURN = "the end of the function"
_READ_CARRY = ("addc", "subc", "madc")


@dataclass
class _Scope:
    """Hold the names of one pair of braces, and jumps to labels not yet defined."""

    registers: dict[str, Register] = field(default_factory=dict[str, Register])
    ranges: dict[str, tuple[int, int, int]] = field(
        default_factory=dict[str, "tuple[int, int, int]"]
    )
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    passed: dict[str, Symbol] = field(default_factory=dict[str, Symbol])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    jumps: list[int] = field(default_factory=list[int])


class Body:
    """Parse one body; `symbols` are the names outside of it, `files` is numbered by `.loc`.

    Calls of the module's `functions` are inlined.
    """

    def __init__(
        self,
        cursor: Cursor,
        symbols: frozenset[str],
        files: Mapping[int, str],
        functions: Mapping[str, Function] | None = None,
    ) -> None:
        self._cursor = cursor
        self._symbols = symbols
        self._functions = functions or {}
        self._called: list[str] = []
        self._inlined: dict[str, None] = {}  # parameter variables of inlined calls
        self._files = files
        self._scopes: list[_Scope] = []
        self._instructions: list[Instruction] = []
        self._location: SourceLocation | None = None
        self.registers: dict[int, int] = {}
        self.variables: dict[str, Variable] = {}

    def parse(self) -> tuple[Instruction, ...]:
        """Return the instructions up to the closing brace, and skip it."""
        self._braces()
        for name in self._inlined:
            self.variables[name] = replace(self.variables[name], space="local")
        return tuple(map(self._with_local_params, self._instructions))

    def _with_local_params(self, instruction: Instruction) -> Instruction:
        """Redirect accesses of an inlined call's parameters to local memory."""
        bases = [operand.base for operand in instruction.operands if isinstance(operand, Address)]
        names = [base.name for base in bases if isinstance(base, Symbol)]
        if "param" not in instruction.modifiers or not any(n in self._inlined for n in names):
            return instruction
        words = ("local" if word == "param" else word for word in instruction.modifiers)
        return replace(instruction, modifiers=tuple(words))

    # ---- statements ---------------------------------------------------------

    def _braces(self) -> None:
        scope = _Scope()
        self._scopes.append(scope)
        while not self._cursor.take("}"):
            self._statement(scope)
        self._scopes.pop()
        for index in scope.jumps:
            self._resolve(scope, index)

    def _statement(self, scope: _Scope) -> None:
        cursor = self._cursor
        word = cursor.peek()
        if cursor.take("{"):
            self._braces()
        elif cursor.take(";"):
            pass
        elif cursor.take(".reg"):
            self._declare(scope, parse_type_bits(cursor))
        elif cursor.take(".loc"):
            self._location = self._loc()
        elif cursor.take(".pragma"):
            cursor.skip_past(";")
        elif word in (*SPACES, ".param"):
            cursor.next()
            variable = parse_variable(cursor, word[1:])
            if variable.space == "param" and variable.name in self.variables:
                # Each call declares its parameters, often with the same names.
                other = replace(variable, name=f"{variable.name}@{len(self.variables)}")
                scope.passed[variable.name], variable = Symbol(other.name), other
            scope.variables[variable.name] = self.variables[variable.name] = variable
        elif cursor.peek(1) == ":" and cursor.token.kind == "word":
            self._label(scope)
        else:
            self._instruction(scope)

    def _declare(self, scope: _Scope, bits: int) -> None:
        cursor = self._cursor
        while not cursor.take(";"):
            name = cursor.word("a register's name")
            row, count = self.registers.get(bits, 0), 1
            if cursor.take("<"):
                count = cursor.integer("how many registers")
                cursor.expect(">")
                scope.ranges[name] = (bits, row, count)
            else:
                scope.registers[name] = Register(name, bits, row)
            self.registers[bits] = row + count
            cursor.take(",")

    def _loc(self) -> SourceLocation | None:
        """Parse `.loc FILE LINE COLUMN [, function_name LABEL, inlined_at FILE LINE COLUMN]`."""
        location, site = self._location_numbers(), None
        while self._cursor.take(","):
            if self._cursor.word("function_name or inlined_at") == "inlined_at":
                site = self._location_numbers()
            else:
                self._cursor.word("a function's label")
                if self._cursor.take("+"):
                    self._cursor.integer("an offset")
        # Line 0 means unknown.
        return location and replace(location, inlined_at=site)

    def _location_numbers(self) -> SourceLocation | None:
        file, line, column = (self._cursor.integer("a number of `.loc`") for _ in range(3))
        return SourceLocation(self._files.get(file, "?"), line, column) if line else None

    def _label(self, scope: _Scope) -> None:
        cursor = self._cursor
        name = cursor.next().text
        cursor.next()
        if not cursor.take(".branchtargets"):
            scope.labels[name] = len(self._instructions)
            return
        targets = [cursor.word("a label")]
        while cursor.take(","):
            targets.append(cursor.word("a label"))
        cursor.expect(";")
        scope.tables[name] = tuple(targets)

    def _instruction(self, scope: _Scope) -> None:
        cursor = self._cursor
        first = cursor.token
        guard = self._guard() if cursor.take("@") else None
        token = cursor.next()
        if token.kind != "word" or token.text[0] in ".%$":
            raise cursor.error(f"expected an instruction, got {token.text!r}", token)
        opcode, *modifiers = token.text.split(".")
        jumps = opcode in _JUMPS
        operands: list[Operand] = []
        while not cursor.take(";"):
            if operands:
                cursor.expect(",")
            operands.append(self._operand(labels=jumps))
        end = cursor.tokens[cursor.position - 1].start
        function = self._callee(operands) if opcode == "call" else None
        if function is not None:
            if guard is not None:
                raise cursor.error("a call under a predicate is not emulated", first)
            self._inline(function, operands)
            return
        if opcode == "ret" and self._called:
            opcode, modifiers, jumps = "bra", [], True
            operands.append(Label(_RETURN, -1))
        if opcode == "prmt" and len(modifiers) == 1:
            operands = _without_unread(operands)
        if opcode in _READ_CARRY:
            operands.append(self._carry())
        if "cc" in modifiers:
            operands[0] = Pair(operands[0], self._carry())
        if jumps and opcode != "call":
            scope.jumps.append(len(self._instructions))
        self._instructions.append(
            Instruction(
                opcode,
                tuple(modifiers),
                tuple(operands),
                guard,
                cursor.line_of(first),
                " ".join(cursor.text[first.start : end].split()),
                self._location,
            )
        )

    def _callee(self, operands: list[Operand]) -> Function | None:
        """Return the function of this module that a call names."""
        names = (operand.name for operand in operands if isinstance(operand, Label))
        return next((self._functions[name] for name in names if name in self._functions), None)

    def _inline(self, function: Function, operands: list[Operand]) -> None:
        """Inline a function's body; its parameters and results become the call's variables."""
        cursor, scope = self._cursor, _Scope()
        lists = [operand.elements for operand in operands if isinstance(operand, Vector)]
        names = [names for names in (function.results, function.params) if names]
        if function.name in self._called or [*map(len, lists)] != [*map(len, names)]:
            raise cursor.error(f"this call of {function.name} is not emulated")
        for name, argument in zip(sum(names, ()), sum(lists, ()), strict=True):
            if not isinstance(argument, Symbol):
                raise cursor.error(f"expected a variable for {name} of {function.name}")
            scope.passed[name] = argument
            self._inlined[argument.name] = None
        end, outer_location, cursor.position = cursor.position, self._location, function.start
        self._called.append(function.name)
        self._scopes.append(scope)
        while not cursor.take("}"):
            self._statement(scope)
        scope.labels[_RETURN] = len(self._instructions)
        self._scopes.pop()
        self._called.pop()
        for index in scope.jumps:
            self._resolve(scope, index)
        cursor.position, self._location = end, outer_location

    def _carry(self) -> Register:
        registers = self._scopes[0].registers
        if "%cc" not in registers:
            row = self.registers.get(1, 0)
            self.registers[1] = row + 1
            registers["%cc"] = Register("%cc", 1, row)
        return registers["%cc"]

    def _guard(self) -> Guard:
        negated = self._cursor.take("!")
        token = self._cursor.next()
        predicate = self._lookup(token.text)
        if not isinstance(predicate, Register) or predicate.bits != 1:
            raise self._cursor.error(f"expected a predicate, got {token.text!r}", token)
        return Guard(predicate, negated)

    def _resolve(self, scope: _Scope, index: int) -> None:
        """Resolve a jump's label in this scope, or defer to the enclosing one."""
        instruction = self._instructions[index]
        operands = tuple(_with_labels(scope, operand) for operand in instruction.operands)
        instruction = self._instructions[index] = replace(instruction, operands=operands)
        missing = _unresolved_label(operands)
        if missing and not self._scopes:
            raise EmulationError(
                f"there is no label {missing}", line=instruction.line, text=instruction.text
            )
        if missing:
            self._scopes[-1].jumps.append(index)

    # ---- operands -----------------------------------------------------------

    def _operand(self, *, labels: bool = False) -> Operand:
        operand = self._single(labels=labels)
        return Pair(operand, self._single()) if self._cursor.take("|") else operand

    def _single(self, *, labels: bool = False) -> Operand:
        cursor = self._cursor
        token = cursor.token
        if cursor.take("{"):
            return self._vector("}", labels=labels)
        if cursor.take("("):
            return self._vector(")", labels=labels)
        if cursor.take("["):
            return self._address()
        if token.kind == "number" or token.text in ("-", "+"):
            return parse_constant(cursor)
        negated = cursor.take("!")
        token = cursor.next()
        if token.text == "_":
            return Sink()
        if token.kind != "word":
            raise cursor.error(f"expected an operand, got {token.text!r}", token)
        operand = self._lookup(token.text)
        if operand is None:
            if not labels:
                raise cursor.error(f"{token.text!r} is not declared", token)
            return Label(token.text, -1)
        if negated:
            if not isinstance(operand, Register):
                raise cursor.error(f"expected a predicate after '!', got {token.text!r}", token)
            return replace(operand, negated=True)
        return replace(operand, offset=self._offset()) if isinstance(operand, Symbol) else operand

    def _vector(self, close: str, *, labels: bool) -> Vector:
        elements: list[Operand] = []
        while not self._cursor.take(close):
            elements.append(self._operand(labels=labels))
            if self._cursor.peek() != close:
                self._cursor.expect(",")
        return Vector(tuple(elements))

    def _address(self) -> Address | TensorAddress:
        cursor = self._cursor
        token = cursor.token
        base = self._single()
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        elif isinstance(base, Register | Immediate):
            offset = self._offset()
        else:
            raise cursor.error(f"expected an address, got {token.text!r}", token)
        if cursor.take("]"):
            return Address(base, offset)
        cursor.expect(",")
        coordinates = self._single()
        cursor.expect("]")
        if offset or not isinstance(coordinates, Vector):
            raise cursor.error("expected `[map, {coordinates}]`", token)
        return TensorAddress(base, coordinates.elements)

    def _offset(self) -> int:
        # ptxas accepts `[%r1+-4]`, but not `[%r1-4]`.
        return self._cursor.integer("an offset") if self._cursor.take("+") else 0

    def _lookup(self, name: str) -> Register | SpecialRegister | Symbol | None:
        numbered = _NUMBERED.match(name)
        for scope in reversed(self._scopes):
            if name in scope.registers:
                return scope.registers[name]
            if name in scope.passed:
                return scope.passed[name]
            if name in scope.variables:
                return Symbol(name)
            if numbered and numbered[1] in scope.ranges:
                bits, row, count = scope.ranges[numbered[1]]
                if int(numbered[2]) < count:
                    register = Register(name, bits, row + int(numbered[2]))
                    scope.registers[name] = register
                    return register
        if name in SPECIAL_REGISTERS:
            return SpecialRegister(name)
        return Symbol(name) if name in self._symbols else None


def _without_unread(operands: list[Operand]) -> list[Operand]:
    """Replace a `prmt` source by 0 if a constant selector picks none of its bytes.

    Compilers leave such a register unwritten.
    """
    selector = operands[-1]
    if len(operands) != 4 or not isinstance(selector, Immediate):
        return operands
    target, a, b, _ = operands
    of_second = [selector.value >> shift & 4 != 0 for shift in (0, 4, 8, 12)]
    zero = Immediate(0)
    return [target, zero if all(of_second) else a, b if any(of_second) else zero, selector]


def _with_labels(scope: _Scope, operand: Operand) -> Operand:
    if isinstance(operand, Vector):
        return Vector(tuple(_with_labels(scope, element) for element in operand.elements))
    if not isinstance(operand, Label) or operand.index >= 0:
        return operand
    if operand.name in scope.tables:
        names = scope.tables[operand.name]
        return Vector(tuple(Label(name, scope.labels.get(name, -1)) for name in names))
    return replace(operand, index=scope.labels.get(operand.name, -1))


def _unresolved_label(operands: tuple[Operand, ...]) -> str:
    for operand in operands:
        if isinstance(operand, Label) and operand.index < 0:
            return operand.name
        if isinstance(operand, Vector) and _unresolved_label(operand.elements):
            return _unresolved_label(operand.elements)
    return ""
