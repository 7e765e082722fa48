"""Unchanged code launches from archives without Triton: the right kernel, or an error."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from aotc import cli

pytestmark = pytest.mark.usefixtures("one_worker")

START = "install(stand_in=True)\nimport ops, triton, triton.language as tl\n"


def test_constants_and_types_pick_the_kernel(launches: Any) -> None:
    assert launches(f"""{START}
launched(lambda: ops.add[(3,)](x, y, None, 100, 1, 0.5, BLOCK=64, num_warps=1))
launched(lambda: ops.add[(3, 2)](x, y, None, 100, 5, 0.5, BLOCK=64))
launched(lambda: ops.add[(3,)](half, y, x, 100, 5, 0.5, 64, ops.silu))
launched(lambda: ops.add[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](
    x, y, bias=None, n=100, stride=1, scale=0.5, BLOCK=tl.constexpr(64)))
""") == [[[3, 1, 1], 32], [[3, 2, 1], 64], [[3, 1, 1], 128], [[2, 1, 1], 32]]


def test_a_tensor_is_no_constant_though_it_may_be_an_index(launches: Any) -> None:
    """Torch's tensors have `__index__`, and raise if it is asked of many elements."""
    assert launches(f"""{START}
class Tensor(CudaArray):
    def __index__(self):
        raise TypeError("only integer tensors of a single element can be converted to an index")
    def __eq__(self, other):
        raise TypeError("compared")
launched(lambda: ops.add[(3,)](half, y, Tensor(4096), 100, 5, 0.5, 64, ops.silu))
launched(lambda: ops.add[(3,)](x, y, None, 100, 1, 0.5, 64, Tensor(4096)))
""") == [[[3, 1, 1], 128], ["NotInArchiveError", ANY]]


def test_launches_that_differ_in_values_alone_take_turns(launches: Any) -> None:
    """A cached launch is not reused for other values."""
    turns = launches(f"""{START}
for n, stride, at in 2 * ((100, 1, 4096), (96, 2, 4096), (96, 1, 4096), (100, 1, 4100)):
    launched(lambda: ops.add[(1,)](CudaArray(at), y, None, n, stride, 0.5, BLOCK=64))
""")
    assert [block for _, block in turns] == 2 * [32, 64, 32, 64]


def test_a_value_that_a_kernel_was_built_for_is_compared_at_every_launch(launches: Any) -> None:
    outcomes = launches(f"""{START}
for scale in (1.0, 0.5, 1.0, 1):
    launched(lambda: ops.add[(1,)](half, half, None, 100, 5, scale, BLOCK=64))
""")
    fits, misses, again, other = outcomes
    assert fits == again == [[1, 1, 1], 256]
    assert misses[0] == other[0] == "NotInArchiveError"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("x, y, None, 100, 1, 0.5, BLOCK=128", "BLOCK=128"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64.0", "BLOCK=64.0"),
        ("x, y, None, 100, 1, 0.5, BLOCK=True", "BLOCK=True"),
        ("x, y, None, 100, 1, 0.5, BLOCK=[64]", "BLOCK=[64]"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64, ACT='silu'", "ACT='silu'"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64, ACT=ops.double", "ACT='double'"),
        ("x, y, None, 100, 1, 2, BLOCK=64", "scale: i32"),
        ("x, y, None, True, 1, 0.5, BLOCK=64", "n: i1"),
        ("x, y, None, 1 << 40, 5, 0.5, BLOCK=64", "n: i64:16"),
        ("x, y, x, 100, 1, 0.5, BLOCK=64", "bias: *fp32:16"),
        ("x, half, None, 100, 1, 0.5, BLOCK=64", "y: *fp16:16"),
        ("4096, y, None, 100, 1, 0.5, BLOCK=64", "x: i32:16"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64, num_warps=8", "num_warps=8"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64, num_stages=2", "num_stages=2"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64, maxnreg=64", "maxnreg=64"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64, enable_fp_fusion=False", "enable_fp_fusion=False"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64, enable_reflect_ftz=False", "enable_reflect_ftz=False"),
        ("x, y, None, 100, 1, 0.5, BLOCK=64, launch_cooperative_grid=True", "launch_coop"),
    ],
)
def test_what_no_kernel_was_built_for_is_an_error(call: str, expected: str, launches: Any) -> None:
    """Each differs in one argument from the fitting launch before it."""
    fits, misses = launches(f"""{START}
launched(lambda: ops.add[(1,)](x, y, None, 100, 1, 0.5, BLOCK=64))
launched(lambda: ops.add[(1,)]({call}))
""")
    assert fits == [[1, 1, 1], 32]
    name, text = misses
    assert name == "NotInArchiveError", text
    assert expected in text.splitlines()[0]


