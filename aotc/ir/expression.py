"""The integer expressions of grids, guards, scratch sizes and tensor-map fields.

A manifest says `cdiv(n_cols, BLOCK)`, and a launch computes it without a compiler. So an expression
has three forms: text (manifest, messages), a tree (here), and bytecode
(`package/archive/bytecode.py`) in the archive, run by the runtime. The language is specified in
`docs/reference/archive-format.md`, section 6.

Arithmetic is on checked 64-bit integers with Python's floor semantics. There are no loops and no
jumps, so the length of the text bounds the work; `and` and `or` evaluate both sides.

Invariants: `parse(to_text(e)) == e`; for a mapping split in two, evaluating `fold(e, first)` with
the second equals evaluating `e` with both.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
MAX_TEXT_BYTES = 1024
MAX_TREE_DEPTH = 64
MAX_TENSOR_RANK = 5


class ExpressionError(ValueError):
    """Report an error in an expression, with its span of the text, from column 0."""

    def __init__(self, message: str, col: int = 0, num_chars: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.col = col
        self.num_chars = num_chars


# ------------------------------------------------------------------------------------ the tree


@dataclass(frozen=True, slots=True)
class Integer:
    """A literal, or a constant folded in."""

    value: int
    col: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A constant, a config entry, a scalar argument, or the address of a pointer or tensor."""

    name: str
    col: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Extent:
    """`name.shape[dim]` or `name.strides[dim]` of a tensor argument; strides are in elements."""

    name: str
    kind: Literal["shape", "strides"]
    dim: int
    col: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unary:
    """`-` or `not` of one operand."""

    op: str
    operand: Expression
    col: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """An infix operator, or `min`, `max` or `cdiv`, of two operands."""

    op: str
    lhs: Expression
    rhs: Expression
    col: int = field(default=0, compare=False, repr=False)


Expression: TypeAlias = Integer | Name | Extent | Unary | Binary

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _ATOM = range(1, 9)


def _either(a: int, b: int) -> int:
    return a != 0 or b != 0


def _both(a: int, b: int) -> int:
    return a != 0 and b != 0


def _floordiv(a: int, b: int) -> int:
    return a // b


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


class _Operator(NamedTuple):
    """One row of the operator tables.

    `compute` works on unbounded integers; for a unary operator the first is 0.
    """

    precedence: int
    compute: Callable[[int, int], int]


_BINARY: dict[str, _Operator] = {
    "or": _Operator(_OR, _either),
    "and": _Operator(_AND, _both),
    "==": _Operator(_COMPARE, operator.eq),
    "!=": _Operator(_COMPARE, operator.ne),
    "<=": _Operator(_COMPARE, operator.le),
    "<": _Operator(_COMPARE, operator.lt),
    ">=": _Operator(_COMPARE, operator.ge),
    ">": _Operator(_COMPARE, operator.gt),
    "+": _Operator(_SUM, operator.add),
    "-": _Operator(_SUM, operator.sub),
    "*": _Operator(_PRODUCT, operator.mul),
    "//": _Operator(_PRODUCT, _floordiv),
    "%": _Operator(_PRODUCT, operator.mod),
    "min": _Operator(_ATOM, min),
    "max": _Operator(_ATOM, max),
    "cdiv": _Operator(_ATOM, _cdiv),
}
_UNARY: dict[str, _Operator] = {
    "not": _Operator(_NOT, operator.eq),
    "-": _Operator(_SIGN, operator.sub),
}
_FUNCTIONS = ("min", "max", "cdiv")
_LITERALS = {"true": 1, "True": 1, "false": 0, "False": 0}
_RESERVED = frozenset((*_FUNCTIONS, *_LITERALS, "and", "or", "not"))


def _children(node: Expression) -> tuple[Expression, ...]:
    if isinstance(node, Binary):
        return (node.lhs, node.rhs)
    return (node.operand,) if isinstance(node, Unary) else ()


def walk(root: Expression) -> Iterator[Expression]:
    """Yield every node, in the order of the text's reading."""
    yield root
    for child in _children(root):
        yield from walk(child)


def conjuncts(root: Expression) -> Iterator[Expression]:
    """Yield the operands of top-level `and`s, in order."""
    if isinstance(root, Binary) and root.op == "and":
        yield from conjuncts(root.lhs)
        yield from conjuncts(root.rhs)
    else:
        yield root


