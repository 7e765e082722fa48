"""The launches of a run: the order of the configs, and the GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aotc.ir.diagnostics import HostError
from aotc.ir.expression import parse
from aotc.package.archive.selection import ANY_GPU, Branch, Selection
from aotc.package.inspect.cuda_driver import Gpu, Machine
from aotc.package.tuning.shapes import Launch
from aotc.tuning.run import devices_of, selected_order
from tests.support.tuned_archive import TARGET, scale_kernel


def launch(n: int) -> Launch:
    return Launch("scale", {}, {}, {"n": n})


def test_configs_are_tried_as_the_archive_selects_them() -> None:
    kernel = scale_kernel(4)
    assert selected_order(kernel, launch(1), TARGET, "H200") == (0, 1, 2, 3)
    tree = Branch(parse("n"), 100, (2, 0), (3,))
    estimated = replace(kernel, selections=(Selection(TARGET, ANY_GPU, 0, tree),))
    assert selected_order(estimated, launch(100), TARGET, "H200") == (2, 0, 1, 3)
    assert selected_order(estimated, launch(101), TARGET, "H200") == (3, 0, 1, 2)
    selections = (*estimated.selections, Selection(TARGET, "H200", 0, (1,)))
    measured = replace(kernel, selections=selections)
    assert selected_order(measured, launch(1), TARGET, "H200") == (1, 0, 2, 3)
    assert selected_order(measured, launch(1), TARGET, "L4") == (2, 0, 1, 3)
    assert selected_order(measured, launch(1), "sm_80", "H200") == (0, 1, 2, 3)


def test_gpus_keep_what_they_are_visible_as(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Gpu(name, 9, 0, 1 << 36, 232448, is_mig=False) for name in ("A", "B"))
    machine = Machine(12080, gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [device.visible for device in devices_of(machine, "all")] == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7f")
    assert [(device.name, device.visible) for device in devices_of(machine, "all")] == [
        ("A", "5"),
        ("B", "GPU-7f"),
    ]
    (chosen,) = devices_of(machine, "1")
    assert (chosen.name, chosen.visible, chosen.driver) == ("B", "GPU-7f", "12.8")
    with pytest.raises(HostError, match="expected GPUs below 2, got 2"):
        devices_of(machine, "0,2")
    with pytest.raises(HostError, match="expected a GPU to tune on: none"):
        devices_of(Machine(problem="none"), "all")
