"""Reports of archives: the sizes add up to the file, and the page is whole and shows no more than text."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from aotc.ir.diagnostics import HostError, ManifestError
from aotc.package.archive.decoder import stored_frames
from aotc.package.archive.file import decode, encode
from aotc.package.archive.index import Archive
from aotc.package.inspect.first_launch import ready_seconds
from aotc.package.inspect.report import Data, describe, read_measured, text
from aotc.package.inspect.report_page import page
from tests.support.fake_gpu import FakeGpu, build, golden

pytestmark = pytest.mark.usefixtures("one_worker")

MEASURED = {
    "gpu": "A <GPU>",
    "peak_flops": 989e12,
    "peak_bytes_per_second": 4.8e12,
    "launches": [
        {"kernel": "copy", "flops": 1e6, "bytes": 1e8, "seconds": 5e-5},
        {"kernel": "matmul", "flops": 1e11, "bytes": 1e8, "seconds": 2e-4},
    ],
}


def report_of(archive: Archive, measured: Data | None = None) -> Data:
    data = encode(archive)
    return describe(archive, stored_frames(data), len(data), measured)


def test_sizes_are_those_of_the_file(samples: SimpleNamespace) -> None:
    data = encode(samples.archive)
    report = report_of(samples.archive)
    parts = [report["root_bytes"], *(kernel["index_bytes"] for kernel in report["kernels"])]
    for kernel in report["kernels"]:
        parts += [coverage["stored_bytes"] for coverage in kernel["targets"].values()]
    assert sum(parts) == report["size_bytes"] == len(data)
    assert all(part > 0 for part in parts)
    for kernel, stated in zip(samples.archive.kernels, report["kernels"], strict=True):
        for target, coverage in stated["targets"].items():
            cubins = {v.cubin for v in kernel.variants if v.target == target}
            assert coverage["cubin_bytes"] == sum(map(len, cubins))


def test_frames_that_kernels_share_are_the_first_ones(samples: SimpleNamespace) -> None:
    twin = replace(samples.copy, name="copy2")
    report = report_of(Archive("n", "1", (samples.copy, twin)))
    first, second = (next(iter(k["targets"].values()))["stored_bytes"] for k in report["kernels"])
    assert first > 0 == second


def test_coverage(samples: SimpleNamespace) -> None:
    kernel = samples.norm
    target = kernel.targets[0]
    left = replace(kernel, variants=tuple(v for v in kernel.variants if v.config == 0))
    (reported,) = report_of(Archive("n", "1", (left,)))["kernels"]
    assert reported["configs"] == len(kernel.configs) > 1
    assert reported["targets"][target]["configs"] == 1
    assert 1 <= reported["targets"][target]["combinations"] <= reported["combinations"]


def test_text_has_a_row_for_each_kernel_and_target(samples: SimpleNamespace) -> None:
    lines = text(report_of(samples.archive)).splitlines()
    rows = sum(len(kernel.targets) for kernel in samples.archive.kernels)
    assert len(lines) == 4 + rows
    assert lines[3].split()[:2] == ["kernel", "target"]


class _Checker(HTMLParser):
    """Count tags left open, and look for scripts and references."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        names = [name for name, _ in attrs]
        assert not {"src", "href", "onload", "onclick"} & set(names), tag
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("measured", [None, MEASURED])
def test_the_page_is_whole_and_has_no_script(
    samples: SimpleNamespace, measured: Data | None
) -> None:
    name = "<script>alert(1)</script>"
    kernels = (*samples.archive.kernels, replace(samples.copy, name=name))
    html = page(report_of(replace(samples.archive, kernels=kernels, name='a"<b>'), measured))
    checker = _Checker()
    checker.feed(html)
    assert checker.open == []
    assert "script" not in checker.found
    assert "&lt;script&gt;" in html
    plots = html.split("<svg")[1:]
    assert len(plots) == (2 if measured is None else 3)
    for plot in plots:
        ET.fromstring("<svg" + plot.split("</svg>")[0] + "</svg>")
    num_variants = sum(len(kernel.variants) for kernel in kernels)
    assert plots[1].count("<circle") == num_variants
    if measured is not None:
        assert "A &lt;GPU&gt;" in html
        assert plots[2].count("<circle") == 2


def test_an_empty_archive_has_a_page() -> None:
    report = report_of(Archive("none", "0", ()))
    assert "<svg" in page(report)
    assert text(report).startswith("none 0: ")


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", json.dumps({**MEASURED, "launches": [{"kernel": "x"}]})),
        json.dumps({**MEASURED, "peak_flops": 0}),
        json.dumps({**MEASURED, "peak_flops": "many"}),
        json.dumps({**MEASURED, "gpu": 7}),
    ],
)
def test_measured_launches_are_checked(tmp_path: Path, content: str) -> None:
    path = tmp_path / "measured.json"
    path.write_text(content)
    with pytest.raises(ManifestError, match=r"measured\.json"):
        read_measured(path)
    path.write_text(json.dumps(MEASURED))
    assert read_measured(path) == MEASURED


def test_launches_without_a_time_or_operations_are_left_out(tmp_path: Path) -> None:
    """As `aotc bench` writes them."""
    path = tmp_path / "measured.json"
    more = [{**MEASURED["launches"][0], key: None} for key in ("flops", "seconds")]
    path.write_text(
        json.dumps({**MEASURED, "schema": 1, "launches": [*more, *MEASURED["launches"]]})
    )
    assert read_measured(path) == MEASURED


def test_how_long_each_kernel_takes_until_it_can_be_launched(tmp_path: Path) -> None:
    fake_gpu = FakeGpu(build(tmp_path))
    fake_gpu.reset()
    golden().main(tmp_path)
    path = tmp_path / "golden.aotc"
    data = path.read_bytes()
    archive = decode(data)
    seconds = ready_seconds(archive, str(path), 0, fake_gpu.path)
    assert set(seconds) == {k.name for k in archive.kernels if "sm_90a" in k.targets} != set()
    assert all(0 < duration < 10 for duration in seconds.values())
    assert fake_gpu.violation is None
    with pytest.raises(HostError, match="device"):
        ready_seconds(archive, str(path), 7, fake_gpu.path)
    ready = {"gpu": "A <GPU>", "seconds": {archive.kernels[0].name: 0.00125}}
    report = describe(archive, stored_frames(data), len(data), ready=ready)
    assert "ready ms" in text(report)
    assert " 1.25" in text(report)
    shown = page(report)
    assert "A &lt;GPU&gt;" in shown
    assert "<td>1.25</td>" in shown
