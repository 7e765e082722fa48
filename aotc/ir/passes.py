"""The pass runner: runs an ordered list of passes over a kernel, and watches.

One callback gives access to the IR between two passes, checks after each and timings, so no pass
knows of them.

Invariant: a pass gets valid IR and leaves valid IR; `verify_each` checks it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import DiagnosticError, IRError
from aotc.ir.text import print_kernel
from aotc.ir.verify import verify

ContextT = TypeVar("ContextT")
Pass = Callable[[Kernel, ContextT], None]


@dataclass
class Observer:
    """Watch a pipeline: check, print and time its passes.

    `on_pass` is called after each pass with its name and the kernel. `seconds` sums the time of
    each pass by name, in the order of first run, as `clock` tells it.
    """

    verify_each: bool = False
    print_after: Sequence[str] = ()
    print_to: Callable[[str], None] | None = None
    on_pass: Callable[[str, Kernel], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    clock: Callable[[], float] = time.perf_counter

    def after(self, name: str, kernel: Kernel, elapsed_seconds: float) -> None:
        """Record the end of pass `name`. Raises: IRError if it left invalid IR."""
        self.seconds[name] = self.seconds.get(name, 0.0) + elapsed_seconds
        if self.print_to is not None and name in self.print_after:
            self.print_to(f"// after {name}\n{print_kernel(kernel)}")
        if self.verify_each:
            verify(kernel)
        if self.on_pass is not None:
            self.on_pass(name, kernel)


@dataclass(frozen=True)
class Pipeline(Generic[ContextT]):
    """Hold passes in the order they run."""

    passes: tuple[Pass[ContextT], ...]

    def run(self, kernel: Kernel, context: ContextT, observer: Observer | None = None) -> None:
        """Run every pass on `kernel`, in place. Raises: IRError, with the pass named."""
        clock = time.perf_counter if observer is None else observer.clock
        for function in self.passes:
            name = function.__name__
            start = clock()
            try:
                function(kernel, context)
                if observer is not None:
                    observer.after(name, kernel, clock() - start)
            except DiagnosticError:
                raise
            except IRError as error:
                raise IRError(f"pass {name}: {error}", error.loc) from error
