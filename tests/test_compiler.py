"""The join of the stages: requests in, artifacts out, and each stage by itself."""

from __future__ import annotations

import builtins
import importlib.util
import linecache
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aotc
from aotc import backend
from aotc.compiler import CompiledKernel, compile_kernel
from aotc.edited_stage import EditedStage, TextStage
from aotc.ir.diagnostics import CompileError, ResourceError
from aotc.limits import COMPILE_LIMITS
from aotc.package.archive.layout import LIMITS
from aotc.stages import LISTINGS, TEXT_STAGES, continue_from, stage_content, stage_text
from tests.support.requests import request_of

SOURCE = str(Path(__file__).parents[1] / "kernels" / "elementwise.py")
SIGNATURE = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n_elements": "i32"}
REQUEST = request_of(
    SOURCE, "vector_add_kernel", tuple(SIGNATURE.items()), (("BLOCK", 1024),), "sm_90a", num_warps=8
)


def test_every_stage_has_a_text() -> None:
    kernel = aotc.compile(
        f"{SOURCE}:vector_add_kernel",
        signature=SIGNATURE,
        constants={"BLOCK": 1024},
        target="sm_90a",
        num_warps=8,
    )
    assert kernel.cubin[:4] == b"\x7fELF"
    for stage, sign in {
        "tile": "tile.load",
        "gpu": "#ll<",
        "llvm": "define ptx_kernel",
        "ptx": ".target sm_90a",
        "sass": "LDG.E",
        "cubin": ".nv.info",
    }.items():
        assert sign in kernel.asm[stage], stage
        assert stage in ("cubin", *LISTINGS) or kernel.asm[stage] == stage_text(REQUEST, stage)
    assert kernel.metadata.spill_bytes == 0
    assert [slot.name for slot in kernel.metadata.params] == list(SIGNATURE)
    assert [slot.offset for slot in kernel.metadata.params] == [0, 8, 16, 24]


@pytest.mark.parametrize("start", TEXT_STAGES)
def test_a_stage_is_read_back_and_continued_from(start: TextStage) -> None:
    edited = EditedStage(start, stage_text(REQUEST, start), "k.txt")
    for goal in (*TEXT_STAGES[TEXT_STAGES.index(start) :], *LISTINGS, "cubin"):
        assert continue_from(edited, goal, REQUEST) == stage_content(REQUEST, goal), goal


def test_equal_requests_give_equal_artifacts() -> None:
    first, two = compile_kernel(REQUEST), compile_kernel(REQUEST)
    assert first.cubin == two.cubin
    assert first.metadata == two.metadata


