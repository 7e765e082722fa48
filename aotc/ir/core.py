"""Values, ops, blocks and kernels: the data structure of every stage.

An op is declared like a dataclass. Its fields are operands, attributes, results and nested blocks;
its opcode, effects and traits (`ir.effects`) are class keywords:

    class Add(Binary, opcode="arith.add", pure=True):
        lhs: Value = operand()
        rhs: Value = operand()
        out: Value = result()

Result types are inferred from operands, attributes and blocks, never passed, so a value has exactly
the type its op produces. Control flow is nested blocks that end in a terminator, never a graph of
branches. Attributes are immutable plain values, so they print and compare as they are. Uses are
kept in insertion order: the output of every pass must be reproducible.

Invariant: `value.users` names exactly the ops that have `value` among their operands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, TypeVar

from aotc.ir.diagnostics import IRError, Loc, current_loc
from aotc.ir.effects import AccessKind, Effect, Proxy, Resource, Trait
from aotc.ir.op_fields import (
    MISSING,
    Arity,
    FieldSpec,
    attribute,
    block,
    define_accessors,
    operand,
    operands,
    result,
    results,
)
from aotc.ir.params import ParamInfo
from aotc.ir.types import Type

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:
    from typing_extensions import dataclass_transform

OpT = TypeVar("OpT", bound="Op")

_Question = tuple[Resource | None, tuple[AccessKind, ...], Proxy | None]
_Declared = tuple[tuple[Effect, ...], bool]

# ---- values and blocks ------------------------------------------------------------------------


class Value:
    """Hold one result of an op or one argument of a block."""

    __slots__ = ("hint", "index", "owner", "type", "users")

    def __init__(self, type_: Type, owner: Op | Block, index: int, hint: str = "") -> None:
        self.type = type_
        self.owner = owner
        self.index = index
        self.hint = hint
        self.users: dict[Op, int] = {}

    @property
    def op(self) -> Op | None:
        """The defining op, or None for a block argument."""
        return self.owner if isinstance(self.owner, Op) else None

    def replace_all_uses_with(self, other: Value) -> None:
        """Make every user of this value use `other` instead."""
        for user in list(self.users):
            user.replace_operand(self, other)

    def __repr__(self) -> str:
        return f"<Value {self.hint or self.index} : {self.type}>"


class Block:
    """Hold a list of ops, in order of execution, and the block's arguments.

    `parent` is the op or kernel the block is nested in. Iterating is safe while the current op is
    removed or ops are inserted around it.
    """

    __slots__ = ("args", "first", "last", "parent")

    def __init__(self, arg_types: Sequence[Type] = (), hints: Sequence[str] = ()) -> None:
        self.args = [
            Value(type_, self, index, hints[index] if index < len(hints) else "")
            for index, type_ in enumerate(arg_types)
        ]
        self.first: Op | None = None
        self.last: Op | None = None
        self.parent: Op | Kernel | None = None

    def __iter__(self) -> Iterator[Op]:
        op = self.first
        while op is not None:
            following = op.next
            yield op
            # An op inserted after the current one is visited; a removed one leads on.
            op = op.next if op.block is self else following

    def walk(self) -> Iterator[Op]:
        """Yield every op of this block and of the blocks nested in it, outer ops first.

        As safe as iterating. One frame for all depths: passes walk a kernel hundreds of times.
        """
        around: list[tuple[Block, Op, Op | None, Iterator[Block]]] = []
        block, op = self, self.first
        while True:
            if op is not None:
                following = op.next
                yield op
                if not op.blocks:
                    op = op.next if op.block is block else following
                    continue
                around.append((block, op, following, iter(op.blocks)))
            elif not around:
                return
            block, op, following, rest = around[-1]
            nested = next(rest, None)
            if nested is None:
                around.pop()
                op = op.next if op.block is block else following
            else:
                block, op = nested, nested.first

    def add_arg(self, type_: Type, hint: str = "") -> Value:
        """Append a block argument."""
        arg = Value(type_, self, len(self.args), hint)
        self.args.append(arg)
        return arg

    @property
    def terminator(self) -> Op:
        """The last op of the block. Raises: IRError if the block is empty."""
        if self.last is None:
            raise IRError("block has no terminator")
        return self.last

    def insert(self, op: Op, before: Op | None = None) -> None:
        """Insert a detached op before `before`, or at the end."""
        if op.block is not None:
            raise IRError(f"{op.opcode} is already in a block", op.loc)
        previous = self.last if before is None else before.prev
        op.block, op.prev, op.next = self, previous, before
        if previous is None:
            self.first = op
        else:
            previous.next = op
        if before is None:
            self.last = op
        else:
            before.prev = op

    def clear(self) -> None:
        """Detach every op, nested ones too, and drop the uses they make."""
        op = self.first
        while op is not None:
            following = op.next
            for nested in op.blocks:
                nested.clear()
            op.set_slots(())
            op.block = op.prev = op.next = None
            op = following
        self.first = self.last = None


# ---- ops --------------------------------------------------------------------------------------


@dataclass_transform(
    eq_default=False,
    field_specifiers=(operand, operands, attribute, result, results, block),
)
class Op:
    """Base of all ops. Subclasses declare fields; see the module docstring."""

    opcode: ClassVar[str] = ""
    effects: ClassVar[tuple[Effect, ...]] = ()
    traits: ClassVar[frozenset[Trait]] = frozenset()
    pure: ClassVar[bool] = False
    """Whether the op may be removed when unused, duplicated and moved; nested effects aside."""
    terminator: ClassVar[bool] = False
    fields: ClassVar[tuple[FieldSpec, ...]] = ()
    attribute_fields: ClassVar[tuple[FieldSpec, ...]] = ()
    arity: ClassVar[Arity] = Arity()
    effect_cache: ClassVar[dict[_Question, _Declared]] = {}
    """Answers of `effects_on`, as far as the class alone decides."""
    registry: ClassVar[dict[str, type[Op]]] = {}

    slots: list[Value | None]
    results: list[Value]
    blocks: tuple[Block, ...]
    loc: Loc
    block: Block | None
    prev: Op | None
    next: Op | None

    def __init_subclass__(
        cls,
        *,
        opcode: str = "",
        pure: bool = False,
        effects: tuple[Effect, ...] | None = None,
        traits: tuple[Trait, ...] = (),
    ) -> None:
        specs = [
            FieldSpec(spec.role, spec.default, name)
            for name, spec in list(cls.__dict__.items())
            if isinstance(spec, FieldSpec)
        ]
        cls.fields = (*(spec for spec in cls.fields if spec.name not in cls.__dict__), *specs)
        cls.attribute_fields = tuple(spec for spec in cls.fields if spec.role == "attribute")
        cls.arity = Arity.of(cls.fields)
        cls.effect_cache = {}
        for spec in specs:
            if hasattr(Op, spec.name) or spec.name in Op.__annotations__:
                raise IRError(f"{opcode or cls.__name__}: field {spec.name} hides a member of Op")
        define_accessors(cls)
        cls.traits = frozenset(traits).union(
            *(getattr(base, "traits", ()) for base in cls.__bases__)
        )
        if opcode:
            if opcode in Op.registry:
                raise IRError(f"opcode {opcode} is declared twice")
            cls.opcode = opcode
            cls.pure = pure
            cls.effects = _declared_effects(cls, effects, pure=pure)
            cls.terminator = Trait.TERMINATOR in cls.traits
            Op.registry[opcode] = cls

    # -- to be overridden ------------------------------------------------------

    def infer(self) -> Sequence[Type]:
        """Return the result types. Raises: IRError if operands or attributes do not fit."""
        return ()

    # -- effects and traits ----------------------------------------------------

    @classmethod
    def has(cls, *traits: Trait) -> bool:
        """Return whether the op has any of the traits."""
        return not cls.traits.isdisjoint(traits)

    def effects_on(
        self, resource: Resource | None, *access: AccessKind, proxy: Proxy | None = None
    ) -> Sequence[Effect]:
        """Return the op's effects on a resource, or on all; absent operands have none."""
        if not self.effects:
            return ()
        question = (resource, access, proxy)
        answer = self.effect_cache.get(question)
        if answer is None:
            answer = self.effect_cache[question] = _declared_on(type(self), question)
        declared, is_certain = answer
        if is_certain:
            return declared
        return [
            effect
            for effect in declared
            if (not effect.of or getattr(self, effect.of) is not None)
            and (not effect.when or getattr(self, effect.when))
        ]

    def reads(self, resource: Resource | None = None) -> bool:
        """Return whether the op reads the resource, or any."""
        return bool(self.effects_on(resource, "read"))

    def writes(self, resource: Resource | None = None) -> bool:
        """Return whether the op writes the resource, or any."""
        return bool(self.effects_on(resource, "write"))

    def orders(self, resource: Resource | None = None) -> bool:
        """Return whether accesses to the resource, or to any, do not cross the op."""
        return bool(self.effects_on(resource, "order"))

    @property
    def has_side_effects(self) -> bool:
        """True if the op does more than read."""
        return bool(self.effects_on(None, "allocate", "write", "order"))

    # -- structure -------------------------------------------------------------

    @property
    def operands(self) -> list[Value]:
        """The operands present, in order."""
        return [value for value in self.slots if value is not None]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name, in declaration order."""
        return {spec.name: getattr(self, spec.name) for spec in self.attribute_fields}

    def set_slots(self, slots: Sequence[Value | None]) -> None:
        """Replace all operand slots."""
        for value in self.slots:
            if value is not None:
                _drop_use(value, self)
        self.slots = list(slots)
        for value in self.slots:
            if value is not None:
                value.users[self] = value.users.get(self, 0) + 1

    def replace_operand(self, old: Value, new: Value) -> None:
        """Use `new` wherever this op uses `old`; its place in other use lists stays."""
        count = old.users.pop(self, 0)
        if count:
            self.slots = [new if value is old else value for value in self.slots]
            new.users[self] = new.users.get(self, 0) + count

    def remove(self) -> None:
        """Take this op out of its block; it keeps its operands and may be inserted again."""
        if self.block is None:
            raise IRError(f"{self.opcode} is in no block", self.loc)
        if self.prev is None:
            self.block.first = self.next
        else:
            self.prev.next = self.next
        if self.next is None:
            self.block.last = self.prev
        else:
            self.next.prev = self.prev
        self.block = self.prev = self.next = None

    def erase(self) -> None:
        """Remove this op for good. Raises: IRError if a result is still used."""
        for value in self.results:
            if value.users:
                user = next(iter(value.users))
                raise IRError(f"{self.opcode} is erased but {user.opcode} uses it", self.loc)
        if self.block is not None:
            self.remove()
        for nested in self.blocks:
            nested.clear()
        self.set_slots(())

    def replace_with(self, values: Sequence[Value]) -> None:
        """Give every use of the results to `values`, then erase this op."""
        for old, new in zip(self.results, values, strict=True):
            old.replace_all_uses_with(new)
            new.hint = new.hint or old.hint
        self.erase()

    @property
    def parent_op(self) -> Op | None:
        """The enclosing op, or None at the top of a kernel."""
        parent = None if self.block is None else self.block.parent
        return parent if isinstance(parent, Op) else None

    def ancestors(self) -> Iterator[Op]:
        """Yield the enclosing ops from the inside out."""
        parent = self.parent_op
        while parent is not None:
            yield parent
            parent = parent.parent_op

    def clone(
        self,
        mapping: dict[Value, Value],
        **attributes: Any,
    ) -> Op:
        """Return a detached copy with operands mapped by `mapping`; results are added to it.

        Types are inferred anew, so a mapping to values of other types retypes the copy.
        """
        slots = [None if value is None else mapping.get(value, value) for value in self.slots]
        blocks = tuple([clone_block(nested, mapping) for nested in self.blocks])
        copy = type(self).__new__(type(self))
        for spec in self.attribute_fields:
            setattr(copy, spec.name, getattr(self, spec.name))
        for name, value in attributes.items():
            if all(name != spec.name for spec in self.attribute_fields):
                self.error(f"has no attribute {name}")
            setattr(copy, name, value)
        copy._setup(slots, blocks, self.loc)  # noqa: SLF001 - as an alternative constructor
        for old, new in zip(self.results, copy.results, strict=True):
            mapping[old] = new
            new.hint = old.hint
        return copy

    def error(self, message: str) -> NoReturn:
        """Raise an IRError at this op."""
        raise IRError(f"{self.opcode}: {message}", self.loc)

    def expect(self, condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Raise an IRError at this op unless `condition` holds."""
        if not condition:
            self.error(message)

    def __repr__(self) -> str:
        return f"<{self.opcode} {self.attributes}>"

    def _setup(self, slots: list[Value | None], blocks: tuple[Block, ...], loc: Loc) -> None:
        self.slots = slots
        self.blocks = blocks
        self.loc = loc
        self.block = self.prev = self.next = None
        try:
            types = self.infer()
        except ValueError as error:  # layouts raise it for arguments that do not fit
            raise IRError(f"{self.opcode}: {error}", loc) from error
        self.results = [Value(type_, self, index) for index, type_ in enumerate(types)]
        # Register the uses only now: the op is valid.
        for value in slots:
            if value is not None:
                value.users[self] = value.users.get(self, 0) + 1
        for nested in blocks:
            nested.parent = self


