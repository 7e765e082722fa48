"""gpu IR to LLVM IR: the registry of lowering rules and the driver that applies them.

A rule is a function `(ctx, op) -> results`, registered for an op class with `@lowers`. A value of
a tile type is a tuple of components, one for each register of its layout, broadcast registers
included; a scalar is a tuple of one. The driver walks the blocks, sets the debug location and
binds what a rule returns.

Invariant: every op has exactly one rule, and a rule returns as many components for each result as
the layout of the result has registers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from aotc.backend import nvvm, nvvm_tensor
from aotc.backend.debug import DebugInfo
from aotc.backend.emitter import Emitter
from aotc.backend.integers import Component, Integers, Registers
from aotc.backend.llvm_types import GLOBAL_POINTER, llvm_type
from aotc.backend.nvvm_issue import Issuer
from aotc.ir.core import Block, Kernel, Op, OpT, ParamInfo, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import roles
from aotc.ir.layout import LinearLayout
from aotc.ir.types import PointerType, ScalarType, TensorMapType, TileType, Type, element_of
from aotc.target import Feature, Target

WARP_SIZE = 32
WARPGROUP_SIZE = 4 * WARP_SIZE
LANE_BITS = 5
SHARED = "@shared"
TENSOR_MAP_BYTES = 128
_MAX_PARAM_ALIGNMENT = 64  # of a tensor map

Results: TypeAlias = "Sequence[Registers]"
Rule: TypeAlias = "Callable[[Lowering, OpT], Results]"

Role = Literal["all", "consumer", "producer"]

RULES: dict[type[Op], Callable[[Lowering, Any], Results]] = {}


def lowers(*classes: type[OpT]) -> Callable[[Rule[OpT]], Rule[OpT]]:
    """Register a rule for op classes. Raises: IRError if one has a rule already."""

    def register(rule: Rule[OpT]) -> Rule[OpT]:
        for cls in classes:
            if cls in RULES:
                raise IRError(f"{cls.opcode} has two lowering rules")
            RULES[cls] = rule
        return rule

    return register


# ---- results ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParamSlot:
    """Place one kernel parameter in the argument buffer, at its natural alignment."""

    name: str
    type: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Lowered:
    """Hold a kernel as LLVM IR text, and where its launch arguments go."""

    llvm_ir: str
    params: tuple[ParamSlot, ...]


def param_layout(kernel: Kernel) -> tuple[ParamSlot, ...]:
    """Return where each parameter lies in the argument buffer."""
    slots: list[ParamSlot] = []
    end = 0
    for info, arg in zip(kernel.params, kernel.body.args, strict=True):
        is_map = isinstance(arg.type, TensorMapType)
        size = TENSOR_MAP_BYTES if is_map else element_of(arg.type).size_bytes
        offset = -(-end // min(size, _MAX_PARAM_ALIGNMENT)) * min(size, _MAX_PARAM_ALIGNMENT)
        slots.append(ParamSlot(info.name, str(arg.type), offset, size))
        end = offset + size
    return tuple(slots)


# ---- driver -----------------------------------------------------------------------------------


class Lowering:
    """Hold what rules share while one kernel is lowered."""

    def __init__(self, kernel: Kernel, target: Target, *, debug_lines: bool = False) -> None:
        self.kernel = kernel
        self.target = target
        self.emit = Emitter()
        self.ints = Integers(self.emit)
        self.debug = DebugInfo(kernel) if debug_lines else None
        self.uses_shared = False
        self._values: dict[Value, Registers] = {}
        num_threads = WARP_SIZE * kernel.num_warps
        consumer_threads = num_threads * kernel.num_consumer_groups
        all_threads = consumer_threads + WARP_SIZE * kernel.producer_warps
        self._role: Role = "all"
        self.group = ""
        """The number of the group of consumers, if there are several and this is for them."""
        self.thread_bits = num_threads.bit_length() - 1
        self.emit.declare("i32", "llvm.nvvm.read.ptx.sreg.tid.x", ())
        self.thread = self.emit.thread_value(
            f"call range(i32 0, {all_threads}) i32 @llvm.nvvm.read.ptx.sreg.tid.x()"
        )
        self.ints.learn(self.thread, (1 << (consumer_threads - 1).bit_length()) - 1)

    def opaque_thread_id(self) -> None:
        """Make what follows depend on the thread id as read here."""
        self.emit.start_section()
        self.thread = self.emit.thread_value(nvvm.read_thread())
        self.ints.learn(self.thread, (1 << self.thread_bits) - 1)

    # ---- values --------------------------------------------------------------

    def raw(self, value: Value) -> Registers:
        """Return the registers of `value`, a base plus a constant left as that."""
        return self._values[value]

    def registers(self, value: Value) -> list[str]:
        """Return what a thread holds of `value` as operands."""
        element = element_of(value.type)
        return [self.operand(component, element) for component in self._values[value]]

    def scalar(self, value: Value) -> str:
        """Return a scalar as an operand."""
        return self.operand(self._values[value][0], element_of(value.type))

    def operand(self, component: Component, element: ScalarType | PointerType) -> str:
        """Return a component as an operand."""
        if isinstance(component, str):
            return component
        if isinstance(element, PointerType):
            return self.ints.materialize_pointer(component)
        return self.ints.materialize(component, element.bits)

    def bind(self, value: Value, registers: Registers) -> None:
        """Say what a thread holds of `value`."""
        self._values[value] = registers

    # ---- roles ---------------------------------------------------------------

    @contextmanager
    def role(self, role: Role) -> Generator[None]:
        """Lower what stands in the `with` block for the threads of a role.

        To one of several groups of consumers, its threads have the numbers that the first one's
        have to all.
        """
        before = self._role, self.thread, self.group
        self._role = role
        if role == "consumer" and self.kernel.num_consumer_groups > 1:
            self._number_in_group()
        try:
            yield
        finally:
            self._role, self.thread, self.group = before

    def _number_in_group(self) -> None:
        """Read which consumer group this thread is in, and its id there."""
        highest, mask = self.kernel.num_consumer_groups - 1, (1 << self.thread_bits) - 1
        number = self.emit.thread_value(f"lshr i32 {self.thread}, {self.thread_bits}")
        # Read from one lane, so that ptxas knows it to be the same for all of a warp.
        self.group = self.emit.thread_value(nvvm.first_lane(self.emit, number))
        self.ints.learn(self.group, (1 << highest.bit_length()) - 1)
        self.thread = self.emit.thread_value(f"and i32 {self.thread}, {mask}")
        self.ints.learn(self.thread, mask)

    @property
    def warp(self) -> str:
        """Name the number of this thread's warp in its role, an i32 that its lanes agree on."""
        number = self.emit.thread_value(f"lshr i32 {self.thread}, {LANE_BITS}")
        # Read from one lane, so that ptxas knows it to be the same for all of a warp.
        return self.emit.thread_value(nvvm.first_lane(self.emit, number))

    @property
    def issuer(self) -> Issuer:
        """Say which thread issues copies: one of the first warp, or of the producer the only one."""
        if self._role == "producer":
            return Issuer(alone=True)
        if self.kernel.num_warps == 1 and self._role == "consumer":
            return Issuer()
        return Issuer(self.emit.thread_value(f"icmp eq i32 {self.warp}, 0"))

    @property
    def barrier_threads(self) -> int:
        """How many threads wait at a barrier of this role; 0 stands for all of the CTA."""
        return WARP_SIZE * self.kernel.num_warps if self._role == "consumer" else 0

    # ---- blocks --------------------------------------------------------------

    def lower_ops(self, block: Block) -> list[Registers]:
        """Lower a nested block, whose arguments are bound; return what its terminator passes on.

        The terminator itself is the business of the enclosing op.
        """
        for op in block:
            if op is block.last and op.terminator:
                break
            self.lower_op(op)
        return [self.raw(value) for value in block.terminator.operands]

    def inline(self, block: Block, arguments: Sequence[Component]) -> list[Component]:
        """Lower a block of scalars with these arguments; return the scalars it yields."""
        for arg, component in zip(block.args, arguments, strict=True):
            self.bind(arg, (component,))
        return [registers[0] for registers in self.lower_ops(block)]

    def lower_op(self, op: Op) -> None:
        """Apply the rule of `op` and bind its results."""
        rule = RULES.get(type(op))
        if rule is None:
            op.error("has no lowering rule")
        if self.debug is not None:
            self.emit.debug_suffix = self.debug.suffix(op.loc)
        results = rule(self, op)
        if len(results) != len(op.results):
            op.error(f"lowered to {len(results)} results, not {len(op.results)}")
        for value, registers in zip(op.results, results, strict=True):
            if len(registers) != num_registers(value.type):
                op.error(f"lowered to {len(registers)} registers, not {num_registers(value.type)}")
            self._values[value] = registers