def test_a_live_function_is_compiled_from_its_source(tmp_path: Path) -> None:
    path = tmp_path / "live.py"
    path.write_text(
        "import aotc.language as tl\n\n\n@tl.jit\ndef store_one(p):\n    tl.store(p, 1.0)\n"
    )
    namespace: dict[str, object] = {"__name__": "live"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    kernel = aotc.compile(namespace["store_one"], signature={"p": "*fp32"})  # type: ignore[arg-type]
    assert "tile.store" in kernel.asm["tile"]
    assert kernel.metadata.name == "store_one"


def test_a_live_function_may_be_a_constant(tmp_path: Path) -> None:
    path = tmp_path / "live.py"
    path.write_text(
        "import aotc.language as tl\n\n\n@tl.jit\ndef root(x):\n    return tl.sqrt(x)\n\n\n"
        "@tl.jit\ndef apply(p, F: tl.constexpr):\n    tl.store(p, F(tl.load(p)))\n"
    )
    namespace: dict[str, object] = {"__name__": "live"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    kernel = aotc.compile(
        namespace["apply"],  # type: ignore[arg-type]
        signature={"p": "*fp32"},
        constants={"F": namespace["root"]},
    )
    assert "arith.sqrt" in kernel.asm["tile"]


@pytest.mark.parametrize("kernel", ["kernel", "nowhere.py", ":kernel", 3, print])
def test_what_is_no_kernel_is_said(kernel: object) -> None:
    with pytest.raises(CompileError):
        aotc.compile(kernel, signature={})  # type: ignore[arg-type]


def test_too_many_warps(tmp_path: Path) -> None:
    with pytest.raises(
        CompileError, match="num_warps = 32 in 2 groups takes 2048 threads, the limit"
    ):
        aotc.compile(
            f"{SOURCE}:vector_add_kernel",
            signature=SIGNATURE,
            constants={"BLOCK": 1024},
            num_warps=32,
            num_consumer_groups=2,
        )


def test_modifiers_reach_the_instructions(tmp_path: Path) -> None:
    path = tmp_path / "modifiers.py"
    path.write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        "def k(x, y, B: tl.constexpr):\n"
        "    i = tl.arange(0, B)\n"
        '    v = tl.load(x + i, cache_modifier=".cg")\n'
        '    w = tl.load(x + i, eviction_policy="evict_last")\n'
        "    z = tl.load(x + i, volatile=True)\n"
        '    tl.store(y + i, v + w + z, cache_modifier=".cs", eviction_policy="evict_first")\n'
    )
    kernel = aotc.compile(
        f"{path}:k", signature={"x": "*fp32:16", "y": "*fp32:16"}, constants={"B": 512}
    )
    for text in (
        "ld.global.cg.v4",
        "ld.global.L1::evict_last.L2::cache_hint",
        "ld.volatile.global",
        "st.global.cs.L2",
    ):
        assert text in kernel.asm["ptx"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_warps": 3}, "expected a power of two from 1 to 32 for num_warps, got 3"),
        ({"num_warps": 0}, "expected a power of two from 1 to 32 for num_warps, got 0"),
        ({"num_stages": 0}, "expected an integer from 1 to 32 for num_stages, got 0"),
        ({"maxnreg": 5}, "expected an integer from 16 to 255 for maxnreg, got 5"),
        ({"num_consumer_groups": 4}, "expected an integer from 1 to 3 for num_consumer_groups"),
        ({"warp_specialize": 1}, "expected a boolean for warp_specialize, got 1"),
        ({"warp_specialize": "no"}, "expected a boolean for warp_specialize, got 'no'"),
        ({"num_ctas": 2, "target": "sm_80"}, "needs clusters, which sm_80 does not have"),
        ({"num_ctas": 16, "target": "sm_100a"}, "num_ctas = 16 is more than the 8 CTAs"),
        ({"num_warps": None}, "expected a power of two from 1 to 32 for num_warps, got None"),
        ({"num_warp": 8}, "expected a config key .*, got 'num_warp'\n.*did you mean 'num_warps'"),
        ({"taget": "sm_80"}, "got 'taget'\n.*did you mean 'target'"),
        ({"advance_products": True}, "got 'advance_products'\n.*write mma_stages = 2"),
        ({"target": "sm_91"}, "expected a target"),
        ({"target": None}, "expected a target"),
        ({"signature": None}, "expected the types of the kernel's arguments"),
        ({"constants": 4}, "expected a mapping for constants, got 4"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    usual = {"signature": SIGNATURE, "constants": {"BLOCK": 1024}}
    with pytest.raises(CompileError, match=message):
        aotc.compile(f"{SOURCE}:vector_add_kernel", **{**usual, **options})  # type: ignore[arg-type]


def test_what_a_kernel_prints_is_a_remark_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prints.py"
    path.write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(p):\n"
        '    tl.static_print("two\\nlines")\n    tl.static_print("")\n    tl.store(p, 1.0)\n'
    )
    kernel = aotc.compile(f"{path}:k", signature={"p": "*fp32"})
    assert kernel.metadata.remarks == ("two", "lines")


_PDL = """import triton
import triton.language as tl

@triton.jit
def k(p, n, ALWAYS: tl.constexpr):
    if ALWAYS or n > 1:
        tl.extra.cuda.gdc_wait()
    tl.store(p, n)
"""


@pytest.mark.parametrize(
    ("target", "always", "waits", "num_remarks"),
    [("sm_90a", True, True, 0), ("sm_90a", False, False, 1), ("sm_80", True, False, 0)],
)
def test_a_kernel_that_always_waits_may_overlap(
    tmp_path: Path, target: str, always: bool, waits: bool, num_remarks: int
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(_PDL, encoding="utf-8")
    signature = {"p": "*i32", "n": "i32"}
    kernel = aotc.compile(
        f"{path}:k", signature=signature, constants={"ALWAYS": always}, target=target
    )
    assert kernel.metadata.waits_pdl is waits
    remarks = [
        remark for remark in kernel.metadata.remarks if "programmatic dependent launch" in remark
    ]
    assert len(remarks) == num_remarks
    assert all(f"{path}:7:9: gdc_wait is not on every path" in remark for remark in remarks)


MATMUL = {
    **dict.fromkeys(("a_ptr", "b_ptr", "bias_ptr", "residual_ptr", "out_ptr"), "*bf16:16"),
    **dict.fromkeys(("M", "N", "K"), "i32:16"),
    **dict.fromkeys(("stride_am", "stride_bk", "stride_om"), "i32:16"),
    **dict.fromkeys(("stride_ak", "stride_bn", "stride_on"), "i32=1"),
}
TILES = {
    **dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_K"), 64),
    **dict.fromkeys(("BIAS", "RESIDUAL"), False),
    "GROUP_M": 8,
    "ACTIVATION": "none",
}


def test_tensor_maps_of_pointers_are_asked_for() -> None:
    source = f"{Path(SOURCE).parent}/matmul.py:matmul_kernel"
    plain = aotc.compile(source, signature=MATMUL, constants=TILES)
    assert plain.metadata.guards == ()
    assert all(slot.tensor_map is None for slot in plain.metadata.params)
    kernel = aotc.compile(source, signature=MATMUL, constants=TILES, map_pointers=True)
    assert kernel.cubin != plain.cubin
    assert kernel.metadata.guards
    maps = {slot.argument: slot for slot in kernel.metadata.params if slot.tensor_map is not None}
    assert {name: slot.access for name, slot in maps.items()} == {
        "a_ptr": "read",
        "b_ptr": "read",
        "out_ptr": "write",
    }
    spec = maps["a_ptr"].tensor_map
    assert spec is not None
    assert (spec.element, spec.address, spec.strides) == ("bf16", "a_ptr", ("stride_am",))
    assert len(spec.shape) == 2
    assert maps["a_ptr"].size_bytes == 128


def test_blocks_that_loop_over_programs_are_asked_for() -> None:
    """Their last parameters are the grid."""
    source = f"{Path(SOURCE).parent}/matmul.py:matmul_kernel"
    plain = aotc.compile(source, signature=MATMUL, constants=TILES)
    assert not plain.metadata.is_persistent
    kernel = aotc.compile(source, signature=MATMUL, constants=TILES, map_pointers=True)
    assert kernel.metadata.is_persistent
    counts = [(slot.argument, slot.source, slot.type) for slot in kernel.metadata.params[-3:]]
    assert counts == [(name, name, "i32") for name in ("grid[0]", "grid[1]", "grid[2]")]
    assert any("the kernel is persistent" in remark for remark in kernel.metadata.remarks)
    assert "is_persistent = true" in kernel.asm["gpu"]


# ---- limits -----------------------------------------------------------------------------------

LARGE = str(Path(__file__).parent / "support" / "large_tiles.py")
ROW = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "n": "i32"}


def test_what_no_block_has_room_for_is_refused_before_it_is_assembled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from aotc import backend

    def unwanted(*_args: object, **_options: object) -> None:
        raise AssertionError("code is generated")

    monkeypatch.setattr(backend, "lower_kernel", unwanted)
    pointers = dict.fromkeys(("a_ptr", "b_ptr"), "*bf16:16")
    with pytest.raises(ResourceError, match=r"262144 bytes of shared memory, the limit is 232448"):
        aotc.compile(
            f"{LARGE}:multiply",
            signature={**pointers, "c_ptr": "*fp32:16", "K": "i32:16"},
            constants={"M": 128, "N": 128, "BLOCK_K": 512},
        )


def test_threads_of_all_groups_are_counted_first() -> None:
    with pytest.raises(ResourceError, match=r"num_warps = 16 in 3 groups takes 1536 threads"):
        aotc.compile("nowhere.py:kernel", signature={}, num_warps=16, num_consumer_groups=3)


def test_a_cap_on_registers_leaves_a_block_that_can_be_launched() -> None:
    kernel = aotc.compile(
        f"{LARGE}:shares",
        signature=ROW,
        constants={"BLOCK": 1024 * 128},
        num_warps=32,
        maxnreg=255,
        limits={"live_registers": 1 << 20, "spill_bytes": 1 << 20},
    )
    assert kernel.metadata.registers == 64
    assert kernel.metadata.spill_bytes > 0


def test_an_instruction_that_takes_more_registers_than_threads_have() -> None:
    pointers = dict.fromkeys(("a_ptr", "b_ptr"), "*bf16:16")
    with pytest.raises(ResourceError, match=r"registers of a thread, which has 32") as caught:
        aotc.compile(
            f"{LARGE}:multiply",
            signature={**pointers, "c_ptr": "*fp32:16", "K": "i32:16"},
            constants={"M": 64, "N": 256, "BLOCK_K": 64},
            maxnreg=32,
        )
    assert "large_tiles.py" in caught.value.render()
    assert "help: a higher maxnreg" in caught.value.render()


def test_accumulators_too_large_to_spill_are_a_misfit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> backend.Assembly:
        raise backend.FewRegistersError("", required=None, available=112)

    monkeypatch.setattr(backend, "assemble", refuse)
    with pytest.raises(ResourceError, match=r"cannot spill enough of them: a thread has 112 where"):
        compile_kernel(REQUEST)


def test_a_lower_level_of_ptxas_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = backend.assemble

    def lower(*given: Any, **options: Any) -> backend.Assembly:
        return replace(usual(*given, **options), level="-O1", crash="(C7907) Internal error")

    monkeypatch.setattr(backend, "assemble", lower)
    metadata = compile_kernel(REQUEST).metadata
    assert metadata.ptxas_crash.startswith(f"{SOURCE}:")
    message = (
        "vector_add_kernel is assembled with -O1, a lower optimisation level, since ptxas crashes"
    )
    assert message in metadata.ptxas_crash
    assert metadata.ptxas_crash in metadata.remarks
    monkeypatch.undo()
    assert compile_kernel(REQUEST).metadata.ptxas_crash == ""


def test_what_spills_says_why_and_what_helps() -> None:
    kernel = _spilling({"spill_bytes": 1 << 16})
    metadata = kernel.metadata
    assert metadata.registers == 255
    assert metadata.spill_bytes > 0
    assert "32768xfp32 at large_tiles.py:24 (256 registers)" in metadata.spill_note
    assert metadata.spill_note.endswith(
        "what may help: num_warps = 8, smaller tiles or a loop over parts of them"
    )
    assert metadata.remarks[-1] == (
        f"{metadata.spill_bytes} bytes of registers are spilled: {metadata.spill_note}"
    )


def _spilling(limits: dict[str, int] | None) -> CompiledKernel:
    kernel = f"{LARGE}:shares"
    return aotc.compile(kernel, signature=ROW, constants={"BLOCK": 128 * 256}, limits=limits)


@pytest.mark.slow
def test_what_spills_is_refused_by_a_strict_limit_only() -> None:
    spilled = _spilling({"spill_bytes": 0}).metadata.local_bytes
    assert 0 < spilled <= 256
    text = r"\d+ bytes of registers spilled, \d+ of stack: tiles take \d+ registers of a thread"
    with pytest.raises(ResourceError, match=text) as caught:
        _spilling({"spill_bytes": spilled - 1, "strict": True})
    assert "num_warps = 8" in caught.value.message
    assert caught.value.message.endswith(f"the limit spill_bytes is {spilled - 1}")
    assert caught.value.remedy == f"limits={{'spill_bytes': {spilled}}} allows it"
    allowed = {"spill_bytes": spilled, "strict": True}
    assert _spilling(allowed).metadata.local_bytes == spilled


@pytest.mark.parametrize(("count", "is_refused"), [(511, False), (512, True)])
def test_parameters_are_what_every_driver_passes(
    monkeypatch: pytest.MonkeyPatch, count: int, *, is_refused: bool
) -> None:
    names = [f"a{number}" for number in range(count)]
    text = f"import triton\n\n@triton.jit\ndef k(p, {', '.join(names)}):\n    return\n"
    signature = {"p": "*i64", **dict.fromkeys(names, "i64")}
    if not is_refused:
        params = aotc.compile("k", source=text, signature=signature).metadata.params
        assert params[-1].offset + params[-1].size_bytes == 4096 == LIMITS.param_bytes
        return

    from aotc import backend

    def unwanted(*_args: object, **_options: object) -> None:
        raise AssertionError("code is generated")

    monkeypatch.setattr(backend, "emit_ptx", unwanted)
    with pytest.raises(CompileError, match="take 4104 bytes, the limit is 4096") as caught:
        aotc.compile("k", source=text, signature=signature)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"operations": 200}, "the kernel expands to more than 200 operations"),
        ({"instructions": 50}, r"instructions for each thread, most of them from here"),
        ({"ptxas_minutes": 1}, "expected a limit"),
        ({"ptxas_seconds": "1"}, "expected an integer from 1 on for ptxas_seconds, got '1'"),
        ({"spill_bytes": -1}, "expected an integer from 0 on for spill_bytes, got -1"),
        ({"strict": 1}, "expected true or false for strict, got 1"),
    ],
)
def test_a_limit_is_named(limits: dict[str, int], message: str) -> None:
    pointers = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
    with pytest.raises(CompileError, match=message) as caught:
        aotc.compile(
            f"{LARGE}:repeated", signature=pointers, constants={"COUNT": 100}, limits=limits
        )
    assert "bug" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("sleep 30", r"ptxas did not end within 1 seconds; tiles take 2 registers"),
        (
            "cat > /dev/null; echo 'ptxas fatal   : Memory allocation failure'; exit 255",
            r"ptxas took more than 300 MiB of memory; tiles take 2 registers",
        ),
    ],
)
def test_a_ptxas_that_takes_too_much_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    fake = tmp_path / "ptxas"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr("aotc.backend.ptxas.find_ptxas", lambda *_: fake)
    limits = {"ptxas_seconds": 1, "ptxas_mebibytes": 300}
    with pytest.raises(CompileError, match=message) as caught:
        aotc.compile(f"{LARGE}:shares", signature=ROW, constants={"BLOCK": 128}, limits=limits)
    assert caught.value.remedy


