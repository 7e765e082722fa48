"""The one printer and the one parser of IR.

Both are generic: they know fields, not ops, so a new op prints and parses from the day it is
declared. Layouts are long and repeat, so each distinct one is named once at the top.

    #0 = ...                                    a layout, in the order of first use
    kernel @add(%x: *fp32 {divisibility = 16}, %n: i32) {num_warps = 4} {
      %0 = tile.program_id {axis = 0} : i32
      %1 = tile.load(%p, %mask, _) : tile<128xfp32, #0>          `_` is an absent operand
      %2 = scf.for(%lo, %hi, %st, %1) (%i: i32, %acc: tile<128xfp32, #0>) {
        scf.yield(%acc)
      } : tile<128xfp32, #0>
      scf.return
    }

Attributes with their default are left out, and so may be absent operands at the end. Printed types
of results are checked when read.

Invariant: `print_kernel(parse_kernel(text)) == text` for every output of `print_kernel`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any, NamedTuple, cast

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import UNKNOWN_LOC, IRError, Loc
from aotc.ir.dialects import (
    arith,
    assembly,
    cache,
    cluster,
    descriptor,
    gpu,
    grid,
    indexing,
    map_store,
    mapped,
    mbarrier,
    opaque,
    roles,
    scf,
    thread_copy,
    tile,
    tma,
    wgmma,
)
from aotc.ir.layout import LinearLayout
from aotc.ir.params import ParamInfo, TensorSource
from aotc.ir.types import (
    VALUE_SCALARS,
    DescriptorType,
    PointerType,
    ScalarType,
    SharedType,
    TensorMapType,
    TileType,
    Type,
)

# Importing a dialect declares its opcodes: text can be read once all of them are.
DIALECTS = (
    *(arith, assembly, cache, cluster, descriptor, gpu, grid, indexing, map_store, mapped),
    *(mbarrier, opaque, roles, scf, thread_copy, tile, tma, wgmma),
)

# ---- printer ----------------------------------------------------------------------------------


class _Printer:
    def __init__(self, *, locs: bool) -> None:
        self.locs = locs
        self.layouts: dict[LinearLayout, str] = {}
        self.names: dict[Value, str] = {}
        self.taken: dict[str, int] = {}  # name -> how often it was asked for
        self.counter = 0

    def name(self, value: Value) -> str:
        name = self.names.get(value)
        return self.new_name(value, value.hint) if name is None else name

    def new_name(self, value: Value, hint: str) -> str:
        """Name `value` by its hint, made unique by a number; without a usable one by a number."""
        if _HINT.fullmatch(hint):
            name = hint
            while name in self.taken:
                self.taken[hint] += 1
                name = f"{hint}_{self.taken[hint]}"
            self.taken[name] = 0
        else:
            name = str(self.counter)
            self.counter += 1
        self.names[value] = f"%{name}"
        return self.names[value]

    def layout(self, layout: LinearLayout) -> str:
        return self.layouts.setdefault(layout, f"#{len(self.layouts)}")

    def type(self, type_: Type) -> str:
        if not isinstance(type_, TileType | SharedType):
            return str(type_)
        keyword = "tile" if isinstance(type_, TileType) else "shared"
        body = "x".join([*map(str, type_.shape), str(type_.element)])
        suffix = "" if type_.layout is None else f", {self.layout(type_.layout)}"
        suffix += type_.stages_text if isinstance(type_, SharedType) else ""
        return f"{keyword}<{body}{suffix}>"

    def literal(self, value: object) -> str:
        if value is None or isinstance(value, bool):
            return {None: "none", True: "true", False: "false"}[value]
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f"{value}f"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            return "[" + ", ".join(self.literal(item) for item in items) + "]"
        if isinstance(value, LinearLayout):
            return self.layout(value)
        if isinstance(value, _TYPES):
            return self.type(value)
        raise IRError(f"attribute value {value!r} cannot be printed")

    def attributes(self, op: Op) -> str:
        shown = [
            f"{spec.name} = {self.literal(getattr(op, spec.name))}"
            for spec in op.attribute_fields
            if not _is_default(getattr(op, spec.name), spec.default)
        ]
        return " {" + ", ".join(shown) + "}" if shown else ""

    def args(self, args: Sequence[Value]) -> str:
        return "(" + ", ".join(f"{self.name(arg)}: {self.type(arg.type)}" for arg in args) + ")"

    def op(self, op: Op, indent: str, lines: list[str]) -> None:
        slots = ", ".join("_" if value is None else self.name(value) for value in op.slots)
        text = f"{op.opcode}({slots})" if has_operands(type(op)) else op.opcode
        text += self.attributes(op)
        start = len(lines)
        lines.append("")
        for nested in op.blocks:
            lines[-1] += f"{text} {self.args(nested.args)} {{"
            for inner in nested:
                self.op(inner, indent + "  ", lines)
            lines.append(indent)
            text = "}"
        if op.results:
            text += " : " + ", ".join(self.type(value.type) for value in op.results)
        lines[-1] += text + (self.loc(op.loc) if self.locs else "")
        prefix = indent
        if op.results:
            prefix += ", ".join(self.name(value) for value in op.results) + " = "
        lines[start] = prefix + lines[start]

    def loc(self, loc: Loc) -> str:
        if loc == UNKNOWN_LOC:
            return ""
        sites = [
            f"{json.dumps(site.file)} {site.line} {site.col} {site.end_col}" for site in loc.chain()
        ]
        return " loc(" + ", ".join(sites) + ")"

    def kernel(self, kernel: Kernel) -> str:
        params: list[str] = []
        for info, arg in zip(kernel.params, kernel.body.args, strict=True):
            shown = [f"divisibility = {info.divisibility}"] if info.divisibility != 1 else []
            shown += [f"source = {self.literal(info.source)}"] if info.source else []
            shown += ["noalias = true"] if info.noalias else []
            shown += [f"bounds = {self.literal(info.bounds)}"] if info.bounds else []
            if info.tensor is not None:
                shown.append(f"tensor = {self.literal(astuple(info.tensor))}")
            facts = f" {{{', '.join(shown)}}}" if shown else ""
            params.append(f"{self.new_name(arg, info.name)}: {self.type(arg.type)}{facts}")
        loc = self.loc(kernel.loc) if self.locs else ""
        attributes = ", ".join(
            f"{name} = {self.literal(getattr(kernel, name))}"
            for name, default in _KERNEL_ATTRIBUTES.items()
            if name == "num_warps" or getattr(kernel, name) != default
        )
        lines = [f"kernel @{kernel.name}({', '.join(params)}) {{{attributes}}}{loc} {{"]
        for op in kernel.body:
            self.op(op, "  ", lines)
        lines.append("}")
        aliases = [f"{name} = {layout.to_text()}" for layout, name in self.layouts.items()]
        return "\n".join([*aliases, *lines, ""])


_KERNEL_ATTRIBUTES: dict[str, Any] = {
    "num_warps": 4,
    "num_ctas": 1,
    "maxnreg": 0,
    "min_ctas_per_sm": 0,
    "shared_bytes": 0,
    "producer_warps": 0,
    "num_consumer_groups": 1,
    "guards": (),
    "is_persistent": False,
    "runs_by_cta": False,
    "scratch_bytes": 0,
}
_TYPES = ScalarType | PointerType | TileType | SharedType | DescriptorType | TensorMapType
_HINT = re.compile(r"[^\W\d][\w.$-]*")


def _is_default(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


def print_kernel(kernel: Kernel, *, locs: bool = False) -> str:
    """Return `kernel` as text; with `locs`, each op ends in its source location."""
    return _Printer(locs=locs).kernel(kernel)


# ---- parser -----------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<value>%[\w.$-]+)
    | (?P<layout>\#\d+)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>-?(?:inf|nan)f|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.])
    | (?P<shape>\d+x)
    | (?P<word>@?[^\W\d][\w.]*)
    | (?P<punct>[()\[\]{}<>,:=*])
    )""",
    re.VERBOSE,
)
_ALIAS = re.compile(r"^(#\d+) = (.*)$")
_WORDS = {"true": True, "false": False, "none": None}