def num_registers(type_: Type) -> int:
    """Return how many registers a thread holds of a value of `type_`."""
    return layout_of(type_).in_size("register") if isinstance(type_, TileType) else 1


def layout_of(type_: Type) -> LinearLayout:
    """Return the layout of a tile type. Raises: IRError if it is no tile or has none."""
    if not isinstance(type_, TileType) or type_.layout is None:
        raise IRError(f"{type_} has no layout")
    return type_.layout


# ---- the whole kernel -------------------------------------------------------------------------


def lower_kernel(
    kernel: Kernel, target: Target, *, debug_lines: bool = False, owns_sm: bool = False
) -> Lowered:
    """Lower a kernel of gpu IR to LLVM IR text.

    `debug_lines` adds a line table of the kernel's source, files by their base name; `owns_sm` says
    that the kernel is to have all registers that a CTA alone on an SM has.
    Raises: IRError if an op has no rule or breaks the terms of its rule.
    """
    _check_cluster(kernel, target)
    ctx = Lowering(kernel, target, debug_lines=debug_lines)
    header = [_bind_param(ctx, *param) for param in enumerate(kernel.params)]
    _prefetch_maps(ctx)
    ctx.lower_ops(kernel.body)
    ctx.lower_op(kernel.body.terminator)
    emit = ctx.emit
    emit.release()
    shared = [f"{SHARED} = external addrspace(3) global [0 x i8], align 1024"]
    define = f"define ptx_kernel void @{kernel.name}({', '.join(header)}) {_attributes(kernel, owns_sm=owns_sm)}"
    lines = [
        'target triple = "nvptx64-nvidia-cuda"',
        *(shared if ctx.uses_shared else []),
        *(f"{name} = type {content}" for content, name in emit.structs.items()),
        *(f"{name} = {content}" for content, name in emit.globals.items()),
        *emit.declarations,
        define + (ctx.debug.function_suffix() if ctx.debug else "") + " {",
        "entry:",
        *emit.own_buffer(),
        *emit.sections,
        *emit.prologue,
        *emit.lines,
        "}",
        "attributes #0 = { convergent nounwind }",
        *emit.metadata,
        *(ctx.debug.metadata() if ctx.debug else []),
    ]
    return Lowered("\n".join(lines) + "\n", param_layout(kernel))