def _declared_effects(
    cls: type[Op], effects: tuple[Effect, ...] | None, *, pure: bool
) -> tuple[Effect, ...]:
    """Check a class's effects. Raises: IRError if they are missing, or name no field."""
    if pure == (effects is not None):
        raise IRError(f"{cls.opcode}: declare either effects, or that it is pure")
    operand_names = {spec.name for spec in cls.fields if spec.role == "operand"}
    attribute_names = {spec.name for spec in cls.attribute_fields}
    for effect in effects or ():
        if effect.of and effect.of not in operand_names:
            raise IRError(f"{cls.opcode}: has an effect on {effect.of}, which is no operand of it")
        if effect.when and effect.when not in attribute_names:
            raise IRError(f"{cls.opcode}: {effect.when}, of an effect, is no attribute of it")
    return effects or ()


def _declared_on(cls: type[Op], question: _Question) -> _Declared:
    """Return the effects a class declares, and whether every op of it has them all."""
    resource, access, proxy = question
    declared = tuple(
        effect
        for effect in cls.effects
        if (resource is None or effect.resource is resource)
        and (not access or effect.access in access)
        and (proxy is None or effect.proxy == proxy)
    )
    names = [spec.name for spec in cls.fields if spec.role == "operand"]
    required = {"", *(names[index] for index in cls.arity.required)}
    return declared, all(not effect.when and effect.of in required for effect in declared)