def free_names(root: Expression) -> dict[str, int]:
    """Return the names the expression refers to, each with the column of its first use."""
    names: dict[str, int] = {}
    for node in walk(root):
        if isinstance(node, Name | Extent):
            names.setdefault(node.name, node.col)
    return names


# ------------------------------------------------------------------------------------- parsing

_TOKEN = re.compile(
    r"\s*(?:(?P<int>\d+)(?![\w.])|(?P<name>[^\W\d]\w*)"
    r"|(?P<op>//|\*\*|<<|>>|<=|>=|==|!=|[-+*/%<>()\[\],.=])|(?P<end>\Z)|(?P<bad>\S+))"
)


class _Token(NamedTuple):
    kind: str
    text: str
    col: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"`{self.text}`"


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, position)
        # Every branch of the pattern but `end` takes a character, and `bad` takes any.
        assert match is not None
        assert match.lastgroup is not None
        kind = match.lastgroup
        token = _Token(kind, match.group(kind), match.start(kind))
        if kind == "bad":
            message = f"expected an integer expression, got {token}"
            raise ExpressionError(message, token.col, len(token.text))
        tokens.append(token)
        position = match.end()
    return tokens


_MEANT = {
    "**": "there is no power operator; write the multiplications out",
    "<<": "there are no shifts; multiply by a power of two",
    ">>": "there are no shifts; use `//` with a power of two",
    "/": "use `//`, or `cdiv(a, b)` to round up",
    "=": "use `==` to compare",
}


