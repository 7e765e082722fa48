"""The part of Python's library that code outside kernels may call while it is evaluated.

Only what is pure and bounded is here: a range, like every other container, is limited in length.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.builtins import MODULES
from aotc.frontend.emitter import mistake
from aotc.frontend.globals import not_known
from aotc.frontend.values import External, Missing, Module, Operand, StaticCall, is_tuple, text_of

_MAX_ITEMS = 1 << 16


def _bounded_range(*args: int) -> range:
    made = range(*args)
    if len(made) > _MAX_ITEMS:
        raise mistake(f"a range of {len(made)} items is too long")
    return made


def _isinstance(value: Operand, kinds: Operand) -> bool:
    """Answer for constants: which of Python's types a value has."""
    wanted = kinds if is_tuple(kinds) else (kinds,)
    names = {one.name for one in wanted if isinstance(one, StaticCall)}
    return type(value).__name__ in names


def _has_attribute(owner: Operand, name: Operand) -> bool:
    if isinstance(owner, Module):
        found = MODULES[owner.name].get(str(name))
        return found is not None and not isinstance(found, Missing)
    if isinstance(owner, External):
        raise not_known(owner)
    return False


PYTHON_NAMES: dict[str, Callable[..., Operand]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "dict": dict,
    "enumerate": lambda items: [(i, one) for i, one in enumerate(items)],
    "float": float,
    "getattr": lambda owner, name, default=None: default,
    "hasattr": _has_attribute,
    "int": int,
    "isinstance": _isinstance,
    "len": len,
    "list": lambda items=(): list(items),
    "max": max,
    "min": min,
    "range": _bounded_range,
    "reversed": lambda items: list(items)[::-1],
    "round": round,
    "set": lambda items=(): list(dict.fromkeys(items)),
    "sorted": sorted,
    "str": lambda value="": text_of(value),
    "sum": sum,
    "tuple": lambda items=(): tuple(items),
    "zip": lambda *items: [*zip(*items)],  # noqa: B905 - Python's own zip
    "print": lambda *args, **kwargs: None,
}

PYTHON_METHODS: dict[tuple[type, str], Callable[..., Operand]] = {
    (dict, "get"): lambda owner, key, default=None: owner.get(key, default),
    (dict, "items"): lambda owner: list(owner.items()),
    (dict, "keys"): lambda owner: list(owner.keys()),
    (dict, "values"): lambda owner: list(owner.values()),
    (dict, "update"): lambda owner, other: owner.update(other),
    (dict, "copy"): lambda owner: dict(owner),
    (list, "append"): lambda owner, item: owner.append(item),
    (list, "extend"): lambda owner, items: owner.extend(items),
    (list, "copy"): lambda owner: list(owner),
    (str, "startswith"): lambda owner, prefix: owner.startswith(prefix),
    (str, "endswith"): lambda owner, suffix: owner.endswith(suffix),
    (str, "lower"): lambda owner: owner.lower(),
    (str, "upper"): lambda owner: owner.upper(),
    (str, "strip"): lambda owner: owner.strip(),
    (str, "split"): lambda owner, separator=None: owner.split(separator),
    (int, "bit_length"): lambda owner: owner.bit_length(),
}
