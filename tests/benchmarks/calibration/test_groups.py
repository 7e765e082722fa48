"""The cases themselves: distinct, known to the emulator, the same twice, and run by it."""

import numpy as np
import pytest

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.text.parse import parse_module
from benchmarks.calibration.case import entry_name
from benchmarks.calibration.groups import GROUPS
from benchmarks.calibration.judge import array_of, chunks

# One of many kinds of operand, and the quickest.
SAMPLES = {
    "mma": (0, -1),
    "matrix-moves": (1,),
    "wgmma": (0,),
    "wgmma-exact": (1,),
    "cp-async": (1,),
    "bulk": (0, 12),
    "tensor-loads": (7,),
    "tensor-stores": (5,),
    "tensor-reductions": (0,),
    "warps": (0, -1),
    "atomics": (0, 1),
    "clusters": (0, -1),
    "programs": (2,),
    "probes": (0, -9),
}


@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.name)
def test_cases_are_distinct_and_their_text_is_ptx(group):
    names = [case.name for case in group.cases]
    assert len(set(names)) == len(names)
    kernels = parse_module(group.ptx).kernels
    assert list(kernels) == [entry_name(index) for index in range(len(names))]
    for case, kernel in zip(
        group.cases[:: max(len(names) // 8, 1)], kernels.values(), strict=False
    ):
        assert case.outputs
        assert kernel.cta_threads[0] > 0


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("group", "index"), [(name, index) for name, indices in SAMPLES.items() for index in indices]
)
def test_a_case_writes_its_results(group, index):
    index %= len(GROUPS[group].cases)
    case = GROUPS[group].cases[index]
    before, after = case.arguments(), case.arguments()
    kernel = parse_module(GROUPS[group].ptx)
    emulate(kernel, case.grid, after, kernel=entry_name(index), shared_bytes=case.shared_bytes)
    outputs = {output.index for output in case.outputs}
    changed = set()
    for number, (input_array, output_array) in enumerate(zip(before, after, strict=True)):
        if isinstance(input_array, np.ndarray | TensorArgument):
            same = array_of(input_array).tobytes() == array_of(output_array).tobytes()
            changed |= set() if same else {number}
    assert changed
    assert changed <= outputs


def test_chunks_hold_every_case_once():
    for name, group in GROUPS.items():
        indices = [index for chunk in chunks(None, [name]) for index in chunk.indices]
        assert indices == list(range(len(group.cases)))
