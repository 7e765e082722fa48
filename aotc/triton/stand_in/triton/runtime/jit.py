"""`JITFunction`: a function launched from archives."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from aotc.runtime._native import Jitted
from aotc.triton.extract import source_of
from aotc.triton.installation import PROBE, find, launch, launcher_attribute, warm


class MockTensor:
    """A placeholder for a tensor of a dtype, for warm-up without a launch."""

    def __init__(self, dtype: Any, shape: Any = None) -> None:
        self.dtype = dtype
        self.shape = [1] if shape is None else shape

    @staticmethod
    def wrap_dtype(value: Any) -> Any:
        """Wrap a dtype of torch in a tensor; return other values unchanged."""
        is_dtype = value.__class__.__module__ == "torch" and value.__class__.__name__ == "dtype"
        return MockTensor(value) if is_dtype else value

    @staticmethod
    def data_ptr() -> int:
        """Return an aligned address, so that promises hold."""
        return 0


class KernelInterface:
    """Base of classes launched as `kernel[grid](…)`."""

    def __getitem__(self, grid: Any) -> Any:
        return functools.partial(self.run, grid=grid, warmup=False)

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
        """Load the kernels for a launch; dtypes may replace tensors."""
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **kwargs)

    def run(self, *args: Any, grid: Any, warmup: Any, **kwargs: Any) -> Any:
        """Launch."""
        raise NotImplementedError


class KernelParam:
    """A parameter of a jitted function."""

    def __init__(
        self,
        num: Any,
        parameter: Any,
        do_not_specialize: Any = False,  # noqa: FBT002 - as Triton has it
        do_not_specialize_on_alignment: Any = False,  # noqa: FBT002 - as above
    ) -> None:
        self.num = num
        # Archived kernels are already specialized.
        self.do_not_specialize = do_not_specialize
        self.do_not_specialize_on_alignment = do_not_specialize_on_alignment
        self.name = parameter.name
        self.default = parameter.default
        self.has_default = parameter.default is not inspect.Parameter.empty
        annotation = parameter.annotation
        self.annotation = "" if annotation is inspect.Parameter.empty else annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        self.is_constexpr = "constexpr" in text
        self.is_const = "const" in text and not self.is_constexpr


class JITFunction(Jitted, KernelInterface):
    """A function of Triton's language; it runs on GPUs only."""

    aotc_launcher = launcher_attribute

    def __init__(  # programs inspect the signature, and copy functions by it
        self,
        fn: Any,
        version: Any = None,
        do_not_specialize: Any = None,
        do_not_specialize_on_alignment: Any = None,
        debug: Any = None,
        noinline: Any = None,
        repr: Any = None,  # noqa: A002 - as Triton has it
        launch_metadata: Any = None,
        **_: Any,
    ) -> None:
        self.fn = fn
        self.signature = inspect.signature(fn)
        self.version, self.debug, self.noinline = version, debug, noinline
        self.launch_metadata, self._repr = launch_metadata, repr
        self.do_not_specialize: Any = do_not_specialize or []
        unaligned: Any = do_not_specialize_on_alignment or []
        self.do_not_specialize_on_alignment = unaligned
        self.params = [
            KernelParam(
                i,
                parameter,
                i in self.do_not_specialize or parameter.name in self.do_not_specialize,
                i in unaligned or parameter.name in unaligned,
            )
            for i, parameter in enumerate(self.signature.parameters.values())
        ]
        self.arg_names = [parameter.name for parameter in self.params]
        self.pre_run_hooks: list[Callable[..., Any]] = []
        functools.update_wrapper(self, fn)
        self.__globals__: dict[str, Any] = fn.__globals__

    @functools.cached_property
    def _source_lines(self) -> tuple[list[str], int]:
        return inspect.getsourcelines(self.fn)

    @functools.cached_property
    def raw_src(self) -> list[str]:
        """The lines of the function, with its decorators."""
        return self._source_lines[0]

    @functools.cached_property
    def starting_line_number(self) -> int:
        """The line of the first decorator."""
        return self._source_lines[1]

    @functools.cached_property
    def _place_of_def(self) -> tuple[int, int]:
        for index, line in enumerate(self.raw_src):
            if line.lstrip().startswith("def "):
                return self.starting_line_number + index, len(line) - len(line.lstrip())
        return self.starting_line_number, 0

    @functools.cached_property
    def def_file_line_number(self) -> int:
        """The line of the `def`."""
        return self._place_of_def[0]

    @functools.cached_property
    def def_file_col_number(self) -> int:
        """The column of the `def`."""
        return self._place_of_def[1]

    @functools.cached_property
    def file_name(self) -> str:
        """The file of the function."""
        return self.fn.__code__.co_filename

    @property
    def src(self) -> str:
        """The source of the function, without its decorators."""
        changed: str | None = self.__dict__.get("_src")
        return changed or source_of(self.fn)

    @property
    def cache_key(self) -> str:
        """A digest of the source."""
        return hashlib.sha256(self.src.encode()).hexdigest()

    @property
    def repr(self) -> Callable[[Any], str]:
        """The function naming a specialised kernel."""
        return self._repr or (lambda _: self.fn.__name__)

    def get_capture_scope(self) -> dict[str, Any]:
        """Return the function's globals and captured variables."""
        return self.fn.__globals__ | inspect.getclosurevars(self.fn).nonlocals

    def _unsafe_update_src(self, new_src: str) -> None:
        """Replace the source: launches then use the archive's kernels for it."""
        self._src = new_src
        self.__dict__.pop("aotc_launcher", None)

    def add_pre_run_hook(self, hook: Any) -> Any:
        """Call a function before each launch, with the launch's arguments."""
        self.pre_run_hooks.append(hook)

    def run(self, *args: Any, grid: Any, warmup: Any = False, **kwargs: Any) -> Any:
        """Launch; or find the kernel, or load it, depending on `warmup`."""
        if warmup is PROBE:
            return find(self, args, kwargs)
        if warmup:
            return warm(self, args, kwargs)
        return launch(self, grid, args, kwargs)

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")

    def __repr__(self) -> str:
        return f"JITFunction({self.fn.__module__}:{self.fn.__qualname__})"


def jit(fn: Any = None, **options: Any) -> Any:
    """Decorate a function to be launched from archives."""
    if fn is None:
        return functools.partial(JITFunction, **options)
    return JITFunction(fn, **options)


def constexpr_function(fn: Any) -> Any:
    """Return the function unchanged, for calls on the host."""
    return fn
