"""Launch functions with tuples (flattened, as in archives) and host descriptors.

A manifest names the items of `shape` as `shape_0` and `shape_1`, or `shape_rows` and `shape_cols`
for a named tuple. Each structure of tuples gets a launcher with these parameters. Kernels are built
for the blocks of their descriptors, so each combination of blocks gets a launcher too. Binding is
done in Python, and costs some microseconds more.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aotc.triton.archives import Archives
from aotc.triton.launch import Launcher
from aotc.triton.specialization import Described, is_descriptor, is_function, items_of


class StructuredLauncher:
    """Launcher for kernels with tuples or descriptors: `launcher[grid](*args, **kwargs)`."""

    def __init__(
        self,
        function: Any,
        constexprs: frozenset[str],
        archives: Archives,
        hooks: list[Callable[..., object]],
    ) -> None:
        self._function, self._archives, self._hooks = function, archives, hooks
        self._plain = Launcher(function, constexprs, archives, hooks)
        self._flat: dict[tuple[Any, ...], Launcher] = {}
        self.names, self._constexprs = self._plain.names, constexprs
        self._defaults = {
            name: parameter.default
            for name, parameter in self._plain.signature.parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> None:
        for hook in self._hooks:
            hook(*args, **kwargs)
        passed, words = self._bound(args, kwargs)
        if callable(grid):
            grid = grid(passed)
        launcher, flat = self._flattened(passed)
        launcher[grid](
            **flat, **{name: option for name, option in words.items() if option is not None}
        )

    def _bound(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Return a launch's arguments and options, as `Launcher.bind` in a quarter of the time."""
        by_place = dict(zip(self.names, args))  # noqa: B905 - fewer may be passed
        words = {name: kwargs[name] for name in kwargs if name not in self.names}
        passed = {**self._defaults, **by_place, **kwargs}
        for name in words:
            del passed[name]
        is_plain = len(by_place) == len(args) and len(passed) == len(self.names)
        if not is_plain or by_place.keys() & kwargs.keys() or words.keys() - {*self._plain.options}:
            passed, words = self._plain.bind(args, kwargs)[1:]  # reports the mistake
        return passed, words

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Launcher, dict[str, Any], dict[str, Any]]:
        """Return the launcher for a launch's structure, the flat arguments, and the options."""
        _, passed, options = self._plain.bind(args, kwargs)
        return *self._flattened(passed), options

    def _flattened(self, passed: Mapping[str, Any]) -> tuple[Launcher, dict[str, Any]]:
        """Return the launcher for arguments, and the arguments with tuples flattened."""
        flat: dict[str, Any] = {}
        nested: dict[str, Any] = {}
        for name, value in passed.items():
            is_whole = name in self._constexprs
            nested[name] = name if is_whole else _keys(name, value)
            flat.update([(name, value)] if is_whole else _leaves(name, value))
        blocks = {
            name: argument.block
            for name, argument in flat.items()
            if isinstance(argument, Described)
        }
        # Functions are constants, compiled into a kernel.
        functions = sorted(name for name, argument in flat.items() if is_function(argument))
        key = (*nested.items(), *blocks.items(), *functions)
        launcher = self._flat.get(key)
        if launcher is None:
            parameters = self._plain.signature.parameters
            empty = inspect.Parameter("_", inspect.Parameter.KEYWORD_ONLY)
            flattened = inspect.Signature(
                [
                    parameters.get(argument_name, empty).replace(
                        name=argument_name, kind=inspect.Parameter.KEYWORD_ONLY
                    )
                    for argument_name in flat
                ]
            )
            constexprs = self._constexprs.union(functions)
            launcher = self._flat[key] = Launcher(
                self._function, constexprs, self._archives, [], flattened, nested
            )
        return launcher, flat


def _items(name: str, value: Any) -> list[tuple[str, Any]] | None:
    """Return the items of a tuple with their names, None for other values."""
    items = items_of(value)
    if items is None:
        return None
    labels = getattr(value, "_fields", None) or range(len(items))
    return [(f"{name}_{label}", item) for label, item in zip(labels, items)]  # noqa: B905 - as many


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an argument, or the items of a tuple as arguments.

    A nested empty tuple stays an argument, unknown to all archived kernels.
    """
    items = _items(name, value)
    for pair in () if items is None else items:
        yield from [pair] if items_of(pair[1]) == () else _leaves(*pair)
    if items is None:
        yield name, Described(value) if is_descriptor(value) else value


def _keys(name: str, value: Any) -> Any:
    """Return a tuple of the same structure with the names used by `_leaves`."""
    items = _items(name, value)
    if items is None:
        return name
    make: Callable[[list[Any]], Any] = getattr(value, "_make", tuple)
    return make([_keys(*pair) for pair in items])
