"""Verify variants on a GPU: launch the cubin as a host would.

Each variant becomes an archive of its own, opened by `aotc.load`. So the cubin is checked together
with its argument layout, guards and grid, and no other variant can be selected.

Invariant: a launch gets the same inputs as in the emulator, seed for seed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

from aotc import runtime
from aotc.compiler import compile_kernel, compile_ptx
from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import Expression
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, Kernel, Value
from aotc.package.builder.assemble import assemble
from aotc.package.builder.workers import compile_both_ways
from aotc.package.verify.subjects import Subject, VerifyOptions
from aotc.package.verify.variants import VariantResult, verify_variant
from aotc.verify.checks.check import Execute, Execution, ExecutionFault, Unsuited
from aotc.verify.checks.device import DeviceBuffers, Driver, NoDeviceError, NoRoomError
from aotc.verify.checks.reference import Reference

_NAME = "verified"
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def verify_on_device(subject: Subject, options: VerifyOptions) -> VariantResult:
    """Verify one variant on the first GPU of this machine.

    Raises:
        ManifestError: there is no GPU.
        CompileError: the kernel cannot be compiled.
    """
    driver = open_driver()
    kernel = _record(subject)
    runs: dict[Expression | None, Execute] = {}
    with ExitStack() as libraries:
        for variant in kernel.variants:
            alone = kernel.alone(variant)
            content = archives.encode(Archive(_NAME, "0.0.0", (alone,)))
            try:
                library = libraries.enter_context(runtime.load(content))
            except runtime.ArchError:
                reason = f"the GPU of this machine does not run {subject.target}"
                return VariantResult(subject.label, subject.kernel, subject.target.name, (), reason)
            # A variant of an archive is verified by itself, with or without a condition.
            condition = None if subject.archived is not None else variant.condition
            runs[condition] = DeviceRun(driver, library, alone, subject)
        return verify_variant(subject, options, compile_ptx, runs.__getitem__)


@cache
def open_driver() -> Driver:
    """Return the driver, opened once per process. Raises: ManifestError without a GPU."""
    try:
        return Driver()
    except NoDeviceError as error:
        message = f"expected a GPU to verify on, got {error}"
        remedies = (error.remedy, "without --device, variants are emulated")
        raise ManifestError(message, remedy="; ".join(filter(None, remedies))) from None


def _record(subject: Subject) -> Kernel:
    """Return a kernel record with only this variant, or its two forms."""
    if subject.archived is not None:
        kernel, variant = subject.archived
        return kernel.alone(variant)
    assert subject.expanded is not None
    expansion, spec = subject.expanded
    return assemble(expansion, [(spec, compile_both_ways(compile_kernel, spec.request))]).kernel


@dataclass(frozen=True, slots=True)
class DeviceRun:
    """Run a variant's launches on the GPU."""

    driver: Driver
    library: runtime.Library
    kernel: Kernel
    subject: Subject

    def __call__(self, reference: Reference) -> Execution:
        """Return the contents of the buffers after the launch. Raises: ExecutionFault."""
        variant = self.kernel.variants[0]
        with DeviceBuffers(self.driver, reference) as buffers:
            args: list[object] = []
            for param in self.kernel.params:
                buffer = reference.buffer(param.name)
                if buffer is not None and buffer.shape:
                    address = buffers.pointer(buffer), buffer.pointee.name
                    args.append(runtime.Tensor(*address, buffer.shape, buffer.strides))
                elif buffer is not None:
                    pointer = buffers.pointer(buffer)
                    args.append(runtime.Pointer(pointer, buffer.pointee.name))
                elif param.name in reference.launch.scalars:
                    args.append(reference.launch.scalars[param.name])
                else:
                    args.append(self.subject.values[param.name])
            choices = zip((c.name for c in self.kernel.choices), variant.choices, strict=True)
            grid = None if variant.grid else reference.launch.grid
            self._launch(tuple(args), grid, dict(choices) or None)
            return Execution(buffers.fetch())

    def _launch(
        self,
        args: tuple[object, ...],
        grid: tuple[int, ...] | None,
        choices: dict[str, Value] | None,
    ) -> None:
        """Launch and wait. Raises: ExecutionFault; Unsuited without enough free memory."""
        kernel, scratch = self.library[self.kernel.name], None
        try:
            size_bytes = kernel.select(args, grid=grid, choices=choices).scratch_bytes
            if size_bytes:
                scratch = self.driver.allocate(size_bytes), size_bytes
            kernel.launch(args, grid=grid, choices=choices, scratch=scratch)
            self.driver.synchronize()
        except runtime.AotcError as error:
            # The driver allocates local memory, for registers that are spilled, at a launch.
            if error.cuda == _OUT_OF_MEMORY:
                raise Unsuited("the GPU does not have its local memory free") from None
            raise ExecutionFault(f"the launch is refused: {error}") from error
        except NoRoomError:
            raise Unsuited("the GPU does not have its scratch memory free") from None
        finally:
            if scratch is not None:
                self.driver.free(scratch[0])