def _check_cluster(kernel: Kernel, target: Target) -> None:
    """Raise IRError unless the CTAs of a program can be a cluster of the target."""
    count = kernel.num_ctas
    is_power = count > 0 and count & (count - 1) == 0
    if not is_power or count > target.max_blocks_per_cluster:
        raise IRError(f"clusters of {count} blocks", kernel.loc)
    if count > 1 and Feature.CLUSTERS not in target.features:
        raise IRError(f"clusters of {count} blocks on {target}", kernel.loc)


def _num_warps(kernel: Kernel) -> int:
    """Return how many warps a CTA has, in all roles."""
    return kernel.num_warps * kernel.num_consumer_groups + kernel.producer_warps


def _attributes(kernel: Kernel, *, owns_sm: bool) -> str:
    attributes = {"nvvm.reqntid": str(WARP_SIZE * _num_warps(kernel))}
    if kernel.maxnreg:
        attributes["nvvm.maxnreg"] = str(kernel.maxnreg)
    # Registers move between warps only where a launch gives each thread a known number.
    moves = any(isinstance(op, roles.Specialize) and op.consumer_registers for op in kernel.body)
    if moves or (owns_sm and not kernel.maxnreg):
        attributes["nvvm.minctasm"] = "1"
    if kernel.num_ctas > 1:
        attributes["nvvm.cluster_dim"] = f"{kernel.num_ctas},1,1"
    return " ".join(["nounwind", *(f'"{name}"="{text}"' for name, text in attributes.items())])


def _prefetch_maps(ctx: Lowering) -> None:
    """Prefetch tensor maps in a thread that does not initialize mbarriers meanwhile."""
    args = ctx.kernel.body.args
    maps = [arg for arg in args if isinstance(arg.type, TensorMapType) and arg.users]
    if maps:
        is_last = f"icmp eq i32 {ctx.warp}, {_num_warps(ctx.kernel) - 1}"
        issuer = Issuer(ctx.emit.thread_value(is_last))
        nvvm_tensor.prefetch_maps(ctx.emit, [ctx.scalar(arg) for arg in maps], issuer)


def _bind_param(ctx: Lowering, index: int, info: ParamInfo) -> str:
    """Bind a parameter to its value; return its text in the function's header."""
    arg = ctx.kernel.body.args[index]
    name = f"%p{index}"
    if isinstance(arg.type, TensorMapType):
        ctx.bind(arg, (name,))
        kind = f"[{TENSOR_MAP_BYTES} x i8]"
        return f'ptr byval({kind}) align {_MAX_PARAM_ALIGNMENT} "nvvm.grid_constant" {name}'
    element = element_of(arg.type)
    if isinstance(element, PointerType):
        ctx.bind(arg, (name,))
        # A divisibility of an address that is no power of two guarantees its power of two.
        return f"{GLOBAL_POINTER} noundef align {info.divisibility & -info.divisibility} {name}"
    if element.is_bool:
        ctx.bind(arg, (ctx.emit.value(f"trunc i8 {name} to i1"),))
        return f"i8 noundef {name}"
    if element.is_int:
        low = info.divisibility & -info.divisibility
        ctx.ints.learn(name, (1 << element.bits) - low)
    ctx.bind(arg, (name,))
    return f"{llvm_type(element)} noundef {name}"