def _drop_use(value: Value, op: Op) -> None:
    count = value.users[op]
    if count == 1:
        del value.users[op]
    else:
        value.users[op] = count - 1


def build(
    cls: type[OpT],
    slots: Sequence[Value | None],
    attributes: Mapping[str, Any],
    blocks: Sequence[Block],
    loc: Loc,
) -> OpT:
    """Build an op from its generic parts, as the parser does.

    Raises: IRError if the parts differ from the op's declaration, or do not fit each other.
    """
    op = cls.__new__(cls)
    num_given = 0
    for spec in cls.attribute_fields:
        value = attributes.get(spec.name, MISSING)
        if value is not MISSING:
            num_given += 1
        elif spec.default is not MISSING:
            value = spec.default
        else:
            raise IRError(f"{cls.opcode} needs attribute {spec.name}", loc)
        setattr(op, spec.name, value)
    if num_given != len(attributes):
        names = [spec.name for spec in cls.attribute_fields]
        unknown = next(name for name in attributes if name not in names)
        raise IRError(f"{cls.opcode} has no attribute {unknown}", loc)
    _check_arity(cls, slots, blocks, loc)
    # An alternative constructor, so the private part of the class is its own.
    op._setup(list(slots), tuple(blocks), loc)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return op


def _check_arity(
    cls: type[Op], slots: Sequence[Value | None], blocks: Sequence[Block], loc: Loc
) -> None:
    arity = cls.arity
    if len(slots) < arity.num_operands or (len(slots) > arity.num_operands and not arity.variadic):
        raise IRError(f"{cls.opcode} takes {arity.num_operands} operands, got {len(slots)}", loc)
    if any(slots[index] is None for index in arity.required) or None in slots[arity.num_operands :]:
        raise IRError(f"{cls.opcode} lacks an operand that is not optional", loc)
    if len(blocks) != arity.num_blocks:
        raise IRError(f"{cls.opcode} takes {arity.num_blocks} blocks, got {len(blocks)}", loc)


