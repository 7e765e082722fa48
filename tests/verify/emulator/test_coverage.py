"""A rule exists for every emitted instruction: of all ops, kernels and libdevice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.backend import emit_ptx
from aotc.backend.llvm import binding
from aotc.backend.wheels import find_file
from aotc.compiler import autotune_configs, compile_ptx
from aotc.ir.types import SCALARS
from aotc.package.manifest import read as manifest
from aotc.package.manifest.variant_grid import expand
from aotc.target import TARGETS
from aotc.verify.emulator.compute.registry import COMPUTES
from aotc.verify.emulator.engine.registry import executing
from aotc.verify.emulator.engine.terminators import END_RULES
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.instructions import RULE_MODULES
from aotc.verify.emulator.text.parse import parse_module
from tests.backend.programs import Program, row_layout
from tests.backend.test_rules_arith import every_operation

ROOT = Path(__file__).parents[3]
MANIFESTS = [ROOT / "kernels.toml", ROOT / "tests/support/layout_cases/cases.toml"]
ARCHES = ["sm_80", "sm_90a", "sm_120a"]

assert RULE_MODULES  # all rules are declared


def unknown(ptx: str) -> dict[str, str]:
    """Return the instructions of a text without a rule, and the reason."""
    missing: dict[str, str] = {}
    kernels = parse_module(ptx).kernels.values()
    instructions = [candidate for kernel in kernels for candidate in kernel.instructions]
    assert instructions
    for instruction in instructions:
        rule = executing(instruction) or COMPUTES.get(instruction.opcode)
        if rule is None and instruction.opcode not in END_RULES:
            missing[instruction.text] = "no rule"
        elif rule is not None:
            try:
                rule(instruction)
            except Unsupported as error:
                missing[instruction.text] = str(error)
    return missing


def test_instructions_without_a_rule_are_found() -> None:
    head = ".version 8.6\n.target sm_90a\n.address_size 64\n.entry k()\n{\n.reg .b32 %r<3>;\n"
    text = head + "add.huge.s32 %r1, %r2, 5;\nvadd4.u32 %r1, %r2, %r1;\nret;\n}\n"
    assert unknown(text) == {
        "add.huge.s32 %r1, %r2, 5": "modifier .huge",
        "vadd4.u32 %r1, %r2, %r1": "no rule",
    }


@pytest.mark.parametrize("arch", ARCHES)
def test_every_elementwise_op_of_every_type(arch) -> None:
    layout = row_layout(32)
    for is_float in (True, False):  # a kernel has no room for more parameters
        program = Program()
        for element in SCALARS.values():
            if not element.is_bool and element.is_float == is_float:
                x, y = program.load(element, layout), program.load(element, layout)
                for make in every_operation(element):
                    program.store(program.add(make(x, y)).out)
        assert unknown(emit_ptx(program.llvm_ir(TARGETS[arch]), TARGETS[arch])) == {}


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_kernel(path, arch) -> None:
    for spec in manifest.load(str(path)).kernels:
        variants = expand(spec, [TARGETS["sm_90a"]], autotune_configs).variants
        # The variant with most promises for one architecture, with fewest for the others.
        variant = variants[0 if arch == "sm_90a" else -1]
        compiled = compile_ptx(replace(variant.request, target=arch))
        assert unknown(compiled.ptx) == {}, spec.name


# ---- libdevice --------------------------------------------------------------------------------

DEFINED = re.compile(r"^define (?:[a-z_]+ )*?(\w+) @(__nv_\w+)\(([^)]*)\)", re.MULTILINE)


def functions() -> Iterator[tuple[str, str, list[str]]]:
    """Return result type, name and parameter types of all libdevice functions."""
    path = find_file("nvidia-nvvm", "nvvm/libdevice/libdevice.10.bc")
    module = binding().parse_bitcode(path.read_bytes())
    for result, name, parameters in DEFINED.findall(str(module)):
        yield (
            result,
            name,
            [parameter.split()[0] for parameter in parameters.split(",") if parameter.strip()],
        )


@pytest.mark.slow
def test_every_function_of_libdevice() -> None:
    lines: list[str] = []
    for result, name, types in functions():
        params = ", ".join(["ptr %out", *(f"{kind} %a{i}" for i, kind in enumerate(types))])
        args = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(types))
        lines += [f"declare {result} @{name}({', '.join(types)})"]
        lines += [f"define ptx_kernel void @call{name}({params}) {{"]
        if result == "void":
            lines += [f"call void @{name}({args})"]
        else:
            lines += [f"%r = call {result} @{name}({args})", f"store {result} %r, ptr %out"]
        lines += ["ret void", "}"]
    assert len(lines) > 1500
    assert unknown(emit_ptx("\n".join(lines) + "\n", TARGETS["sm_90a"])) == {}