def test_products_are_fused_as_the_launch_asks(launches: Any) -> None:
    """A kernel built without fusion is only for launches with fusion off."""
    unfused, fused, other = launches(f"""{START}
for words in ({{"enable_fp_fusion": False}}, {{}}, {{"enable_fp_fusion": False, "ACT": 1}}):
    launched(lambda: ops.add[(1,)](x, y, None, 100, 5, 0.5, BLOCK=32, **words))
""")
    assert unfused == [[1, 1, 1], 128]
    assert fused[0] == other[0] == "NotInArchiveError"
    assert "enable_fp_fusion" not in fused[1]
    assert "enable_fp_fusion=False" in other[1].splitlines()[0]
    assert "\n  enable_fp_fusion = false\n  [kernel.signature]" in other[1]


def test_the_rows_of_an_error_build_what_is_missing(launches: Any, tmp_path: Path) -> None:
    from aotc.package.manifest.read import parse

    ((_, text),) = launches(f"""{START}
launched(lambda: ops.add[(1,)](half, y, None, 32, 1, 0.5, BLOCK=128, ACT=None, num_warps=8))
""")
    rows = text.partition("would cover it:\n")[2]
    head = '[package]\nname = "more"\nversion = "0.1.0"\ntargets = ["sm_90a"]\n'
    manifest = parse(f"{head}{rows}", str(tmp_path / "kernels.toml"))
    (kernel,) = manifest.kernels
    assert kernel.constants == {"BLOCK": 128, "ACT": "None"}
    assert kernel.signature["n"].divisor == 16


def test_an_autotuner_takes_what_its_archive_has(launches: Any) -> None:
    """The first in the manifest's order; pruned ones are not taken; nothing is timed."""
    assert launches(f"""{START}
grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)
launched(lambda: ops.copy[grid](x, y, 1000))
launched(lambda: ops.copy[grid](x, y, 1024))
launched(lambda: ops.copy.run(x, y, 1000, grid=grid, warmup=False))
launched(lambda: ops.copy.warmup(x, y, 1000, grid=grid))
ops.copy.early_config_prune = lambda configs, args, **_: [one for one in configs if one.num_warps < 4]
launched(lambda: ops.copy[grid](x, y, 2000))
ops.copy.early_config_prune = lambda configs, args, **_: configs[2:]
launched(lambda: ops.copy[grid](x, y, 3000))
""")[:5] == [[[8, 1, 1], 128], [[8, 1, 1], 128], [[8, 1, 1], 128], None, [[32, 1, 1], 64]]


RECORDED = """
[[tuned]]
source = "ops.py:copy"
key = { n = 1000 }
dtypes = { x = "fp32", y = "fp32" }
config = { BLOCK = 64, num_warps = 2 }
[[tuned]]
source = "ops.py:copy"
key = { n = 100000 }
dtypes = { x = "fp32", y = "fp32" }
config = { BLOCK = 128, num_warps = 4, num_stages = 3 }
[[tuned]]
source = "ops.py:copy"
key = { n = 1024 }
dtypes = { x = "fp16", y = "fp32" }
config = { BLOCK = 128, num_warps = 4 }
[[tuned]]
source = "ops.py:copy"
key = { n = 5 }
dtypes = { x = "fp32", y = "fp32" }
config = { BLOCK = 256, num_warps = 8 }
"""


