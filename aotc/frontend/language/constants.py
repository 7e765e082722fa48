"""Values known while compiling, as the code around kernels has them.

Inside a kernel a constant is the plain Python object. Around it, where globals, defaults and
configurations are computed, there is more: `Constexpr` marks what a kernel may read, lists can
grow, and an `External` stands for what only running the file would tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from aotc.frontend.emitter import mistake
from aotc.frontend.values import Argument, Constexpr, External, Operand, is_tuple, show, with_items
from aotc.ir.diagnostics import CompileError, current_loc


def unwrap(value: Operand) -> Operand:
    """Return a constant without its `tl.constexpr`, with lists as tuples."""
    if isinstance(value, Constexpr):
        return unwrap(value.value)
    if is_tuple(value):
        return with_items(value, (unwrap(item) for item in value))
    if isinstance(value, list):
        return tuple(unwrap(item) for item in cast("list[Operand]", value))
    return value


def without_constexpr(value: Operand) -> Operand:
    """Return what a `tl.constexpr` holds, or the value itself, lists and all."""
    return value.value if isinstance(value, Constexpr) else value


def constexpr_like(values: Sequence[Operand], result: Operand) -> Operand:
    """Return what was computed of `values`: a `tl.constexpr` if one of them is."""
    return Constexpr(result) if any(isinstance(value, Constexpr) for value in values) else result


def truth_of(value: Operand) -> bool:
    """Return the truth of a constant. Raises: CompileError if it is not known."""
    value = without_constexpr(value)
    if isinstance(value, External):
        raise not_known(value)
    if isinstance(value, int | float | str | tuple | list | dict) or value is None:
        return bool(value)  # pyright: ignore[reportUnknownArgumentType]
    return True


def items_of(value: Operand, expected: str) -> Sequence[Operand]:
    """Return the items of a constant. Raises: CompileError that begins with `expected`."""
    if is_tuple(value):
        return value
    plain = without_constexpr(value)
    if isinstance(plain, External):
        raise not_known(plain)
    if isinstance(plain, tuple | list | dict | str | range):
        return list(cast("Sequence[Operand]", plain))
    raise mistake(f"{expected}, got {show(value)}")


class MissingKeyError(CompileError):
    """Report a key that a dictionary, or an enumeration, does not have; code around kernels may catch it."""


def missing_key(key: Operand) -> MissingKeyError:
    """Return the mistake of asking for an item that is not there."""
    return MissingKeyError(f"there is no item {show(key)}", current_loc())


def not_known(value: External) -> CompileError:
    """Return the error to raise: only running the file would tell what this is."""
    if isinstance(value, Argument):
        return mistake(
            f"the argument {value.path} is known at launch only",
            remedy=f"fix it in the signature, as in {value.path} = 'i32=1', or give what is "
            "computed of it among the constants, choices or configs",
        )
    return mistake(
        f"{value.path} is not known without running the file",
        remedy="give the value as a `tl.constexpr` argument of the kernel, or write it out",
        feature=f"{value.path}, which only running the file would tell",
    )
