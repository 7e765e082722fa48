"""LLVM in process, through llvmlite: no other file uses it.

llvmlite is loaded on first use. Loading it takes longer than all the rest of the compiler, and
printing the stages before PTX does not need it. It has no type information, so its objects are
`Any` here, and only text leaves this file.

Invariant: a pass manager is run once; a second run aborts the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from aotc.ir.diagnostics import IRError
from aotc.target import Target

_TRIPLE = "nvptx64-nvidia-cuda"


@lru_cache(maxsize=1)
def binding() -> Any:
    """Return `llvmlite.binding` with the NVPTX target ready."""
    llvm = import_module("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


@lru_cache(maxsize=16)
def target_machine(target: Target) -> Any:
    """Return the code generator of a target.

    Optimisation level 3 would number all values once more. This is slow where loops carry tiles,
    and adds nothing to the work of ptxas.
    """
    generator = binding().Target.from_triple(_TRIPLE)
    return generator.create_target_machine(cpu=target.name, features=target.llvm_features, opt=2)


def parse(llvm_ir: str) -> Any:
    """Parse and verify a module. Raises: IRError if it is invalid."""
    try:
        module = binding().parse_assembly(llvm_ir)
        module.verify()
    except RuntimeError as error:
        raise IRError(f"invalid LLVM IR: {error}") from error
    return module


def run_passes(module: Any, passes: Sequence[str]) -> None:
    """Run passes over a module, in order, by their names in llvmlite."""
    llvm = binding()
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, llvm.create_pass_builder(None, llvm.create_pipeline_tuning_options()))
