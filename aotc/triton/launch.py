"""Launch a Python function from archives: find the kernel once, then call it.

The first launch with some constants, options and classes of arguments finds the kernels that were
built with just these; later ones find them in a dictionary. Dtypes, promises and ranges are checked
by the loader at every launch. So a launch costs the loader's call and that look-up, both in
functions that are written for the kernel's parameters.

Invariant: what is launched was built with the constants and options that the launch passes, and
with types that Triton would have given its arguments. The grid is the caller's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aotc.runtime import ArchError, ArgumentError, NotFoundError, StateError
from aotc.triton.archives import ArchivedKernel, Archives
from aotc.triton.specialization import (
    SCALARS,
    TYPE_NAMES,
    NotInArchiveError,
    address_of,
    dtype_of,
    is_pointer,
    is_same_constant,
    not_in_archive,
    scalar_type,
)

# What a launch may say of how a kernel is compiled, and what Triton takes if it does not.
DEFAULTS: dict[str, Any] = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
_IGNORED = ("debug", "launch_pdl", "ir_override", "instrumentation_mode", "sanitize_overflow")
_OWN_WORDS = ("grid", "stream", "config")
_MISSES = (NotFoundError, ArgumentError, ArchError)
_GRID = "aotc_grid"


class Probe(NamedTuple):
    """Passed for `warmup` through autotuners and heuristics: find a kernel, launch nothing."""


PROBE = Probe()


class Candidate(NamedTuple):
    """A kernel with the config that a launch asks for, and the arguments that it is passed.

    Of several the one of the least `rank` is launched: the config that Triton would take, the most
    promises, the narrowest integers, the order of the archives and their manifests.
    """

    rank: tuple[int, ...]
    kernel: ArchivedKernel
    passed: tuple[str, ...]
    config: dict[str, Any] | None
    choices: dict[str, Any]


class Launcher:
    """A function that is launched from archives: `launcher.call(grid, *args, **kwargs)`."""

    def __init__(self, function: Any, constexprs: frozenset[str], archives: Archives) -> None:
        self.function = function
        self.constexprs = constexprs
        self.signature = inspect.signature(function)
        self.names = tuple(self.signature.parameters)
        self.options = tuple(name for name in DEFAULTS if name not in self.names)
        self._archives = archives
        self._kernels: list[ArchivedKernel] | None = None
        self._reason = ""
        self._loaded: set[tuple[int, int | None]] = set()  # kernels, by order, and devices
        self._plans: dict[Any, Callable[..., Any]] = {}
        self.call: Callable[..., None] = self._write_call()

    # -- the hot path ----------------------------------------------------------------------------

    def _write_call(self) -> Callable[..., None]:
        """Return the function that launches, written for this signature."""
        parameters, key, arguments = list[str](), list[str](), list[str]()
        scope: dict[str, Any] = {
            "aotc_self": self,
            "aotc_plans": self._plans,
            "aotc_misses": _FAILED,
        }
        for name, parameter in self.signature.parameters.items():
            has_default = parameter.default is not inspect.Parameter.empty
            scope[f"aotc_default_{name}"] = parameter.default
            parameters.append(f"{name}=aotc_default_{name}" if has_default else name)
            if name in self.constexprs:
                key += [name, f"{name}.__class__"]
            else:
                key.append(f"{name}.__class__")
                arguments.append(name)
        first_default = next((i for i, one in enumerate(parameters) if "=" in one), len(parameters))
        # Constants that heuristics compute may follow parameters that have a default.
        parameters = [
            one if i < first_default or "=" in one else f"{one}=aotc_missing"
            for i, one in enumerate(parameters)
        ]
        scope["aotc_missing"] = _MISSING
        options = [f"{name}=None" for name in self.options]
        head = ", ".join([_GRID, "/", *parameters, "*", *options, "**aotc_others"])
        key += self.options
        last = [f"aotc_last_{i}" for i in range(len(key))]
        is_last = " and ".join(f"{one} is {before}" for one, before in zip(key, last, strict=True))
        scope["aotc_last"] = (None, *(_MISSING for _ in key))
        bound = ", ".join(f"{name!r}: {name}" for name in self.names)
        given = ", ".join(f"{name!r}: {name}" for name in self.options)
        passed = ", ".join([_GRID, *arguments])
        # The last launch's key and plan are one object: threads see both or neither.
        text = f"""
