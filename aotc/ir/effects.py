"""What an op does to the world outside of its results, and what kind of op it is.

Every op class declares its effects, each on a named resource and, where one operand says which part
of the resource, on that operand; or that it is pure, and has none. Traits say what passes may take
for granted of an op. A pass asks an op for these and holds no list of op classes of its own: a list
that a new op is not added to is a race or a lost optimization.

Invariant: a declaration is complete. What an op declares no effect on, it neither reads nor writes
nor orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

AccessKind = Literal["allocate", "read", "write", "start", "order"]
Proxy = Literal["generic", "async"]


class Resource(Enum):
    """Name what an effect is on."""

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

    # Ops are asked for traits thousands of times a compile: that of `Enum` is a call into Python.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Effect:
    """Describe one effect of an op class.

    `of` names the operand that says where; without one it may be anywhere in the resource, or is on
    all of it. An operand that is absent has no effect. `when` names an attribute that is false where
    the op does not have the effect. Threads see what the async `proxy` does only after a wait, and it
    sees what they do only after a fence.
    """

    access: AccessKind
    resource: Resource
    of: str = ""
    proxy: Proxy = "generic"
    when: str = ""


def allocates(resource: Resource) -> Effect:
    """Declare that an op makes a part of the resource, other than any before."""
    return Effect("allocate", resource)


def reads(resource: Resource, *, of: str = "", proxy: Proxy = "generic", when: str = "") -> Effect:
    """Declare that an op reads the resource."""
    return Effect("read", resource, of, proxy, when)


def writes(resource: Resource, *, of: str = "", proxy: Proxy = "generic", when: str = "") -> Effect:
    """Declare that an op writes the resource."""
    return Effect("write", resource, of, proxy, when)


def starts(resource: Resource, *, of: str = "") -> Effect:
    """Declare that an op starts what ends later, for an op that orders the resource to wait for.

    That alone is no reason to keep the op if its results are unused.
    """
    return Effect("start", resource, of)


def orders(resource: Resource, *, of: str = "", proxy: Proxy = "generic", when: str = "") -> Effect:
    """Declare that accesses to the resource do not cross an op, or that it waits for what runs."""
    return Effect("order", resource, of, proxy, when)