def test_an_autotuner_takes_what_it_chose_for_the_nearest_key(
    launches: Any, project: Path, tmp_path: Path
) -> None:
    """Other dtypes are farther than any number; configs missing from the archive are skipped."""
    for name in ("ops.py", "helpers.py", "libcuda.so.1"):
        shutil.copy(project / name, tmp_path / name)
    manifest = (project / "kernels.toml").read_text() + RECORDED
    (tmp_path / "kernels.toml").write_text(manifest)
    assert cli.run(["build", str(tmp_path / "kernels.toml"), "-o", str(tmp_path / "dist")]) == 0
    sizes = (1000, 100000, 100000 - 128, 1024, 2, 1000)
    launched = launches(
        f"""{START}
from tests.support.gpu_arrays import torch
class Tensor(CudaArray):
    dtype = torch.float32
x, y = Tensor(4096), Tensor(8192)
grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)
for n in {sizes}:
    launched(lambda: ops.copy[grid](x, y, n))
launched(lambda: ops.copy[grid](y=y, x=x, n=100000))
print(ops.copy.warmup(x, y, 1000, grid=grid), ops.copy.fn.fn.warmup(x, y, 1000, 128, True, grid=grid))
""",
        folder=tmp_path,
    )
    assert [block for _, block in launched] == [64, 128, 128, 64, 64, 64, 128]


def test_launches_that_are_known_go_past_the_decorators(launches: Any) -> None:
    """`run` is called once per key; heuristics see the arguments, and compute at each launch."""
    *launched, runs, seen_by_heuristic, best, is_alive = launches(f"""{START}
tuner, heuristics = ops.copy, ops.copy.fn
runs, passed, compute = [], [], heuristics.values["EVEN"]
def counted(args):
    passed.append([sorted(args), args["n"]])
    return compute(args)
heuristics.values["EVEN"] = counted
original = type(tuner).run
def run(self, *args, **words):
    runs.append(args[2])
    return original(self, *args, **words)
run.aotc_step = "tunes"
type(tuner).run = run
grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)
for n in (1000, 1024, 1000, 1024, 1000):
    launched(lambda: tuner[grid](x, y, n))
launched(lambda: tuner[grid](y=y, x=x, n=1000))
seen.append(list(runs))
del passed[:]
tuner[(1,)](x, y, 1000)
seen.append(passed[:])
best = tuner.best_config
seen.append([best.kwargs, best.num_warps])
import weakref
class Tensor(CudaArray):
    pass
extra = Tensor(4096)
tuner[(1,)](extra, y, 1000)
gone = weakref.ref(extra)
del extra
seen.append(gone() is None)
""")
    assert launched == [[[8, 1, 1], 128]] * 6
    assert runs == [1000, 1024]
    names = sorted(["x", "y", "n", "BLOCK", "num_warps", "num_ctas", "num_stages"])
    assert seen_by_heuristic == [[names, 1000]]
    assert best == [{"BLOCK": 128}, 4]
    assert is_alive is True


def test_what_a_heuristic_raises_is_raised(launches: Any) -> None:
    first, second, third = launches(f"""{START}
grid = (8,)
launched(lambda: ops.copy[grid](x, y, 1000))
kept = ops.copy.fn.values.copy()
class Refused(Exception):
    pass
def refuse(args):
    raise Refused(str(args["n"]))
plain = triton.heuristics({{"EVEN": refuse}})(ops.copy.fn.fn)
launched(lambda: plain[grid](x, y, 1000, BLOCK=128))
launched(lambda: ops.copy[grid](x, y))
""")
    assert first == [[8, 1, 1], 128]
    assert second == ["Refused", "1000"]
    assert third[0] in ("TypeError", "KeyError")


