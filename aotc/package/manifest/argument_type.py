"""Parse the types of a kernel's arguments in a manifest: `*T:16`, `i32:16?`, `i32 in 1..4096`, `fp32`.

A type is written once and built for several variants: the element may be a type variable, `?` asks
for a variant with the promise and one without, and constants may name the extents of a descriptor's
block shape. `concrete` returns the type string of one variant, the compiler's only form.

    pointer     "*" element [promise] [" noalias"]
                                                 no other argument points at the memory
    scalar      element [promise] [" in " number ".." number]
                                                 the value is in the range, ends included
    promise     ":" power of two ["?"]           the value, or the address in bytes, is a multiple
    fixed       element "=" number               compiled in; a launch does not pass it
    descriptor  "tensordesc<" element "[" extent {"," extent} "]" [",nan"] [",l2=" bytes] ">"
    extent      an expression over constants, such as BLOCK_N or BLOCK_N // 2
    none        "none"                           compiled in; a launch does not pass it

Spaces around ":" and "=" are allowed. A list of a pointer and "none" is an optional pointer: there
are variants with and without it, picked by the launch's argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from aotc.ir import expression
from aotc.ir.diagnostics import Loc, ManifestError, did_you_mean
from aotc.ir.expression import ExpressionError
from aotc.ir.params import BOUNDS, NOALIAS
from aotc.ir.types import SCALARS, ScalarType

Kind: TypeAlias = Literal["scalar", "pointer", "tensordesc", "none"]

PROMISED_DIVISOR = 16  # of a promise that no manifest asked for
MAX_DIVISOR = 4096
L2_BYTES = (0, 64, 128, 256)
"""Bytes that a miss of a tensor map's loads fetches into the L2 cache; 0 for no more than it reads."""
MAX_DESCRIPTOR_RANK = 5

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PLAIN = re.compile(
    rf"(?P<star>\*?)(?P<element>{_NAME})(?:\s*:\s*(?P<divisor>\d+)(?P<optional>\??))?"
    r"(?:\s*=(?P<value>[^=:?]+))?"
)
_DESCRIPTOR = re.compile(
    rf"tensordesc<\s*(?P<element>{_NAME})\s*\[(?P<block>[^\]]*)\]\s*(?P<fill>,\s*nan\s*)?"
    r"(?:,\s*l2\s*=\s*(?P<l2>\d+)\s*)?>"
)
_NONE = "none"
_COMMA = re.compile(r",(?![^(]*\))")  # outside of parentheses
_GRAMMAR = (
    'such as "*fp16:16", "i32", "i32:16?", "i32 in 1..4096", "fp32", "i32=1", "none", '
    '"tensordesc<bf16[BM,BK]>"'
)


ALL_DTYPES = "dtypes are " + " ".join(SCALARS)

# Names of the dtypes in other languages and libraries.
_SPELLINGS = {
    "bool": "i1",
    "int": "i32",
    "half": "fp16",
    "bfloat16": "bf16",
    "float": "fp32",
    "double": "fp64",
    "float8e4nv": "fp8e4nv",
    "float8e5": "fp8e5",
} | {
    f"{word}{bits}": f"{short}{bits}"
    for word, short in (("float", "fp"), ("f", "fp"), ("int", "i"), ("uint", "u"))
    for bits in (1, 8, 16, 32, 64)
    if f"{short}{bits}" in SCALARS
}


DTYPE_WORDS = frozenset((*SCALARS, *_SPELLINGS))
"""Words taken as dtypes, valid or not."""