def test_limits_change_nothing_else() -> None:
    kernels = [
        aotc.compile(f"{LARGE}:shares", signature=ROW, constants={"BLOCK": 128}, limits=limits)
        for limits in (None, dict.fromkeys(COMPILE_LIMITS, 1 << 16))
    ]
    assert kernels[0].cubin == kernels[1].cubin


@pytest.mark.parametrize(("elems", "is_said"), [(256, False), (512, True)])
def test_a_block_that_is_sure_to_spill_is_given_an_sm_at_once(
    monkeypatch: pytest.MonkeyPatch, elems: int, *, is_said: bool
) -> None:
    assembled: list[str] = []

    def assemble(ptx: str, *_args: object, **_options: object) -> None:
        assembled.append(ptx)
        raise CompileError("enough")

    monkeypatch.setattr("aotc.backend.assemble", assemble)
    with pytest.raises(CompileError, match="enough"):
        aotc.compile(f"{LARGE}:shares", signature=ROW, constants={"BLOCK": 128 * elems})
    assert (".minnctapersm 1" in assembled[0]) is is_said


TEXT = """
import triton
import triton.language as tl

@triton.jit
def double(x):
    return x + x

@triton.jit
def k(p):
    tl.store(p, double(tl.load(p)))
"""


def test_a_source_may_be_text() -> None:
    kernel = aotc.compile("k", source=TEXT, signature={"p": "*fp32"})
    again = aotc.compile("k", source=TEXT, signature={"p": "*fp32"})
    assert kernel.cubin == again.cubin
    assert "tile.load" in kernel.asm["tile"]


