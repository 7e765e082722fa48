"""Effects of ops on resources, and traits of ops.

Every op class declares its effects or is pure, without any. An effect is on a named resource and,
where an operand selects a part of it, on this operand. Traits tell passes further facts about an
op. A pass queries both and holds no list of op classes of its own: forgetting a new op in such a
list is a race or a lost optimization.

Invariant: a declaration is complete. An op neither reads nor writes nor orders any resource it does
not declare.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

AccessKind = Literal["allocate", "read", "write", "start", "order"]
Proxy = Literal["generic", "async"]


class Resource(Enum):
    """Name the resource of an effect."""

    GLOBAL = "global memory"
    SHARED = "shared memory of a CTA, or of the CTAs of its cluster"
    MBARRIER = "mbarriers: arrivals, bytes expected, phases"
    TENSOR_MAP = "tensor maps in memory"
    COPIES = "groups of `cp.async` copies in flight"
    STORES = "groups of bulk and tensor stores in flight"
    DOTS = "groups of dots in flight"
    CONTROL = "whether, and under which promises, the program goes on"
    OUTPUT = "what the program prints"
    CACHE = "what the L2 cache holds, on which no value depends"

    # As for `Trait`, below.
    __hash__ = object.__hash__


class Trait(Enum):
    """Name a property of an op class."""

    TERMINATOR = "ends a block"
    CONTROL_FLOW = "runs its blocks in place of itself: a loop or a branch"
    LOOP = "runs a block of its own any number of times"
    DOT = "multiplies matrices and adds to an accumulator"
    MAY_NOT_END = "may run for ever, so that it is not dead even if nothing uses it"
    ELEMENTWISE = "computes each element from the same element of every operand"
    SOURCE = "has no operands: a constant, or what the launch decides"
    SAME_VALUES = "its result is its operand, element by element, maybe held by other threads"
    VIEW = "has the elements of one operand, each once, under other coordinates"
    SHAPE_ONLY = "renames or repeats what each thread holds, and moves nothing between threads"
    BROADCAST = "repeats the elements of its operand"
    ALIAS = "its result is the memory of its first operand, or a part of it"
    ATOMIC = (
        "updates memory in one step and returns what was there, so programs may synchronize by it"
    )
    BARRIER = "waits for all threads of a CTA, or of a cluster"
    MAY_TRAP = "ends the program unless a condition holds, which later accesses may rely on"
    DEPENDENT_LAUNCH = "orders this grid with the one before it or after it, not its own threads"
    COSTLY = "takes many instructions for each element, or slow ones"
    NO_INSTRUCTION = "has an effect for the compiler alone: no instruction comes of it"

    # Passes query traits thousands of times a compile, and `Enum`'s hash is a call into Python.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Effect:
    """Describe one effect of an op class.

    `of` names the operand of the effect; without one it may be anywhere in the resource, or is on
    all of it. An absent operand has no effect. `when` names an attribute; the effect holds only if
    it is true. Threads see effects of the async `proxy` only after a wait, and it sees theirs only
    after a fence.
    """

    access: AccessKind
    resource: Resource
    of: str = ""
    proxy: Proxy = "generic"
    when: str = ""


def allocates(resource: Resource) -> Effect:
    """Declare an op's allocation of a new part of the resource."""
    return Effect("allocate", resource)


def reads(resource: Resource, *, of: str = "", proxy: Proxy = "generic", when: str = "") -> Effect:
    """Declare a read of the resource."""
    return Effect("read", resource, of, proxy, when)


def writes(resource: Resource, *, of: str = "", proxy: Proxy = "generic", when: str = "") -> Effect:
    """Declare a write of the resource."""
    return Effect("write", resource, of, proxy, when)


def starts(resource: Resource, *, of: str = "") -> Effect:
    """Declare an asynchronous start, to be awaited by an op that orders the resource.

    It alone is no reason to keep the op if its results are unused.
    """
    return Effect("start", resource, of)


def orders(resource: Resource, *, of: str = "", proxy: Proxy = "generic", when: str = "") -> Effect:
    """Declare an ordering: accesses do not cross the op, or it waits for running work."""
    return Effect("order", resource, of, proxy, when)