def dtype_remedy(name: str, variables: tuple[str, ...] = ()) -> str:
    """Return a remedy for an unknown dtype; empty if no dtype resembles it."""
    if name in ("fp8e4b15", "float8e4b15"):
        return "no tensor has it: say *u8, and read it with .to(tl.float8e4b15, bitcast=True)"
    if name in _SPELLINGS:
        return f"did you mean {_SPELLINGS[name]!r}?"
    return did_you_mean(name, [*SCALARS, *variables])


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """Describe the type of one argument before type variables are substituted.

    `divisor` is a power of two where divisibility is promised, else 1; `is_optional` asks for
    variants with and without the promise. A scalar is within its `bounds`. `value` is the fixed value of a scalar. `block` is a descriptor's
    block shape, each extent a number or the text of an expression over constants. With `fill_nan`,
    elements out of bounds are read as NaN, not zero. A miss of its loads fetches `l2_bytes` into the
    L2 cache; None leaves the choice to the compiler. A pointer with `may_be_none` has variants
    where it is None. With `noalias`, memory accessed through it is not accessed through another
    argument.
    """

    kind: Kind
    element: str
    divisor: int = 1
    is_optional: bool = False
    value: int | float | None = None
    block: tuple[int | str, ...] = ()
    fill_nan: bool = False
    may_be_none: bool = False
    noalias: bool = False
    bounds: tuple[int, int] | None = None
    l2_bytes: int | None = None

    @property
    def is_passed(self) -> bool:
        """Return whether a launch passes the argument; fixed values are compiled in."""
        return self.kind != "none" and self.value is None

    @property
    def block_names(self) -> tuple[str, ...]:
        """Constants used in a descriptor's block shape."""
        texts = [extent for extent in self.block if isinstance(extent, str)]
        names = (expression.free_names(expression.parse(text)) for text in texts)
        return tuple(dict.fromkeys(name for extent_names in names for name in extent_names))

    def without_promise(self) -> ArgumentType:
        """Return the type without its divisibility promise."""
        return replace(self, divisor=1, is_optional=False)

    def concrete(self, types: Mapping[str, str], constants: Mapping[str, object]) -> str:
        """Substitute type variables and block extents.

        >>> parse("*T:16").concrete({"T": "bf16"}, {})
        '*bf16:16'
        """
        if self.kind == "none":
            return _NONE
        element = types.get(self.element, self.element)
        if self.kind == "tensordesc":
            extents = ",".join(_extent_text(extent, constants) for extent in self.block)
            return f"tensordesc<{element}[{extents}]{',nan' if self.fill_nan else ''}>"
        star = "*" if self.kind == "pointer" else ""
        promise = f":{self.divisor}" if self.divisor > 1 else ""
        fixed = "" if self.value is None else f"={self.value + 0!r}"  # of a bool, 0 or 1
        alone = f" {NOALIAS}" if self.noalias else ""
        bounds = "" if self.bounds is None else f" in {self.bounds[0]}..{self.bounds[1]}"
        return f"{star}{element}{promise}{fixed}{alone}{bounds}"


def _extent_text(extent: int | str, constants: Mapping[str, object]) -> str:
    """Return an extent of a block. Raises: ManifestError if it is no positive number."""
    if isinstance(extent, int):
        return str(extent)
    if extent in constants:
        return str(constants[extent])
    numbers = {name: int(value) for name, value in constants.items() if isinstance(value, int)}
    try:
        value = expression.evaluate(expression.parse(extent), numbers)
    except ExpressionError as error:
        raise ManifestError(f"expected an integer for the block extent {extent}: {error}") from None
    if value < 1:
        constants_text = ", ".join(
            f"{name} = {constants[name]}"
            for name in expression.free_names(expression.parse(extent))
        )
        raise ManifestError(
            f"expected a positive block extent, {extent} is {value} for {constants_text}"
        )
    return str(value)


NONE = ArgumentType("none", "")
"""The type of an argument fixed to None."""


def parse_alternatives(
    texts: Sequence[str], variables: tuple[str, ...] = (), loc: Loc | None = None
) -> ArgumentType:
    """Parse a list of types: a pointer's and "none".

    Raises:
        ManifestError: one is no type, or they are not a pointer and "none".
    """
    alternatives = [parse(text, variables, loc) for text in texts]
    pointers = [alternative for alternative in alternatives if alternative.kind != "none"]
    if len(alternatives) != 2 or len(pointers) != 1 or pointers[0].kind != "pointer":
        message = f'expected a pointer and "none" as alternatives, got {list(texts)}'
        remedy = 'let other arguments be None in a kernel of their own, with the type "none"'
        raise ManifestError(message, loc, remedy=remedy)
    return replace(pointers[0], may_be_none=True)


def parse(text: str, variables: tuple[str, ...] = (), loc: Loc | None = None) -> ArgumentType:
    """Parse a type; `variables` are the type variables it may name.

    Raises:
        ManifestError: the text is no type, or its element is neither a dtype nor a variable.
    """
    text = text.strip()
    if text == _NONE:
        return NONE
    descriptor = _DESCRIPTOR.fullmatch(text)
    if descriptor is not None:
        element = _element(descriptor["element"], variables, loc)
        block, fill_nan = _block(descriptor["block"], loc), descriptor["fill"] is not None
        l2_bytes = None if descriptor["l2"] is None else int(descriptor["l2"])
        if l2_bytes is not None and l2_bytes not in L2_BYTES:
            listed = ", ".join(map(str, L2_BYTES))
            raise ManifestError(f"expected l2 = {listed}, got {text!r}", loc)
        return ArgumentType(
            "tensordesc", element, block=block, fill_nan=fill_nan, l2_bytes=l2_bytes
        )
    if text.endswith(f" {NOALIAS}"):
        argument = parse(text.removesuffix(NOALIAS), variables, loc)
        if argument.kind != "pointer":
            raise ManifestError(f"expected a pointer before {NOALIAS!r}, got {text!r}", loc)
        return replace(argument, noalias=True)
    ranged = BOUNDS.match(text)
    if ranged is not None:
        argument = parse(ranged["type"], variables, loc)
        return replace(argument, bounds=_bounds(ranged, argument, loc))
    plain = _PLAIN.fullmatch(text)
    if plain is None:
        raise ManifestError(f"expected an argument type, got {text!r}", loc, remedy=_GRAMMAR)
    element = _element(plain["element"], variables, loc)
    kind: Kind = "pointer" if plain["star"] else "scalar"
    is_variable = element in variables
    is_integer = not is_variable and SCALARS[element].is_int
    if plain["divisor"] is not None:
        divisor = int(plain["divisor"])
        if not 2 <= divisor <= MAX_DIVISOR or divisor & (divisor - 1):
            message = f"expected a power of two from 2 to {MAX_DIVISOR} after ':', got {text!r}"
            raise ManifestError(message, loc)
        if kind == "scalar" and not is_integer:
            message = f"expected an integer or a pointer before ':{divisor}', got {text!r}"
            raise ManifestError(message, loc)
        if plain["value"] is not None:
            message = f"expected a promise or a fixed value, got both in {text!r}"
            raise ManifestError(message, loc, remedy=f"leave out ':{divisor}': the value is known")
        return ArgumentType(kind, element, divisor, is_optional=bool(plain["optional"]))
    if plain["value"] is None:
        return ArgumentType(kind, element)
    if kind == "pointer" or is_variable:
        message = f"expected a scalar dtype before '=', got {text!r}"
        raise ManifestError(message, loc, remedy="only a scalar of known dtype has a fixed value")
    return ArgumentType(kind, element, value=_value(plain["value"].strip(), element, loc))