def test_a_mistake_in_a_text_shows_its_line() -> None:
    with pytest.raises(CompileError) as caught:
        aotc.compile("k", source=TEXT.replace("x + x", "x + y"), signature={"p": "*fp32"})
    text = str(caught.value)
    assert "<source " in text
    assert "return x + y" in text
    with pytest.raises(CompileError, match="expected the source as text and the name"):
        aotc.compile(print, source=TEXT, signature={})


def test_a_function_of_a_notebook_is_compiled_from_its_cell() -> None:
    path = "<cell 12>"
    lines: list[str] = [*TEXT.splitlines(keepends=True)]
    linecache.cache[path] = (len(TEXT), None, lines, path)
    scope: dict[str, Any] = {}
    stub = TEXT.replace("import triton\nimport triton.language as tl", "import aotc.language as tl")
    stub = stub.replace("@triton.jit", "# jit")
    exec(builtins.compile(stub, path, "exec"), scope)
    try:
        kernel = aotc.compile(scope["k"], signature={"p": "*fp32"})
    finally:
        del linecache.cache[path]
    assert kernel.metadata.symbol == "k"


def test_a_function_sees_what_it_captured(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("""
import aotc.language as tl

class constexpr:
    def __init__(self, value): self.value = value

def make(factor, act):
    unknown = object()
    BLOCK = constexpr(64)
    @tl.jit
    def k(p):
        at = tl.arange(0, BLOCK)
        tl.store(p + at, act(tl.load(p + at) * factor))
        if factor > 5:
            tl.store(p, unknown)
    return k

@tl.jit
def negated(x):
    return -x
""")
    spec = importlib.util.spec_from_file_location("made_for_test", tmp_path / "made.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = aotc.compile(module.make(3.0, module.negated), signature={"p": "*fp32"})
    assert "arith.neg" in kernel.asm["tile"]
    assert "value = 3.0" in kernel.asm["tile"]
    with pytest.raises(
        CompileError, match="unknown has no value here: it is a variable of make, whose value"
    ):
        aotc.compile(module.make(7.0, module.negated), signature={"p": "*fp32"})


@pytest.mark.parametrize("language", ["aotc.language", "triton.language"])
def test_a_function_sees_the_dtypes_that_it_captured(language: str, tmp_path: Path) -> None:
    pytest.importorskip(language)
    jit = "tl.jit" if language.startswith("aotc") else "triton.jit"
    (tmp_path / "typed.py").write_text(f"""
import {language.partition(".")[0]}
import {language} as tl

def make(kind, pointer, kinds, number):
    held = tl.constexpr(kind)
    @{jit}
    def k(p, q):
        tl.static_assert(held == kind and kinds[1] == kind and kinds[0] == number)
        tl.static_assert(q.dtype == pointer and isinstance(pointer, tl.pointer_type))
        tl.store(p, (tl.load(p) + number).to(kind))
    return k
""")
    spec = importlib.util.spec_from_file_location(f"typed_{language[0]}", tmp_path / "typed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tl = module.tl
    for kind, name in ((tl.float16, "fp16"), (tl.bfloat16, "bf16"), (tl.uint8, "u8")):
        kernel = module.make(kind, tl.pointer_type(kind), (3, kind), 3)
        compiled_kernel = aotc.compile(kernel, signature={"p": f"*{name}", "q": f"*{name}"})
        assert "store" in compiled_kernel.asm["tile"]


def test_constants_may_be_dtypes_of_triton() -> None:
    tl = pytest.importorskip("triton.language")
    body = "tl.static_assert(T == tl.float16 and U == tl.pointer_type(tl.int32))"
    source = f"import triton\nimport triton.language as tl\n@triton.jit\ndef k(p, T: tl.constexpr, U: tl.constexpr):\n    {body}\n"
    constants = {"T": tl.float16, "U": tl.pointer_type(tl.int32)}
    aotc.compile("k", source=source, signature={"p": "*i32"}, constants=constants)