def test_an_autotuner_without_a_built_config_is_an_error(launches: Any) -> None:
    ((name, text),) = launches(f"""{START}
ops.copy.early_config_prune = lambda configs, args, **_: configs[2:]
launched(lambda: ops.copy[(1,)](x, y, 3000))
""")
    assert name == "NotInArchiveError"
    assert "BLOCK=256, EVEN=False" in text


def test_launches_go_to_the_device_of_their_tensors(launches: Any) -> None:
    """A kernel is loaded where it is first launched."""
    assert launches("""
import sys
from tests.support.gpu_arrays import TorchTensor, torch
sys.modules["torch"] = torch
gpu.reset((9, 0, 232448), (9, 0, 232448))
gpu.make_current(0)
install(stand_in=True)
import ops
for device in (0, 1, 0, 1):
    tensor = TorchTensor(4096, device=device)
    launched(lambda: ops.add[(1,)](tensor, tensor, None, 100, 1, 0.5, BLOCK=64))
    seen.append(gpu.last().device)
""")[1::2] == [0, 1, 0, 1]


def test_hooks_run_before_each_launch(launches: Any) -> None:
    assert launches(f"""{START}
launched(lambda: ops.add[(1,)](x, y, None, 100, 1, 0.5, BLOCK=64))
ops.add.add_pre_run_hook(lambda *args, **kwargs: seen.append([args[3], kwargs]))
launched(lambda: ops.add[(1,)](x, y, None, 100, 1, 0.5, BLOCK=64))
""")[1:] == [[100, {"BLOCK": 64}], [[1, 1, 1], 32]]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [("ops.py", "its file is not the one that was compiled"), ("helpers.py", "helpers.py, which")],
)
def test_other_sources_than_were_compiled_are_an_error(
    changed: str, expected: str, launches: Any, project: Path, tmp_path: Path
) -> None:
    for name in ("ops.py", "helpers.py"):
        shutil.copy(project / name, tmp_path / name)
    same = f"{START}launched(lambda: ops.add[(1,)](x, y, None, 100, 1, 0.5, BLOCK=64))"
    assert launches(same, path=(str(tmp_path),), cwd=tmp_path) == [[[1, 1, 1], 32]]
    with (tmp_path / changed).open("a") as file:
        file.write("# another\n")
    ((name, text),) = launches(same, path=(str(tmp_path),), cwd=tmp_path)
    assert name == "NotInArchiveError"
    assert expected in text


COMPUTED = """
import triton
import triton.language as tl

@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def fill(y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 1.0) if EVEN else tl.store(y + at, 1.0, mask=at < n)
"""


def test_a_heuristic_that_the_launcher_computes(
    launches: Any, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "computed.py").write_text(COMPUTED)
    (tmp_path / "ops.toml").write_text(
        '[package]\nname = "ops"\nversion = "0.1.0"\ntargets = ["sm_90a"]\n[[kernel]]\n'
        'source = "computed.py:fill"\nsignature = { y = "*fp32", n = "i32" }\nconstants = { BLOCK = 64 }\n'
    )
    arguments = ["build", str(tmp_path / "ops.toml"), "-o", str(tmp_path / "dist"), "-j", "1"]
    assert cli.run([*arguments, "--no-cache"]) == 0
    shutil.copy(project / "libcuda.so.1", tmp_path)
    body = """
lib = __import__("aotc").load({archive!r}, driver={driver!r})
launched(lambda: lib["fill"].launch((y, 128), grid=(2,)))
launched(lambda: lib["fill"].launch((y, 100), grid=(2,)))
install(stand_in=True)
import computed
launched(lambda: computed.fill[(2,)](y, 128, BLOCK=64))
launched(lambda: computed.fill[(2,)](y, 100, BLOCK=64))
launched(lambda: computed.fill[(2,)](y, 100, BLOCK=32))
"""
    body = body.format(
        archive=str(tmp_path / "dist" / "ops.aotc"), driver=str(tmp_path / "libcuda.so.1")
    )
    *right, wrong = launches(body, tmp_path, path=(str(tmp_path),))
    assert right == [[[2, 1, 1], 128]] * 4
    assert wrong[0] == "NotInArchiveError"