def _bounds(ranged: re.Match[str], argument: ArgumentType, loc: Loc | None) -> tuple[int, int]:
    """Return the range of a scalar. Raises: ManifestError if it has no value, or some of no type."""
    low, high = int(ranged["low"]), int(ranged["high"])
    scalar = SCALARS.get(argument.element)
    if argument.kind != "scalar" or scalar is None or not scalar.is_int or scalar.is_bool:
        message = f"expected an integer dtype before a range, got {ranged[0]!r}"
        raise ManifestError(message, loc)
    if argument.value is not None:
        message = f"expected a range or a fixed value, got both in {ranged[0]!r}"
        raise ManifestError(message, loc)
    least, greatest = _limits(scalar)
    if not least <= low <= high <= greatest:
        message = f"expected a range LOW..HIGH within {least}..{greatest}, got {low}..{high}"
        raise ManifestError(message, loc)
    divisor = 1 if argument.is_optional else argument.divisor
    if high // divisor * divisor < low:
        message = f"expected a range with a multiple of {divisor}, got {low}..{high}"
        raise ManifestError(message, loc)
    return low, high


def _limits(scalar: ScalarType) -> tuple[int, int]:
    low = -(1 << scalar.bits - 1) if scalar.is_signed else 0
    return low, (1 << scalar.bits - int(scalar.is_signed)) - 1


def _element(name: str, variables: tuple[str, ...], loc: Loc | None) -> str:
    if name in SCALARS or name in variables:
        return name
    expected = "a dtype or a type variable" if variables else "a dtype"
    raise ManifestError(
        f"expected {expected}, got {name!r}",
        loc,
        remedy=dtype_remedy(name, variables) or f"{ALL_DTYPES}; variables go in [kernel.types]",
    )


def _block(text: str, loc: Loc | None) -> tuple[int | str, ...]:
    extents = [extent.strip() for extent in _COMMA.split(text)]
    if len(extents) > MAX_DESCRIPTOR_RANK:
        message = f"expected 1 to {MAX_DESCRIPTOR_RANK} block extents, got {len(extents)}"
        raise ManifestError(message, loc)
    return tuple(_extent(extent, text, loc) for extent in extents)


def _extent(text: str, block: str, loc: Loc | None) -> int | str:
    message = f"expected block extents such as [BLOCK_M,64], got [{block}]"
    try:
        root = expression.fold(expression.parse(text), {})
    except ExpressionError as error:
        raise ManifestError(message, loc, remedy=f"{text!r}: {error}") from None
    if isinstance(root, expression.Integer):
        if root.value < 1:
            raise ManifestError(message, loc, remedy="extents are positive")
        return root.value
    if any(isinstance(node, expression.Extent) for node in expression.walk(root)):
        remedy = "extents are made of tl.constexpr parameters: a block is known when it is built"
        raise ManifestError(message, loc, remedy=remedy)
    return expression.to_text(root)


def _value(text: str, element: str, loc: Loc | None) -> int | float:
    scalar = SCALARS[element]
    if scalar.is_float:
        try:
            return float(text)
        except ValueError:
            raise ManifestError(f"expected a number for {element}, got {text!r}", loc) from None
    words = {"true": 1, "false": 0} if scalar.is_bool else {}
    try:
        value = words.get(text.lower())
        value = int(text, 0) if value is None else value
    except ValueError:
        raise ManifestError(f"expected an integer for {element}, got {text!r}", loc) from None
    low, high = _limits(scalar)
    if not low <= value <= high:
        raise ManifestError(f"expected {low} to {high} for {element}, got {value}", loc)
    return bool(value) if scalar.is_bool else value
