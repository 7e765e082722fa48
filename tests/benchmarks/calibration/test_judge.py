"""A case on both sides: the GPU here is the emulator behind the driver's interface."""

import ctypes
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from aotc.verify.emulator.run import emulate
from benchmarks.calibration import gpu, judge
from benchmarks.calibration.case import Bound, Case, Group, Output

SCALE = """
.visible .entry {entry}(.param .u64 x, .param .u32 factor, .param .u64 out)
.reqntid 32
{
    .reg .b32 r<4>;
    .reg .b64 d<4>;
    mov.u32 r0, %tid.x;
    ld.param.u64 d0, [x];
    mad.wide.u32 d0, r0, 4, d0;
    ld.global.b32 r1, [d0];
    ld.param.u32 r2, [factor];
    mul.lo.u32 r1, r1, r2;
    ld.param.u64 d1, [out];
    mad.wide.u32 d1, r0, 4, d1;
    st.global.b32 [d1], r1;
    ret;
}
"""


def operands(rng):
    return [rng.integers(0, 100, 32, np.uint32), 3, np.zeros(32, np.uint32)]


PLAIN = Case("plain", SCALE, operands, (Output(2, "u32"),))
TRAP = replace(PLAIN, name="trap", ptx=SCALE.replace("ret;", "trap;"))
PROBE = replace(TRAP, name="probe", is_probe=True)
SHOWN = replace(PLAIN, name="shown", is_probe=True)


class Cuda(ModuleType):
    """The driver functions in use, over memory of this process."""

    def __init__(self, wrong=0, fails=()):
        super().__init__("cuda.bindings.driver")
        self.CUresult = SimpleNamespace(CUDA_SUCCESS="ok", CUDA_ERROR_OUT_OF_MEMORY="full")
        self.CUfunction_attribute = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8
        )
        self.memory, self.wrong, self.fails = {}, wrong, fails
        self.parameters = []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *_: ("ok", None)

    def cuInit(self, _):  # noqa: N802 - the driver's names
        return ("ok",)

    def cuMemAlloc(self, size):  # noqa: N802
        buffer = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(buffer)] = buffer
        return "ok", ctypes.addressof(buffer)

    def cuMemFree(self, address):  # noqa: N802
        del self.memory[address]

    def cuMemcpyHtoD(self, target, source, size):  # noqa: N802
        ctypes.memmove(target, source, size)
        return ("ok",)

    def cuMemcpyDtoH(self, target, source, size):  # noqa: N802
        ctypes.memmove(target, source, size)
        return ("ok",)

    def cuCtxSynchronize(self):  # noqa: N802
        return ("ok",)

    def cuModuleGetFunction(self, module, name):  # noqa: N802
        del module
        return "ok", name.decode()

    def cuLaunchKernel(self, name, *rest):  # noqa: N802
        if name in self.fails:
            return (SimpleNamespace(name="CUDA_ERROR_LAUNCH_FAILED"),)
        grid, block, (shared, _, parameters, _) = rest[:3], rest[3:6], rest[6:]
        assert (grid, block, shared) == ((1, 1, 1), (32, 1, 1), 0)
        pointers = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p * 3)).contents
        x, out = (ctypes.cast(pointers[index], ctypes.POINTER(ctypes.c_uint64)) for index in (0, 2))
        factor = ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_uint32)).contents.value
        self.parameters.append(factor)
        values = np.ctypeslib.as_array((ctypes.c_uint32 * 32).from_address(x.contents.value))
        results = np.ctypeslib.as_array((ctypes.c_uint32 * 32).from_address(out.contents.value))
        results[:] = values * factor + self.wrong
        return ("ok",)


@pytest.fixture
def device(monkeypatch, tmp_path):
    """Return a function registering a driver and a group of cases."""
    group = Group("g", "a group", (PLAIN, TRAP, PROBE, SHOWN))
    monkeypatch.setitem(judge.GROUPS, "g", group)
    monkeypatch.setattr(judge, "_faults", [])
    (tmp_path / "g.cubin").write_bytes(b"cubin")
    for cached in (judge._module, judge.open_gpu, judge._cubin):
        cached.cache_clear()

    def make(**options):
        cuda = Cuda(**options)
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", cuda)
        return cuda, tmp_path

    yield make
    for cached in (judge._module, judge.open_gpu, judge._cubin):
        cached.cache_clear()


def test_both_sides_agree(device):
    cuda, folder = device()
    verdict = judge.judge("g", 0, folder)
    assert verdict.is_within
    assert (verdict.comparisons[0].count, verdict.comparisons[0].identical) == (32, 32)
    assert cuda.parameters == [3]
    assert not cuda.memory