def test_options_that_mean_nothing_are_taken(launches: Any) -> None:
    """Other options are reported as not built."""
    *launched, arch, libraries, unknown = launches(f"""{START}
def run(**words):
    launched(lambda: ops.add[(3,)](x, y, None, 100, 1, 0.5, BLOCK=64, num_warps=1, **words))
for words in (
    dict(arch=None, extern_libs=None, ptx_options=None, debug=True), dict(extern_libs={{}}, ptx_options=""),
    dict(extern_libs={{"libdevice": "/lib.bc"}}, ptx_version=80, warp_size=32),
    dict(extern_libs=(("libdevice", "/lib.bc"),), default_dot_input_precision="tf32"),
):
    run(**words)
run(arch="sm80")
run(extern_libs={{"mine": "/mine.bc"}})
run(num_warpz=3)
""")
    assert launched == [[[3, 1, 1], 32]] * 4
    assert arch[0] == libraries[0] == "NotInArchiveError"
    assert "arch=sm80 is not built" in arch[1]
    assert "extern_libs={'mine': '/mine.bc'} is not built" in libraries[1]
    assert unknown[0] == "KeyError"


def test_any_object_with_an_address_and_a_dtype_is_taken(launches: Any) -> None:
    """As Triton does; promises and dtypes are checked as of tensors."""
    *launched, odd, half, strange, raising = launches(f"""{START}
class Memory:
    def __init__(self, dtype, address=4096):
        self.dtype, self.address = dtype, address
    def data_ptr(self):
        return self.address
def run(memory):
    launched(lambda: ops.add[(3,)](memory, y, None, 100, 1, 0.5, BLOCK=64, num_warps=1))
for dtype in ("torch.float32", "float32", "fp32", tl.float32):
    run(Memory(dtype))
run(Memory("torch.float32", 4100))
run(Memory("torch.float16"))
run(Memory("torch.complex64"))
run(Memory("torch.float32", "nowhere"))
""")
    assert launched == [[[3, 1, 1], 32]] * 4
    assert [outcome[0] for outcome in (odd, half, strange, raising)] == [
        "NotInArchiveError"
    ] * 3 + [raising[0]]
    assert 'x = "*fp32"' in odd[1]
    assert 'x = "*fp16:16"' in half[1]
    assert "complex64" in strange[1]
    assert raising[0] in ("ValueError", "NotInArchiveError")


def test_a_wrapper_of_a_tensor_is_read_by_its_address(launches: Any) -> None:
    """As Triton does. A capsule costs more, and is for frameworks; only a dtype without a name needs it."""
    wrapped, unnamed = launches(f"""{START}
class Wrapper:
    def __init__(self, dtype): self.dtype = dtype
    def data_ptr(self): return 4096
    def __dlpack__(self, **words): raise RuntimeError("a capsule is asked for")
    def __dlpack_device__(self): return (2, 0)
for dtype in ("torch.float32", "Float(8, 23)"):
    launched(lambda: ops.add[(3,)](Wrapper(dtype), y, None, 100, 1, 0.5, BLOCK=64, num_warps=1))
""")
    assert wrapped == [[3, 1, 1], 32]
    assert unnamed[0] == "NotInArchiveError"
    assert "raised an exception when it was asked" in unnamed[1]


