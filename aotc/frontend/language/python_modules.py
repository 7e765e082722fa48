"""Pure modules of Python's library, for code around kernels.

Iterators of `itertools` become lists of limited length. Paths are Linux paths.
"""

from __future__ import annotations

import itertools
import operator
import posixpath
from collections.abc import Callable, Iterable, Mapping

from aotc.frontend.emitter import mistake
from aotc.frontend.values import Operand, StaticCall

_MAX_ITEMS = 1 << 16


def _bounded(items: Iterable[Operand]) -> list[Operand]:
    listed: list[Operand] = list(itertools.islice(items, _MAX_ITEMS + 1))
    if len(listed) > _MAX_ITEMS:
        raise mistake(f"more than {_MAX_ITEMS} items are too many")
    return listed


def _chain(*parts: Iterable[Operand]) -> list[Operand]:
    return list(itertools.chain(*parts))


def _chain_of(parts: Iterable[Iterable[Operand]]) -> list[Operand]:
    return list(itertools.chain.from_iterable(parts))


def _starmap(function: Callable[..., Operand], items: Iterable[Iterable[Operand]]) -> list[Operand]:
    return [function(*args) for args in items]


def _combinations(items: Iterable[Operand], r: int) -> list[Operand]:
    return _bounded(itertools.combinations(items, r))


def _permutations(items: Iterable[Operand], r: int | None = None) -> list[Operand]:
    return _bounded(itertools.permutations(items, r))


def _product(*parts: Iterable[Operand], repeat: int = 1) -> list[Operand]:
    return _bounded(itertools.product(*parts, repeat=repeat))


def _repeat(item: Operand, times: int) -> list[Operand]:
    return _bounded(itertools.repeat(item, times))


def _members(module: str, functions: Mapping[str, Callable[..., Operand]]) -> dict[str, Operand]:
    return {name: StaticCall(f"{module}.{name}", call) for name, call in functions.items()}


_OPERATORS = (
    *("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "lshift", "rshift"),
    *("and_", "or_", "xor", "eq", "ne", "lt", "le", "gt", "ge", "not_"),
)
_PATHS = ("join", "basename", "dirname", "split", "splitext", "normpath", "isabs")

PYTHON_MODULES: Mapping[str, dict[str, Operand]] = {
    "itertools": {
        "chain": StaticCall(
            "itertools.chain",
            _chain,
            members={"from_iterable": StaticCall("itertools.chain.from_iterable", _chain_of)},
        ),
        **_members(
            "itertools",
            {
                "starmap": _starmap,
                "combinations": _combinations,
                "permutations": _permutations,
                "product": _product,
                "repeat": _repeat,
            },
        ),
    },
    "operator": _members("operator", {name: getattr(operator, name) for name in _OPERATORS}),
    "os.path": _members("os.path", {name: getattr(posixpath, name) for name in _PATHS}),
}
"""Functions by module and name in Python."""
