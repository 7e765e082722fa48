"""The page of `aotc bench`: whole without a network, escaped, and drawn by a real browser."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir.diagnostics import HostError
from aotc.package.inspect import bench_plots
from aotc.package.inspect.bench_page import page_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), "")


def row(kernel: str, key: dict[str, int], times: list[float], **more: Any) -> dict[str, Any]:
    configs = [{"BLOCK": 64 << index} for index in range(len(times))]
    chosen = min(1, len(times) - 1)
    flops, num_bytes = 2_000_000_000, 10_000_000
    return {
        "kernel": kernel, "types": {"T": "bf16"}, "choices": {}, "key": key, "weight": 2.0,
        "variant": "v", "config": configs[chosen], "problem": None, "seconds": times[chosen],
        "flops": flops, "bytes": num_bytes, "flops_per_second": flops / times[chosen],
        "bytes_per_second": num_bytes / times[chosen], "dtype": "bf16", "peak_flops": 989e12,
        "bound": "memory", "roofline": 0.5,
        "configs": [{"config": c, "seconds": s} for c, s in zip(configs, times, strict=True)],
        "peers": [{"name": "cuBLAS", "seconds": 5e-6}, {"name": "Triton", "problem": "lost"}],
        **more,
    }  # fmt: skip


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": 1, "archive": "<llm>.aotc", "gpu": "A <GPU> & $more$", "driver": "13.0",
        "target": "sm_90a", "clock_mhz": 1980, "l2": "cold", "passes": 20, "peak_flops": 989e12,
        "peak_bytes_per_second": 4.8e12, "no_peers": None, "launches": rows,
    }  # fmt: skip


LOST = row("lost", {"n": 0}, [1e-6], seconds=None, problem="<b>it hangs</b>", configs=[], peers=[])
ROWS = [
    *(row("matmul_$x", {"M": m, "N": n}, [4e-6, 3e-6, (m + 1) * 1e-7])
      for m in (0, 1, 17, 4096) for n in (64, 4097)),
    row("norm", {"n": 5}, [2e-6], flops=None, flops_per_second=None, peers=[]),
    LOST,
]  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(HostError, match="expected matplotlib") as caught:
        bench_plots.find_plots()
    assert "aotc[report]" in caught.value.remedy


def test_a_page_fetches_nothing_and_escapes_all() -> None:
    pytest.importorskip("matplotlib")
    page = page_of(report(ROWS))
    assert page == page_of(report(ROWS))
    tags = Tags()
    tags.feed(page)
    names = [tag for tag, _ in tags.seen]
    assert names.count("svg") == 6
    assert not {"script", "img", "link", "iframe", "b"} & set(names)
    links = [
        value
        for _, attrs in tags.seen
        for name, value in attrs.items()
        if name in ("src", "href", "xlink:href")
    ]
    assert all(link is not None and link.startswith("#") for link in links)
    ids = [attrs["id"] for _, attrs in tags.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    for link in links:
        assert str(link)[1:] in ids
    assert "@import" not in page
    assert "&lt;b&gt;it hangs&lt;/b&gt;" in page
    assert "matmul_$x" in page


@pytest.mark.parametrize("rows", [[], [LOST], ROWS[:1], ROWS[8:9]])
def test_a_page_of_few_launches_is_whole(rows: list[dict[str, Any]]) -> None:
    pytest.importorskip("matplotlib")
    assert page_of(report(rows)).endswith("</body></html>\n")


@pytest.mark.skipif(not BROWSER, reason="no browser")
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    """Every plot's colours are on the screen, within the page's width, and nothing was fetched."""
    pytest.importorskip("matplotlib")
    images = pytest.importorskip("PIL.Image")  # matplotlib needs it, too
    (tmp_path / "page.html").write_text(page_of(report(ROWS)))
    subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=700,2600",
            "--proxy-server=127.0.0.1:9", f"--screenshot={tmp_path / 'page.png'}",
            (tmp_path / "page.html").as_uri(),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    image = np.asarray(images.open(tmp_path / "page.png").convert("RGB"))
    height, width = image.shape[:2]
    assert (width, height) == (700, 2600)
    for color in ("#3b6fb6", "#c8662b", "#3d8f5f"):
        rgb = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
        matching = np.abs(image.astype(int) - rgb).sum(2) < 12
        assert matching.sum() > 200, color
    dark = image.sum(2) < 300
    assert dark[:150].any(), "the head"
    assert dark[-400:].any() or dark[1200:].any(), "the table"