def clone_block(source: Block, mapping: dict[Value, Value]) -> Block:
    """Copy a block and all in it; its arguments and results are added to `mapping`.

    An argument keeps its own type unless `mapping` already holds a retyped value for it.
    """
    copy = Block()
    for arg in source.args:
        retyped = mapping.get(arg)
        new = copy.add_arg(arg.type if retyped is None else retyped.type, arg.hint)
        mapping[arg] = new
    for op in source:
        copy.insert(op.clone(mapping))
    return copy


# ---- kernels ----------------------------------------------------------------------------------


@dataclass(eq=False)
class Kernel:
    """Hold one kernel: its parameters are the arguments of `body`, in launch order.

    `maxnreg` of 0 leaves the registers per thread to ptxas, which then lets an SM hold
    `min_ctas_per_sm` CTAs if that is not 0 and spills nothing. `allocate_shared` sets
    `shared_bytes`.

    `num_consumer_groups` groups of `num_warps` warps run concurrently, and a layout covers one
    group. `producer_warps` issue loads for them. `guards` are expressions over the arguments of the
    launch: the kernel is legal for a launch if none is 0.

    A kernel that `is_persistent` is launched with as many CTAs as are resident at a time, as a grid
    of one axis, and receives the extents of the program grid. A launch gives each program
    `scratch_bytes` of global memory, uninitialized, in one piece for all. With `runs_by_cta` each
    CTA of a cluster runs the whole kernel on tiles of its own, and no tile is split among CTAs.
    """

    name: str
    params: tuple[ParamInfo, ...]
    body: Block
    num_warps: int = 4
    num_ctas: int = 1
    maxnreg: int = 0
    min_ctas_per_sm: int = 0
    shared_bytes: int = 0
    producer_warps: int = 0
    num_consumer_groups: int = 1
    guards: tuple[str, ...] = ()
    is_persistent: bool = False
    runs_by_cta: bool = False
    scratch_bytes: int = 0
    loc: Loc = field(default_factory=current_loc)

    def __post_init__(self) -> None:
        self.body.parent = self

    @property
    def num_threads(self) -> int:
        """The threads of a CTA, in all roles."""
        return 32 * (self.num_warps * self.num_consumer_groups + self.producer_warps)

    def walk(self) -> Iterator[Op]:
        """Yield every op of the kernel, outer ops first."""
        return self.body.walk()

    def clone(self) -> Kernel:
        """Return an equal kernel with its own ops and values."""
        return replace(self, body=clone_block(self.body, {}))
