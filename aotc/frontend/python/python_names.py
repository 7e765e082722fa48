"""Python builtins and methods callable from host code during evaluation.

All are pure and bounded: a range, like every container, has a maximum length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aotc.frontend.emitter import mistake
from aotc.frontend.language.builtins import MODULES
from aotc.frontend.language.constants import not_known, truth_of
from aotc.frontend.language.language_classes import LanguageClass, classes_in
from aotc.frontend.values import External, Module, Operand, StaticCall, text_of

_MAX_ITEMS = 1 << 16


def _bounded_range(*args: int) -> range:
    values = range(*args)
    if len(values) > _MAX_ITEMS:
        raise mistake(f"a range of {len(values)} items is too long")
    return values


def _isinstance(value: Operand, kinds: Operand) -> bool:
    """Evaluate `isinstance` for constants."""
    names = {kind.name for kind in classes_in(kinds) if isinstance(kind, StaticCall)}
    language = [kind for kind in classes_in(kinds) if isinstance(kind, LanguageClass)]
    return type(value).__name__ in names or any(kind.holds(value) for kind in language)


def _has_attribute(owner: Operand, name: Operand) -> bool:
    if isinstance(owner, Module):
        # Unsupported features count as present: an error naming the feature is clearer than a
        # failure in the file's own fallback.
        return str(name) in MODULES[owner.name]
    if isinstance(owner, External):
        raise not_known(owner)
    return False


def _list(items: Iterable[Operand] = ()) -> list[Operand]:
    return list(items)


def _set(items: Iterable[Operand] = ()) -> list[Operand]:
    return list(dict.fromkeys(items))


def _reversed(items: Sequence[Operand]) -> list[Operand]:
    return list(items)[::-1]


def _enumerate(items: Iterable[Operand]) -> list[Operand]:
    return list(enumerate(items))


def _zip(*items: Iterable[Operand]) -> list[Operand]:
    return list(zip(*items, strict=False))


def _filter(
    keep: Callable[[Operand], Operand] | None, items: Iterable[Operand] = ()
) -> list[Operand]:
    return [item for item in items if truth_of(item if keep is None else keep(item))]


def _map(function: Callable[..., Operand], *items: Iterable[Operand]) -> list[Operand]:
    return list(map(function, *items))


def _tuple(items: Iterable[Operand] = ()) -> Operand:
    return tuple(items)


def _print(*args: Operand, **kwargs: Operand) -> None:
    del args, kwargs


def _from_keys(keys: Iterable[Operand], value: Operand = None) -> Operand:
    return dict.fromkeys(keys, value)


_FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bin": bin,
    "bool": bool,
    "chr": chr,
    "dict": dict,
    "divmod": divmod,
    "enumerate": _enumerate,
    "filter": _filter,
    "float": float,
    "frozenset": _set,
    "hasattr": _has_attribute,
    "hex": hex,
    "int": int,
    "isinstance": _isinstance,
    "len": len,
    "list": _list,
    "map": _map,
    "max": max,
    "min": min,
    "ord": ord,
    "pow": pow,
    "print": _print,
    "range": _bounded_range,
    "reversed": _reversed,
    "round": round,
    "set": _set,
    "sorted": sorted,
    "str": text_of,
    "sum": sum,
    "tuple": _tuple,
    "zip": _zip,
}

_MEMBERS: dict[str, dict[str, Operand]] = {
    "dict": {"fromkeys": StaticCall("dict.fromkeys", _from_keys)},
}

PYTHON_NAMES = {
    name: StaticCall(name, call, members=_MEMBERS.get(name, {}))
    for name, call in _FUNCTIONS.items()
}
"""Functions by the name they have in Python; sets are lists without repetitions."""

PYTHON_METHODS: dict[type, tuple[str, ...]] = {
    dict: ("get", "items", "keys", "values", "update", "copy", "pop", "setdefault"),
    list: (
        *("append", "extend", "copy", "insert", "pop", "remove", "sort", "reverse", "index"),
        "count",
    ),
    str: (
        *("startswith", "endswith", "lower", "upper", "strip", "lstrip", "rstrip", "split"),
        *("splitlines", "join", "format", "replace", "removeprefix", "removesuffix", "count"),
        *("find", "rfind", "index", "isdigit", "isalpha", "capitalize", "title", "zfill"),
        *("partition", "rpartition", "rsplit"),
    ),
    tuple: ("index", "count"),
    int: ("bit_length",),
}
"""Methods of Python's types that may be called."""