class _Token(NamedTuple):
    kind: str
    text: str
    line: int
    col: int


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.layouts: dict[str, LinearLayout] = {}
        self.values: dict[str, Value] = {}
        self.tokens: list[_Token] = []
        number = 0
        for number, line in enumerate(text.rstrip().split("\n"), 1):
            alias = _ALIAS.match(line)
            if alias:
                self.layouts[alias[1]] = self.parse_layout(alias[2], number)
            else:
                self.tokenize(line.rstrip(), number)
        self.tokens.append(_Token("end", "the end", number, 0))
        self.position = 0
        self.token = self.tokens[0]

    def parse_layout(self, text: str, line: int) -> LinearLayout:
        try:
            return LinearLayout.from_text(text)
        except ValueError as error:
            raise IRError(str(error), Loc(self.file, line)) from error

    def tokenize(self, line: str, number: int) -> None:
        position, end = 0, len(line)
        match_token, append = _TOKEN.match, self.tokens.append
        while position < end:
            match = match_token(line, position)
            kind = None if match is None else match.lastgroup
            if match is None or kind is None:
                rest = line[position:].lstrip()
                raise IRError(f"cannot read {rest!r}", Loc(self.file, number, end - len(rest)))
            append(_Token(kind, match[kind], number, match.start(kind)))
            position = match.end()

    # -- tokens ----------------------------------------------------------------

    def loc_of(self, token: _Token) -> Loc:
        return Loc(self.file, token.line, token.col, token.col + len(token.text))

    def fail(self, expected: str, token: _Token | None = None) -> IRError:
        token = token or self.token
        return IRError(f"expected {expected}, got {token.text!r}", self.loc_of(token))

    def advance(self) -> _Token:
        token = self.token
        self.position += 1
        self.token = self.tokens[self.position]
        return token

    def accept(self, text: str) -> bool:
        matches = self.token.text == text and self.token.kind != "end"
        if matches:
            self.advance()
        return matches

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(repr(text))

    def take(self, kind: str, expected: str) -> _Token:
        if self.token.kind != kind:
            raise self.fail(expected)
        return self.advance()

    def sequence(self, item: Callable[[], Any], close: str) -> list[Any]:
        items: list[Any] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
        return items

    # -- types and literals ----------------------------------------------------

    def type(self) -> Type:
        if self.accept("*"):
            return PointerType(self.scalar())
        if self.token.text in ("desc", "map"):
            return self.tensor_type()
        if self.token.text not in ("tile", "shared"):
            return self.scalar()
        keyword = self.advance()
        self.expect("<")
        shape: list[int] = []
        while self.token.kind == "shape":
            shape.append(int(self.advance().text[:-1]))
        element = PointerType(self.scalar()) if self.accept("*") else self.scalar()
        layout = self.layout() if self.accept(",") else None
        is_shared = keyword.text == "shared"
        num_stages = self.integer() if is_shared and self.accept(",") else 1
        padding_bytes = self.integer() if is_shared and self.accept(",") else 0
        unused_bytes = self.integer() if is_shared and self.accept(",") else 0
        self.expect(">")
        if keyword.text == "tile":
            return TileType(element, tuple(shape), layout)
        if layout is None or isinstance(element, PointerType):
            raise self.fail("a shared buffer of scalars with a layout", keyword)
        return SharedType(element, tuple(shape), layout, num_stages, padding_bytes, unused_bytes)

    def tensor_type(self) -> Type:
        keyword = self.advance()
        self.expect("<")
        shape: list[int] = []
        while self.token.kind == "shape":
            shape.append(int(self.advance().text[:-1]))
        element, swizzle_bytes = self.scalar(), 0
        if keyword.text == "map":
            self.expect(",")
            swizzle_bytes = self.integer()
        fill_nan, num_parts = False, 1
        while self.accept(","):
            if self.token.kind == "number":
                num_parts = self.integer()
            else:
                self.expect("nan")
                fill_nan = True
        self.expect(">")
        if keyword.text == "map":
            return TensorMapType(element, tuple(shape), swizzle_bytes, fill_nan)
        return DescriptorType(element, tuple(shape), fill_nan, num_parts)

    def scalar(self) -> ScalarType:
        scalar = VALUE_SCALARS.get(self.token.text)
        if scalar is None:
            raise self.fail("a type")
        self.advance()
        return scalar

    def layout(self) -> LinearLayout:
        token = self.take("layout", "a layout")
        if token.text not in self.layouts:
            raise self.fail("a layout defined at the top", token)
        return self.layouts[token.text]

    def literal(self) -> Any:
        kind, text = self.token.kind, self.token.text
        if kind == "number":
            self.advance()
            return int(text) if text.lstrip("-").isdigit() else float(text.removesuffix("f"))
        if kind == "string":
            try:
                return json.loads(self.advance().text)
            except ValueError as error:
                raise self.fail("a string", self.tokens[self.position - 1]) from error
        if text in _WORDS:
            self.advance()
            return _WORDS[text]
        if self.accept("["):
            return tuple(self.sequence(self.literal, "]"))
        return self.layout() if kind == "layout" else self.type()

    def integer(self) -> int:
        token = self.take("number", "a number")
        if not token.text.isdigit():
            raise self.fail("a number", token)
        return int(token.text)

    def attribute(self) -> tuple[str, Any]:
        name = self.take("word", "an attribute")
        self.expect("=")
        return name.text, self.literal()

    def attributes(self) -> dict[str, Any]:
        return dict(self.sequence(self.attribute, "}")) if self.accept("{") else {}

    def loc(self) -> Loc:
        if not self.accept("loc"):
            return UNKNOWN_LOC
        self.expect("(")
        sites: list[Loc] = self.sequence(self.site, ")")
        loc = UNKNOWN_LOC
        for site in reversed(sites):
            loc = site if loc is UNKNOWN_LOC else replace(site, call_site=loc)
        return loc

    def site(self) -> Loc:
        file = json.loads(self.take("string", "a file").text)
        return Loc(file, self.integer(), self.integer(), self.integer())

    # -- values, blocks and ops ------------------------------------------------

    def value(self) -> Value | None:
        if self.accept("_"):
            return None
        token = self.take("value", "a value")
        if token.text not in self.values:
            raise self.fail("a value defined before", token)
        return self.values[token.text]

    def define(self, token: _Token, value: Value) -> None:
        name = token.text[1:]
        if token.text in self.values:
            raise self.fail("a name that is not taken", token)
        self.values[token.text] = value
        if not name.isdigit():
            value.hint = name

    def arg(self) -> tuple[_Token, Type]:
        name = self.take("value", "an argument")
        self.expect(":")
        return name, self.type()

    def block(self) -> Block:
        args: list[tuple[_Token, Type]] = self.sequence(self.arg, ")")
        self.expect("{")
        return self.block_body(args)

    def block_body(self, args: Sequence[tuple[_Token, Type]]) -> Block:
        block = Block([type_ for _, type_ in args])
        for (name, _), value in zip(args, block.args, strict=True):
            self.define(name, value)
        while not self.accept("}"):
            block.insert(self.op())
        return block

    def op(self) -> Op:
        names: list[_Token] = []
        if self.token.kind == "value":
            names.append(self.advance())
            while self.accept(","):
                names.append(self.take("value", "a result"))
            self.expect("=")
        opcode = self.take("word", "an op")
        cls = Op.registry.get(opcode.text)
        if cls is None:
            raise self.fail("a known opcode", opcode)
        slots = self.sequence(self.value, ")") if has_operands(cls) and self.accept("(") else []
        slots += [None] * (cls.arity.num_operands - len(slots))  # absent ones at the end may lack
        attributes = self.attributes()
        blocks: list[Block] = []
        while self.accept("("):
            blocks.append(self.block())
        types: list[Type] = []
        if self.accept(":"):
            types.append(self.type())
            while self.accept(","):
                types.append(self.type())
        loc = self.loc()
        try:
            op = build(cls, slots, attributes, blocks, loc)
        except (IRError, TypeError, AttributeError) as error:
            # The latter two come of an attribute of the wrong kind, possible in text alone.
            raise IRError(str(error), self.loc_of(opcode)) from error
        actual = [value.type for value in op.results]
        if actual != types or len(names) != len(actual):
            shown = ", ".join(map(str, actual))
            raise IRError(f"{opcode.text} has results ({shown})", self.loc_of(opcode))
        for name, value in zip(names, op.results, strict=True):
            self.define(name, value)
        return op

    def param(self) -> tuple[_Token, Type, ParamInfo]:
        name, type_ = self.arg()
        start, facts = self.token, self.attributes()
        try:
            if "tensor" in facts:
                facts["tensor"] = TensorSource(*facts["tensor"])
            if "bounds" in facts:
                facts["bounds"] = tuple(facts["bounds"])
            return name, type_, ParamInfo(name.text[1:], **facts)
        except TypeError:
            raise self.fail("divisibility, source, tensor, noalias or bounds", start) from None

    def kernel(self) -> Kernel:
        self.expect("kernel")
        name = self.take("word", "a kernel name")
        self.expect("(")
        params: list[tuple[_Token, Type, ParamInfo]] = self.sequence(self.param, ")")
        start = self.token
        attributes = self.attributes()
        for key in attributes:
            if key not in _KERNEL_ATTRIBUTES:
                raise self.fail(f"attributes among {', '.join(_KERNEL_ATTRIBUTES)}", start)
        loc = self.loc()
        self.expect("{")
        body = self.block_body([(param, type_) for param, type_, _ in params])
        infos = tuple(info for _, _, info in params)
        settings = {**_KERNEL_ATTRIBUTES, **attributes}
        return Kernel(name.text.removeprefix("@"), infos, body, loc=loc, **settings)


def has_operands(cls: type[Op]) -> bool:
    """Return whether ops of `cls` can have operands, so `(` opens these and not a block."""
    return cls.arity.num_operands > 0 or cls.arity.variadic


def parse_kernel(text: str, file: str = "<ir>") -> Kernel:
    """Parse a kernel from text. Raises: IRError at the first syntax error."""
    parser = _Parser(text, file)
    kernel = parser.kernel()
    if parser.token.kind != "end":
        raise parser.fail("the end")
    return kernel