def call({head}):
    global aotc_last
    if callable({_GRID}):
        {_GRID} = {_GRID}({{{bound}}})
    aotc_plan, {", ".join(last)} = aotc_last
    if aotc_others or not ({is_last}):
        aotc_key = ({", ".join(key)},)
        aotc_plan, aotc_kept = aotc_self.find(aotc_key, {{{bound}}}, {{{given}}}, aotc_others)
        if aotc_kept:
            aotc_last = (aotc_plan, *aotc_key)
    try:
        aotc_plan({passed})
    except aotc_misses as error:
        aotc_self.failed(error, {_GRID}, {{{bound}}}, {{{given}}})
"""
        exec(text, scope)  # noqa: S102 - as dataclasses do
        return scope["call"]

    # -- what is done once -----------------------------------------------------------------------

    def find(
        self,
        key: tuple[Any, ...],
        bound: Mapping[str, Any],
        options: Mapping[str, Any],
        others: Mapping[str, Any],
    ) -> tuple[Callable[..., Any], bool]:
        """Return what launches with these constants, options and classes of arguments, if kept.

        A constant that may change, such as a list, is in no key.

        Raises: NotInArchiveError if no kernel was built for them; KeyError for an unknown keyword.
        """
        self._check(bound, options, others)
        try:
            known = self._plans.get(key)
        except TypeError:
            return self._plan(bound, options), False
        if known is None:
            known = self._plan(bound, options)
            if self._has_fixed(bound):
                return known, False
            self._plans[key] = known
        return known, True

    def _has_fixed(self, bound: Mapping[str, Any]) -> bool:
        """Return whether a kernel was built for a value that is in no key: each launch compares it."""
        runtime = bound.keys() - self.constexprs
        return any(not runtime.isdisjoint(one.info.constants) for one in self._kernels or ())

    def _plan(self, bound: Mapping[str, Any], options: Mapping[str, Any]) -> Callable[..., Any]:
        found = self.candidates(bound, options)
        if not found:
            raise self.miss(bound, options, self._reason or _OTHER_CONSTANTS)
        runtime = {name: value for name, value in bound.items() if name not in self.constexprs}
        if len(found) == 1:
            return _call_of(found[0], tuple(runtime))
        return several(found, runtime)

    def _check(
        self, bound: Mapping[str, Any], options: Mapping[str, Any], others: Mapping[str, Any]
    ) -> None:
        missing = [name for name, value in bound.items() if value is _MISSING]
        if missing:
            raise TypeError(f"{self.function.__name__} is launched without {', '.join(missing)}")
        for name, value in others.items():
            if name in ("enable_fp_fusion", "launch_cooperative_grid"):
                if value != (name == "enable_fp_fusion"):
                    raise self.miss(bound, {**options, name: value}, f"{name}={value} is not built")
            elif name not in _IGNORED:
                raise KeyError(f"Keyword argument {name} was specified but unrecognised")

    def candidates(self, bound: Mapping[str, Any], options: Mapping[str, Any]) -> list[Candidate]:
        """Return the kernels that were built with these constants and options, the best first."""
        if self._kernels is None:
            self._kernels, self._reason = self._archives.kernels_of(self.function)
        devices = {_device_of(value) for value in bound.values()} - {-1}
        asked = {**{n: bound[n] for n in DEFAULTS if n in bound}, **options}
        found = [
            one
            for kernel in self._kernels
            for one in self._of_kernel(kernel, bound, asked)
            if self._is_loaded(kernel, devices or {None})
        ]
        return sorted(found, key=lambda one: one.rank)

    def _is_loaded(self, kernel: ArchivedKernel, devices: Iterable[int | None]) -> bool:
        """Load a kernel where its arguments lie; return whether it runs there."""
        try:
            for device in devices:
                kernel.load(device)
                self._loaded.add((kernel.order, device))
        except ArchError as error:
            self._reason = str(error)
            return False
        return True

    def _of_kernel(
        self, kernel: ArchivedKernel, bound: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> Iterator[Candidate]:
        """Yield the configs of a kernel that were built with what the launch passes."""
        info = kernel.info
        params = {one.name: one for one in info.params}
        if not params.keys() <= bound.keys() - self.constexprs:
            return
        width = 0
        rest: dict[str, Any] = {}  # what only the config can decide
        for name, value in bound.items():
            if name in params:
                param = params[name]
                if not _takes(param, self._is_annotated(name), value):
                    return
                width += int(param.element[1:]) if param.element[:1] in "iu" else 0
            elif name in info.choices:
                if not any(is_same_constant(value, one) for one in info.choices[name]):
                    return
            elif name in info.constants:
                if not self._is_built(kernel, name, value):
                    return
            else:
                rest[name] = value
        promises = sum(one.is_promise for one in info.guards)
        promises += sum(name in info.constants for name in bound.keys() - self.constexprs)
        choices = {
            name: next(one for one in values if is_same_constant(bound[name], one))
            for name, values in info.choices.items()
        }
        for at, config in enumerate(info.configs):
            if all(self._is_default(name, value, config) for name, value in rest.items()):
                strange = _strangeness(config, asked)
                if strange is not None:
                    rank = (strange, -promises, width, kernel.order, at)
                    whole = config if len(info.configs) > 1 else None
                    yield Candidate(rank, kernel, tuple(params), whole, choices)

    def _is_annotated(self, name: str) -> bool:
        """Return whether a parameter's annotation says its type, whatever is passed."""
        said = self.signature.parameters[name].annotation
        text = said if isinstance(said, str) else getattr(said, "name", None) or repr(said)
        return text.strip().rpartition(".")[2] in TYPE_NAMES

    @staticmethod
    def _is_built(kernel: ArchivedKernel, name: str, value: Any) -> bool:
        function = kernel.functions.get(name)
        return is_same_constant(value, function or kernel.info.constants[name])

    def _is_default(self, name: str, value: Any, config: Mapping[str, Any]) -> bool:
        """Return whether a config has a constant, or the function's default is it."""
        if name in config:
            return is_same_constant(value, config[name])
        default = self.signature.parameters[name].default
        return default is not inspect.Parameter.empty and is_same_constant(value, default)

    def probe(self, bound: Mapping[str, Any], options: Mapping[str, Any]) -> Candidate | None:
        """Return the kernel that a launch would take, if there is one."""
        for one in self.candidates(bound, options):
            try:
                one.kernel.kernel.select(
                    [bound[name] for name in one.passed],
                    grid=1,
                    config=one.config,
                    choices=one.choices,
                )
            except _MISSES:
                continue
            return one
        return None

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of a launch by parameter, and its options.

        Raises: TypeError as a call does.
        """
        given = {name: value for name, value in kwargs.items() if name in self.names}
        bound = self.signature.bind(*args, **given)
        bound.apply_defaults()
        return dict(bound.arguments), {name: kwargs.get(name) for name in self.options}

    # -- what goes wrong -------------------------------------------------------------------------

    def failed(
        self, error: Exception, grid: Any, bound: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """Load what is not loaded on this device and launch again, or say that nothing fits."""
        loaded = set(self._loaded)
        found = self.candidates(bound, options)
        # The first launch on a device: its tensors say so, or the current context.
        if found and (loaded != self._loaded or getattr(error, "field", "") == "stream"):
            runtime = {n: v for n, v in bound.items() if n not in self.constexprs}
            try:
                several(found, runtime)(grid, *runtime.values())
            except _MISSES as again:
                raise self.miss(bound, options, str(again)) from again
            return
        raise self.miss(bound, options, str(error)) from error

    def miss(
        self, bound: Mapping[str, Any], options: Mapping[str, Any], reason: str
    ) -> NotInArchiveError:
        """Return the error of a launch that no archive has."""
        return not_in_archive(self.function, self.constexprs, bound, options, reason)


_MISSING = object()
_FAILED = (*_MISSES, StateError)
_OTHER_CONSTANTS = "its kernels were built with other constants, options, or kinds of arguments"


def _takes(param: Any, is_annotated: bool, value: Any) -> bool:  # noqa: FBT001
    """Return whether a parameter of a kernel is of the type that Triton gives an argument."""
    if param.kind == "pointer":
        return is_pointer(value) or (value is None and param.may_be_none)
    if param.kind != "scalar":
        return False
    kind = scalar_type(value)
    if not kind or is_annotated:  # then the annotation has said the type
        return bool(kind)
    is_wider = kind in ("i32", "i64") and param.element in ("i32", "i64", "u64")
    return is_wider or kind == param.element


def _strangeness(config: Mapping[str, Any], asked: Mapping[str, Any]) -> int | None:
    """Return how many options are not Triton's defaults though none were asked for.

    None: the config has not what was asked for.
    """
    strange = 0
    for name, default in DEFAULTS.items():
        built, wanted = config.get(name, default), asked.get(name)
        if wanted is not None and wanted != built:
            return None
        strange += wanted is None and built != default
    return strange


def _call_of(one: Candidate, runtime: Sequence[str]) -> Callable[..., Any]:
    """Return a function of the grid and the runtime arguments that launches a kernel."""
    scope: dict[str, Any] = {"aotc_kernel": one.kernel.kernel, "aotc_config": one.config}
    words = [f"grid={_GRID}", *(["config=aotc_config"] if one.config else [])]
    names = {*one.passed, *one.choices}
    if names.isdisjoint(_OWN_WORDS):
        for name, value in one.choices.items():
            scope[f"aotc_choice_{name}"] = value
            words.append(f"{name}=aotc_choice_{name}")
        call = f"aotc_kernel({', '.join([*one.passed, *words])})"
    else:
        scope["aotc_choices"] = one.choices
        passed = ", ".join(f"{name!r}: {name}" for name in one.passed)
        call = f"aotc_kernel.launch({{{passed}}}, {', '.join(words)}, choices=aotc_choices)"
    exec(f"def plan({', '.join([_GRID, *runtime])}):\n    {call}\n", scope)  # noqa: S102
    return scope["plan"]


def several(found: Sequence[Candidate], runtime: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function that launches the first of several kernels that fits.

    The loader says whether one does. Which one it was is kept by what tells these kernels apart:
    values that are promised something, and dtypes if they differ.
    """
    told = "\n".join(guard.text for one in found for guard in one.kernel.info.guards)
    promised = set(re.findall(r"\w+", told))
    elements: dict[str, set[str]] = {}
    for one in found:
        for param in one.kernel.info.params:
            elements.setdefault(param.name, set()).add(param.element)
    parts: list[str] = []
    for name, value in runtime.items():
        differs = len(elements.get(name, ())) > 1 or not elements.get(name, set()) <= _PLAIN
        if hasattr(value, "data_ptr"):
            parts += [f"{name}.dtype"] * differs
            parts += [f"{name}.data_ptr() % 16 == 0"] * (name in promised)
        elif value is not None and (differs or name in promised):
            parts.append(f"aotc_seen({name})" if is_pointer(value) else _SEEN.format(name))
    scope: dict[str, Any] = {
        "aotc_seen": _seen,
        "aotc_known": {},
        "aotc_misses": _MISSES,
        "aotc_first": _First([_call_of(one, tuple(runtime)) for one in found]),
    }
    passed = ", ".join([_GRID, *runtime])
    exec(  # noqa: S102 - as dataclasses do
        f"""
def plan({passed}):
    aotc_key = ({"".join(f"{part}, " for part in parts)})
    aotc_plan = aotc_known.get(aotc_key)
    if aotc_plan is not None:
        try:
            return aotc_plan({passed})
        except aotc_misses:
            pass  # something that the key does not have
    aotc_known[aotc_key] = aotc_first({passed})
""",
        scope,
    )
    return scope["plan"]


class _First:
    """Launch by the first of several functions that does not refuse; return it."""

    def __init__(self, plans: Sequence[Callable[..., Any]]) -> None:
        self._plans = plans

    def __call__(self, *arguments: Any) -> Callable[..., Any]:
        reasons: list[Exception] = []
        for plan in self._plans:
            try:
                plan(*arguments)
            except _MISSES as error:  # noqa: PERF203 - the usual case is the first
                reasons.append(error)
            else:
                return plan
        raise reasons[0]


_SEEN = "(aotc_value := {0}) == 1, aotc_value % 16 == 0, -2147483648 <= aotc_value <= 2147483647"
_PLAIN = frozenset(SCALARS)


def _seen(value: Any) -> Any:
    address = address_of(value)
    return dtype_of(value), address is not None and address % 16 == 0


def _device_of(value: Any) -> int:
    """Return the device that a tensor lies on, -1 if it does not say so."""
    if hasattr(value, "get_device"):
        return value.get_device()
    index = getattr(getattr(value, "device", None), "index", None)
    return index if isinstance(index, int) else -1