class _Parser:
    """Parse by operator precedence; one method a grammar level would recurse eight deep."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokenize(text)
        self.index = 0
        self.nesting = 0
        self.depths: dict[int, int] = {}

    @property
    def token(self) -> _Token:
        return self.tokens[self.index]

    def take(self, text: str) -> _Token:
        token = self.token
        if token.kind == "end" or token.text != text:
            hint = _MEANT.get(token.text)
            raise ExpressionError(
                f"expected `{text}`, got {token}" + (f": {hint}" if hint else ""), token.col
            )
        self.index += 1
        return token

    def built(self, node: Expression) -> Expression:
        """Return `node`, refusing a tree too deep to be walked recursively."""
        depth = 1 + max((self.depths[id(child)] for child in _children(node)), default=0)
        if depth > MAX_TREE_DEPTH:
            raise ExpressionError(f"more than {MAX_TREE_DEPTH} levels deep", node.col)
        # `node` keeps its children alive, so no id is reused while it can be looked up.
        self.depths[id(node)] = depth
        return node

    def expression(self, precedence: int = _OR) -> Expression:
        """Parse an expression with operators of at least this `precedence`."""
        self.nesting += 1
        if self.nesting > MAX_TREE_DEPTH:
            raise ExpressionError(f"more than {MAX_TREE_DEPTH} levels deep", self.token.col)
        lhs = self.operand(precedence)
        while True:
            token = self.token
            row = _BINARY.get(token.text) if token.text not in _FUNCTIONS else None
            if row is None or row.precedence < precedence:
                break
            self.index += 1
            rhs = self.expression(row.precedence + 1)
            lhs = self.built(Binary(token.text, lhs, rhs, token.col))
            if row.precedence == _COMPARE and self.compares():
                message = "comparisons do not chain; join two of them with `and`"
                raise ExpressionError(message, self.token.col)
        self.nesting -= 1
        return lhs

    def compares(self) -> bool:
        row = _BINARY.get(self.token.text)
        return row is not None and row.precedence == _COMPARE

    def operand(self, precedence: int) -> Expression:
        token = self.token
        row = _UNARY.get(token.text)
        if row is None:
            return self.atom()
        if row.precedence < precedence:
            raise ExpressionError(f"expected an operand, got {token}: use parentheses", token.col)
        self.index += 1
        if token.text == "-" and self.token.kind == "int":
            return self.integer(token.col, sign=-1)
        return self.built(Unary(token.text, self.expression(row.precedence), token.col))

    def integer(self, col: int, sign: int = 1) -> Expression:
        digits = self.token.text
        # Python refuses to convert very long digit strings, with an error of its own.
        value = sign * int(digits) if len(digits.lstrip("0")) <= 19 else INT64_MAX + 1
        if not INT64_MIN <= value <= INT64_MAX:
            raise ExpressionError("integer does not fit 64 bits", col)
        self.index += 1
        return self.built(Integer(value, col))

    def atom(self) -> Expression:
        token = self.token
        if token.kind == "int":
            return self.integer(token.col)
        if token.text == "(":
            self.index += 1
            inner = self.expression()
            self.take(")")
            return inner
        if token.kind != "name" or (token.text in _RESERVED and not self.starts_atom(token)):
            raise ExpressionError(f"expected a name, an integer or `(`, got {token}", token.col)
        self.index += 1
        if token.text in _LITERALS:
            return self.built(Integer(_LITERALS[token.text], token.col))
        if token.text in _FUNCTIONS:
            return self.call(token)
        if self.token.text == ".":
            return self.extent(token)
        if self.token.text == "(":
            expected = ", ".join(_FUNCTIONS)
            message = f"no function is called `{token.text}`; there are {expected}"
            raise ExpressionError(message, token.col, len(token.text))
        return self.built(Name(token.text, token.col))

    @staticmethod
    def starts_atom(token: _Token) -> bool:
        return token.text in _FUNCTIONS or token.text in _LITERALS

    def call(self, function: _Token) -> Expression:
        self.take("(")
        args = [self.expression()]
        while self.token.text == ",":
            self.index += 1
            args.append(self.expression())
        self.take(")")
        if len(args) < 2 or (function.text == "cdiv" and len(args) != 2):
            count = "two" if function.text == "cdiv" else "at least two"
            message = f"`{function.text}` takes {count} arguments, got {len(args)}"
            raise ExpressionError(message, function.col)
        result = args[0]
        for arg in args[1:]:
            result = self.built(Binary(function.text, result, arg, function.col))
        return result

    def extent(self, owner: _Token) -> Expression:
        self.take(".")
        kind = self.token
        if kind.text not in ("shape", "strides"):
            raise ExpressionError(f"expected `shape` or `strides`, got {kind}", kind.col)
        self.index += 1
        self.take("[")
        dim = self.token
        if dim.kind != "int" or dim.text not in tuple("01234"):
            message = f"expected a dimension from 0 to {MAX_TENSOR_RANK - 1}, got {dim}"
            raise ExpressionError(message, dim.col)
        self.index += 1
        self.take("]")
        field_name: Literal["shape", "strides"] = "shape" if kind.text == "shape" else "strides"
        return self.built(Extent(owner.text, field_name, int(dim.text), owner.col))


def parse(text: str) -> Expression:
    """Parse one expression.

    Raises: `ExpressionError` with the column of the first unexpected token.
    """
    if len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise ExpressionError(f"expected an expression of at most {MAX_TEXT_BYTES} bytes")
    parser = _Parser(text)
    root = parser.expression()
    if parser.token.kind != "end":
        hint = _MEANT.get(parser.token.text)
        message = f"expected an operator or the end, got {parser.token}"
        raise ExpressionError(message + (f": {hint}" if hint else ""), parser.token.col)
    return root


# ------------------------------------------------------------------------------------ printing


def _precedence(node: Expression) -> int:
    if isinstance(node, Binary):
        return _BINARY[node.op].precedence
    return _UNARY[node.op].precedence if isinstance(node, Unary) else _ATOM


def _operand_text(node: Expression, least: int) -> str:
    text = to_text(node)
    return text if _precedence(node) >= least else f"({text})"


def to_text(node: Expression) -> str:
    """Print the expression with as few parentheses as `parse` needs to read it back."""
    match node:
        case Integer(value):
            return str(value)
        case Name(name):
            return name
        case Extent(name, kind, dim):
            return f"{name}.{kind}[{dim}]"
        case Unary("not", operand):
            return f"not {_operand_text(operand, _NOT)}"
        case Unary(_, Integer(value)) if value >= 0:
            return f"-({value})"  # `-5` reads back as the literal
        case Unary(_, operand):
            return f"-{_operand_text(operand, _SIGN)}"
        case Binary(op, lhs, rhs) if op in _FUNCTIONS:
            return f"{op}({to_text(lhs)}, {to_text(rhs)})"
        case Binary(op, lhs, rhs):
            precedence = _BINARY[op].precedence
            # Comparisons do not chain, so neither of their sides may be one.
            left = _operand_text(lhs, precedence + (precedence == _COMPARE))
            return f"{left} {op} {_operand_text(rhs, precedence + 1)}"


# ---------------------------------------------------------------------------------- evaluation


def compute(node: Unary | Binary, lhs: int, rhs: int) -> int:
    """Apply a node's operator to constant operands; `lhs` of a unary one is 0.

    Raises: `ExpressionError` for an overflow or a division by zero.
    """
    row = _BINARY[node.op] if isinstance(node, Binary) else _UNARY[node.op]
    try:
        value = int(row.compute(lhs, rhs))
    except ZeroDivisionError:
        raise ExpressionError(f"division by zero in `{to_text(node)}`", node.col) from None
    if not INT64_MIN <= value <= INT64_MAX:
        raise ExpressionError(f"`{to_text(node)}` does not fit 64 bits", node.col)
    return value


def fold(root: Expression, constants: Mapping[str, int]) -> Expression:
    """Replace names by their values and fold constants.

    Raises: `ExpressionError` for an overflow or a division by zero among constants: such an
    expression would fail at every launch.
    """
    return _fold(root, [fold(child, constants) for child in _children(root)], constants)


def _fold(
    root: Expression, operands: Sequence[Expression], constants: Mapping[str, int]
) -> Expression:
    """Fold a node with folded operands."""
    match root, operands:
        case Name(name, col), _ if name in constants:
            value = int(constants[name])
            if not INT64_MIN <= value <= INT64_MAX:
                raise ExpressionError(f"the value of `{name}` does not fit 64 bits", col)
            return Integer(value, col)
        case Unary(op, _, col), [operand]:
            folded = Unary(op, operand, col)
            if isinstance(operand, Integer):
                return Integer(compute(folded, 0, operand.value), col)
            return folded
        case Binary(op, _, _, col), [lhs, rhs]:
            pair = Binary(op, lhs, rhs, col)
            if isinstance(lhs, Integer) and isinstance(rhs, Integer):
                return Integer(compute(pair, lhs.value, rhs.value), col)
            return pair
        case _:
            return root


class Folder:
    """Fold one expression for many assignments of its names.

    The folded form of a subexpression is cached by the values it depends on. So a condition on few
    names is computed once and not for every config of a grid.
    """

    def __init__(self, root: Expression) -> None:
        self._root = root
        self._names = tuple(free_names(root))
        self._operands = tuple(Folder(child) for child in _children(root))
        self._known: dict[tuple[int | None, ...], Expression] = {}

    def __call__(self, constants: Mapping[str, int]) -> Expression:
        """Return `fold(root, constants)`. Raises: as `fold` does."""
        key = tuple([constants.get(name) for name in self._names])
        folded = self._known.get(key)
        if folded is None:
            folded = self._known[key] = _fold(
                self._root, [f(constants) for f in self._operands], constants
            )
        return folded


def settle(root: Expression) -> Expression:
    """Return a folded condition without irrelevant operands of `and` and `or`.

    It is true for the same values as `root`. An operand settled by another one is not read again,
    not even to fail.
    """
    if not isinstance(root, Binary) or root.op not in ("and", "or"):
        return root
    lhs, rhs = settle(root.lhs), settle(root.rhs)
    for constant, other in ((lhs, rhs), (rhs, lhs)):
        if isinstance(constant, Integer):
            settles = bool(constant.value) == (root.op == "or")
            return Integer(int(settles and root.op == "or"), constant.col) if settles else other
    return Binary(root.op, lhs, rhs, root.col)


def evaluate(root: Expression, values: Mapping[str, int]) -> int:
    """Compute the expression; an extent is looked up by its text, as in `values["x.shape[0]"]`.

    Raises: `ExpressionError` for a name without a value, an overflow, a division by zero.
    """
    match root:
        case Integer(value):
            return value
        case Name() | Extent():
            text = to_text(root)
            if text not in values:
                raise ExpressionError(f"`{text}` has no value", root.col)
            value = int(values[text])
            if not INT64_MIN <= value <= INT64_MAX:
                raise ExpressionError(f"the value of `{text}` does not fit 64 bits", root.col)
            return value
        case Unary(_, operand):
            return compute(root, 0, evaluate(operand, values))
        case Binary(_, lhs, rhs):
            return compute(root, evaluate(lhs, values), evaluate(rhs, values))