MISSES = [
    ("ops.add[(1,)](x, y, None, 32, 1, float('inf'), BLOCK=128, ACT=ops.silu)", ""),
    ("ops.add[(1,)](x, y, None, 32, 1, 0.5, BLOCK=128, ACT=helpers.double)", ""),
    ("ops.add[(1,)](x, y, None, 32, 1, 0.5, BLOCK=float('-inf'), ACT='a\"b')", ""),
    ("ops.add[(1,)](x, y, None, 32, 1, True, BLOCK=2**40, ACT=tl.bfloat16)", ""),
    ("ops.add[(1,)](x, y, None, 32, 1, 0.5, BLOCK=64, launch_cooperative_grid=True)", ""),
    ("ops.add[(1,)](x, y, None, (3, (None, x)), 1, 0.5, BLOCK=64)", ""),
    ("ops.add[(1,)](x, y, [1], 32, 1, 0.5, BLOCK=64)", "bias is [1]"),
    ("ops.add[(1,)](x, y, (), 32, 1, 0.5, BLOCK=64)", ""),
    ("ops.add[(1,)](x, y, None, 32, 1, 0.5, BLOCK=(1, 2))", ""),
    ("ops.add[(1,)](x, y, None, 32, 1, 0.5, BLOCK=(1, (2, 'x')))", ""),
    ("ops.add[(1,)](x, y, None, 32, 1, 0.5, BLOCK=(1, [2]))", "BLOCK is (1, [2])"),
    ("ops.add[(1,)](Memory('torch.complex64'), y, None, 32, 1, 0.5, BLOCK=64)", "x is "),
    ("made[(1,)](x, 3)", "made.<locals>.kernel captures amount; aotc record extracts it"),
]


def test_rows_that_are_suggested_are_those_of_a_manifest(launches: Any, tmp_path: Path) -> None:
    from aotc.package.manifest.read import parse

    (tmp_path / "made.py").write_text(
        "import triton, triton.language as tl\n"
        "def made(amount):\n"
        "    @triton.jit\n"
        "    def kernel(x, n): tl.store(x, n + amount)\n"
        "    return kernel\n"
    )
    calls = "".join(f"launched(lambda: {call})\n" for call, _ in MISSES)
    program = f"""{START}
import helpers
from made import made
class Memory:
    def __init__(self, dtype): self.dtype = dtype
    def data_ptr(self): return 4096
made = made(3)
{calls}
"""
    for (_, unsaid), (name, text) in zip(
        MISSES, launches(program, path=(str(tmp_path),)), strict=True
    ):
        assert name == "NotInArchiveError"
        _, asks, rows = text.partition("these rows of a manifest would cover it:\n")
        if unsaid:
            assert not asks
            assert f"no row of a manifest can cover it: {unsaid}" in text
            continue
        head = '[package]\nname = "more"\nversion = "0.1.0"\ntargets = ["sm_90a"]\n'
        (kernel,) = parse(f"{head}{rows}", str(tmp_path / "kernels.toml")).kernels
        assert kernel.function.name == "add"


def test_a_miss_names_what_was_built(launches: Any) -> None:
    ((_, text),) = launches(
        f"{START}launched(lambda: ops.add[(1,)](x, y, None, 7, 3, 0.5, BLOCK=16))"
    )
    assert "kinds of arguments: BLOCK=64, num_warps=1; BLOCK=64, num_warps=2; BLOCK=64" in text


def test_a_dtype_may_be_written_as_python_does() -> None:
    from aotc.triton.specialization import is_same_constant

    class dtype:  # noqa: N801 - as torch has it
        def __str__(self) -> str:
            return "torch.bfloat16"

    for text in ("bf16", "bfloat16", "torch.bfloat16", "tl.bfloat16"):
        assert is_same_constant(dtype(), text)
    for text in ("fp16", "torch.float16", "bf", "torch"):
        assert not is_same_constant(dtype(), text)
    assert not is_same_constant("bf16", "torch.bfloat16")


def test_an_empty_grid_launches_nothing(launches: Any) -> None:
    assert (
        launches(f"""{START}
for grid in ((0,), (3, 0), 0, lambda meta: (meta["n"] // 1000,)):
    launched(lambda: ops.add[grid](x, y, None, 100, 1, 0.5, BLOCK=64))
launched(lambda: ops.copy[lambda meta: (meta["n"] // 5000,)](x, y, 1000))
""")
        == [None] * 5
    )
