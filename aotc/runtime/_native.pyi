# Types of the extension module, described in aotc/runtime/_native.h.

from collections.abc import Callable, Mapping, Sequence

from typing_extensions import Self

from aotc.runtime.info import KernelInfo, Plan, Selection, Value

VERSION_NUMBER: int

class Archive:
    def __new__(
        cls,
        source: tuple[str] | bytes | bytearray | memoryview,
        decompress: Callable[[bytes | memoryview, int], bytes],
        verify: bool,
        driver: str | None,
        /,
    ) -> Self: ...
    def __getitem__(self, name: str, /) -> Kernel: ...
    def _load(self, device: int | None, kernel: str | None, lazy: bool = False, /) -> None: ...
    def _unload(self, device: int, /) -> None: ...
    def _names(self) -> tuple[str, ...]: ...
    def _identity(self) -> tuple[str, str, str]: ...
    def tensor_map(self, tensor: object, block: Sequence[int]) -> bytes: ...
    def close(self) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def closed(self) -> bool: ...

class Kernel:
    @property
    def name(self) -> str: ...
    @property
    def info(self) -> KernelInfo: ...
    def __call__(self, *args: object, **keywords: object) -> None: ...
    def launch(
        self,
        args: Sequence[object] | Mapping[str, object],
        *,
        grid: int | Sequence[int] | None = None,
        stream: object = None,
        config: Mapping[str, Value] | None = None,
        choices: Mapping[str, Value] | None = None,
        pdl: bool = False,
        scratch: tuple[int, int] | None = None,
    ) -> None: ...
    def select(
        self,
        args: Sequence[object] | Mapping[str, object],
        *,
        grid: int | Sequence[int] | None = None,
        stream: object = None,
        config: Mapping[str, Value] | None = None,
        choices: Mapping[str, Value] | None = None,
        pdl: bool = False,
        scratch: tuple[int, int] | None = None,
    ) -> Selection: ...
    # Record a launch on a GPU of a compute capability; None for no programs. Loads and launches with
    # the C library's own code, on a recording driver: no GPU is needed, but the archive can no longer
    # be loaded for a GPU. Pointers may be any numbers. `at_once` program instances of a persistent
    # kernel are resident at a time.
    def _plan(
        self,
        capability: tuple[int, int],
        at_once: int,
        args: Sequence[object] | Mapping[str, object],
        /,
        *,
        grid: int | Sequence[int] | None = None,
        config: Mapping[str, Value] | None = None,
        choices: Mapping[str, Value] | None = None,
        pdl: bool = False,
        scratch: tuple[int, int] | None = None,
    ) -> Plan | None: ...

# The launches of a function, cached by the values of `constants`, values of `fixed`, types and options.
# `launcher[grid](…)` binds its arguments to `names` and `options`, and launches the first kernel of
# `_find` that does not refuse by one of `refusals`. If all do, `_find_again` is asked for others; if
# those do too, `_refuse` raises.
class Launcher:
    def __new__(
        cls,
        names: tuple[str, ...],
        defaults: tuple[object, ...],
        constants: frozenset[str],
        fixed: dict[str, tuple[object, ...]],
        options: tuple[str, ...],
        hooks: list[Callable[..., object]],
        refusals: tuple[type[Exception], ...],
        /,
    ) -> Self: ...
    def __getitem__(self, grid: object, /) -> Launch: ...

class Launch:
    def __call__(self, *args: object, **keywords: object) -> None: ...

# `__getitem__` of a class whose objects have a launcher as the attribute of this name.
class GridSubscript:
    def __new__(cls, attribute: str, /) -> Self: ...
    def __get__(
        self, instance: object, owner: type | None = None, /
    ) -> Callable[[object], Launch]: ...
    def __call__(self, instance: object, grid: object, /) -> Launch: ...

# Bases of classes whose objects have a launcher as `aotc_launcher`, or a chain as `aotc_chain`. The
# attribute is cached in the object.
class Jitted:
    def __getitem__(self, grid: object, /) -> Launch: ...

class Chained:
    def __getitem__(self, grid: object, /) -> Launch: ...

# The decorators of a function, from the outermost to its launcher: for each None, the autotuner's, or
# the constants of heuristics. `chain[grid](…)` bypasses them, or calls `run` if `chosen` does not know
# the config yet.
class Chain:
    def __new__(
        cls,
        launcher: Launcher,
        steps: tuple[
            tuple[tuple[str, Callable[..., object], tuple[tuple[int, int], ...] | None], ...]
            | None,
            ...,
        ]
        | None,
        tuner: object,
        keys: frozenset[str],
        run: Callable[..., object],
        chosen: Callable[..., object],
        /,
    ) -> Self: ...
    def __getitem__(self, grid: object, /) -> Callable[..., None]: ...