def test_the_gpu_gives_something_else(device):
    _, folder = device(wrong=1)
    verdict = judge.judge("g", 0, folder)
    assert not verdict.is_within
    assert verdict.comparisons[0].broken == 32
    index, emulated, actual = verdict.comparisons[0].examples[0]
    assert int(actual, 16) == int(emulated, 16) + 1
    assert verdict.operands[0] == (f"{PLAIN.arguments()[0][index]:#x}",)


def test_a_fault_of_one_side(device):
    _, folder = device(fails=("case_0",))
    assert judge.judge("g", 0, folder).error == "GPU: CUDA_ERROR_LAUNCH_FAILED"
    assert judge.judge("g", 1, folder).error.startswith("emulator: trap")


def test_after_a_fault_the_rest_of_a_chunk_goes_to_a_fresh_process(device, monkeypatch):
    retried = []

    class Pool:
        """A process without a fault so far."""

        def __init__(self, *_):
            pass

        def __enter__(self):
            judge._faults.clear()
            return self

        def __exit__(self, *_):
            pass

        def submit(self, function, chunk):
            retried.append(chunk.indices)
            return SimpleNamespace(result=lambda: function(chunk))

    monkeypatch.setattr(judge, "ProcessPoolExecutor", Pool)
    _, folder = device(fails=("case_0", "case_1"))
    verdicts = judge.judge_chunk(judge.Chunk("g", (3, 0, 1, 3), folder))
    assert [case.name for case in verdicts] == ["shown", "plain", "trap", "shown"]
    assert [case.is_within for case in verdicts] == [True, False, False, True]
    assert retried == [(1, 3), (3,)]


def test_a_probe_that_both_sides_refuse(device):
    _, folder = device(fails=("case_2",))
    verdict = judge.judge("g", 2, folder)
    assert verdict.is_within
    assert verdict.values[0][1] == "GPU: CUDA_ERROR_LAUNCH_FAILED"


def test_a_probe_that_one_side_refuses(device):
    _, folder = device()
    assert not judge.judge("g", 2, folder).is_within


def test_what_a_probe_shows(device):
    _, folder = device()
    verdict = judge.judge("g", 3, folder)
    first, second = verdict.values[0]
    assert first == second
    assert first.startswith(f"{3 * int(SHOWN.arguments()[0][0]):#x} ")


def test_the_emulator_alone(device):
    device()
    assert judge.judge("g", 0, None).is_within


def test_a_tensor_map_describes_the_array(monkeypatch):
    calls = []

    class Maps(Cuda):
        cuuint64_t = cuuint32_t = int
        CUtensorMapDataType = SimpleNamespace(CU_TENSOR_MAP_DATA_TYPE_FLOAT16="f16")
        CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE="flat")
        CUtensorMapSwizzle = SimpleNamespace(CU_TENSOR_MAP_SWIZZLE_64B="64B")
        CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_NONE="none")
        CUtensorMapFloatOOBfill = SimpleNamespace(
            CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA="nan"
        )

        def cuTensorMapEncodeTiled(self, *arguments):  # noqa: N802
            calls.append(arguments)
            map_ = ctypes.create_string_buffer(bytes(range(128)), 128)
            return "ok", SimpleNamespace(getPtr=lambda: ctypes.addressof(map_), held=map_)

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", Maps())
    owner = np.zeros((7, 40), np.float16)
    argument = TensorArgument(owner[:, :36], (4, 32), 64, fill_nan=True)
    device = gpu.Gpu()
    placed = []
    assert device._parameter(argument, 128, placed) == bytes(range(128))
    ((_, address),) = placed
    assert calls == [
        ("f16", 2, address, [36, 7], [80], [32, 4], [1, 1], "flat", "64B", "none", "nan")
    ]


def test_bounds_are_named_in_results(device, monkeypatch):
    near = replace(PLAIN, outputs=(Output(2, "f32", Bound(ulps=2)),))
    monkeypatch.setitem(judge.GROUPS, "g", Group("g", "a group", (near,)))
    _, folder = device()
    verdict = judge.judge("g", 0, folder)
    assert (verdict.bound, verdict.row) == ("2 ulp", "plain")


def test_emulated_case_is_what_the_text_says():
    group = Group("g", "", (PLAIN,))
    args = PLAIN.arguments()
    emulate(group.ptx, 1, args)
    np.testing.assert_array_equal(args[2], args[0] * 3)
