"""Wheels: their content, reproducible bytes, and installation without the compiler."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive.file import decode, encode
from aotc.package.archive.index import Archive, Choice, Kernel, Param, TypeVariable, canonical
from aotc.package.archive.split import part_of
from aotc.package.emit.python_loader import attribute_names, module_text
from aotc.package.emit.sources import SourcesFile
from aotc.package.emit.wheel import make_wheel
from tests.support import fresh_environment
from tests.support.fake_gpu import build, golden


def entries(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_what_is_in_a_wheel(samples: SimpleNamespace) -> None:
    part = replace(part_of(samples.archive, ["sm_90a"]), name="My.LLM_kernels", version="1.2.0rc1")
    sources = {kernel.name: {"function": "f", "files": [["f.py", "0"]]} for kernel in part.kernels}
    wheel = make_wheel(part, suffix="sm90a", license_expression="MIT", sources=SourcesFile(sources))
    assert wheel.file_name == "my_llm_kernels_sm90a-1.2.0rc1-py3-none-any.whl"
    assert wheel.distribution == "my-llm-kernels-sm90a"
    files = entries(wheel.content)
    folder = "my_llm_kernels_sm90a-1.2.0rc1.dist-info"
    data = files["my_llm_kernels_sm90a/My.LLM_kernels.aotc"]
    assert decode(data) == canonical(part)
    document = json.loads(files["my_llm_kernels_sm90a/My.LLM_kernels.sources.json"])
    assert document["archive_sha256"] == hashlib.sha256(data).hexdigest()
    assert document["kernels"] == sources
    assert files["my_llm_kernels_sm90a/py.typed"] == b""
    metadata = files[f"{folder}/METADATA"].decode().splitlines()
    for line in (
        *("Name: my-llm-kernels-sm90a", "Version: 1.2.0rc1", "License-Expression: MIT"),
        *("Requires-Dist: aotc-runtime>=0.1.0", "Requires-Python: >=3.10"),
    ):
        assert line in metadata
    assert files[f"{folder}/WHEEL"].decode().splitlines()[-1] == "Tag: py3-none-any"
    rows = list(csv.reader(io.StringIO(files[f"{folder}/RECORD"].decode())))
    assert [row[0] for row in rows] == list(files)
    for name, digest, size in rows[:-1]:
        encoded = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
        assert (digest, int(size)) == (f"sha256={encoded.decode()}", len(files[name]))
    assert rows[-1] == [f"{folder}/RECORD", "", ""]


def test_the_same_archive_makes_the_same_wheel(samples: SimpleNamespace) -> None:
    archive = replace(samples.archive, version="1.0")
    first = make_wheel(archive)
    assert make_wheel(decode(encode(archive))) == first
    with zipfile.ZipFile(io.BytesIO(first.content)) as wheel:
        assert {entry.date_time for entry in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in wheel.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("über", "1.0", "name of a Python package"),
        ("-llm", "1.0", "name of a Python package"),
        ("llm", "latest", "version of a Python package"),
        ("llm", "1.0-beta", "version of a Python package"),
        ("llm", "01.0", "version of a Python package"),
    ],
)
def test_names_and_versions_are_those_of_python_packages(
    samples: SimpleNamespace, name: str, version: str, message: str
) -> None:
    with pytest.raises(ManifestError, match=message) as error:
        make_wheel(replace(samples.archive, name=name, version=version))
    assert error.value.remedy.startswith("give another")


def test_names_of_kernels_become_names_of_python(samples: SimpleNamespace) -> None:
    kernels = tuple(replace(samples.copy, name=name) for name in ("class", "3d-copy", "library"))
    names = attribute_names(Archive("n", "1", kernels))
    assert names == {"class": "class_", "3d-copy": "_3d_copy", "library": "library_"}
    compile(module_text(Archive("n", "1", kernels), "n.aotc"), "n", "exec")
    same = (replace(samples.copy, name="a-b"), replace(samples.copy, name="a.b"))
    with pytest.raises(ManifestError, match="distinct names in Python"):
        attribute_names(Archive("n", "1", same))


def test_types_of_a_call(samples: SimpleNamespace) -> None:
    params = (
        *(Param("p", "pointer", "T"), Param("n", "scalar", "i32"), Param("x", "scalar", "fp16")),
        *(
            Param("flag", "scalar", "i1"),
            Param("t", "tensor", "bf16", 2),
            Param("s", "scalar", "T"),
        ),
    )
    kernel = replace(
        samples.copy,
        variants=(),
        params=params,
        type_variables=(TypeVariable("T", ("fp16", "i32")),),
        choices=(
            *(Choice("CAUSAL", (True, False)), Choice("MODE", ("a'b", None))),
            *(Choice("SCALE", (0.5, 1.0)), Choice("ONLY", (7,))),
        ),
    )
    text = module_text(Archive("n", "1", (kernel,)), "n.aotc")
    for line in (
        *("p: object,", "n: int,", "x: float,", "flag: bool,", "t: object,", "s: object,"),
        *("CAUSAL: Literal[True, False],", 'MODE: Literal["a\'b", None],', "SCALE: Value,"),
        "ONLY: Literal[7] = 7,",
    ):
        assert f"        {line}\n" in text
    compile(text, "n", "exec")
    reserved = replace(kernel, params=(Param("stream", "scalar", "i32"),), choices=())
    assert "*args: object," in module_text(Archive("n", "1", (reserved,)), "n.aotc")


_USE = """
import sys
import golden_sm90a
kernels = golden_sm90a.load(driver=sys.argv[1], device=0)
assert golden_sm90a.TARGETS == ("sm_90a",)
kernels.add((4096, "fp16"), (8192, "fp16"), (16384, "fp16"), 64)
assert kernels.library.name == "golden"
found = [name for name in ("llvmlite", "numpy", "aotc.compiler", "aotc.package") if name in sys.modules]
assert not found, found
import importlib.util
assert importlib.util.find_spec("llvmlite") is None
assert importlib.util.find_spec("aotc.compiler") is None
import importlib.metadata
assert importlib.metadata.version("golden-sm90a") == "1.2.3"
print("launched")
"""


def test_it_installs_without_the_compiler_and_launches(tmp_path: Path) -> None:
    """Into an environment with only the loader and zstandard; on the fake driver."""
    golden().main(tmp_path)
    whole = decode((tmp_path / "golden.aotc").read_bytes())
    wheel = make_wheel(part_of(whole, ["sm_90a"]), suffix="sm90a")
    path = tmp_path / wheel.file_name
    path.write_bytes(wheel.content)
    python = fresh_environment.make(tmp_path / "environment", path)
    assert fresh_environment.run(python, _USE, str(build(tmp_path))) == "launched\n"


def test_kernels_of_the_samples_make_a_valid_module(samples: SimpleNamespace) -> None:
    archive: Archive = samples.archive
    text = module_text(archive, "samples.aotc")
    compile(text, "samples", "exec")
    kernels: tuple[Kernel, ...] = archive.kernels
    for kernel in kernels:
        assert f"library[{kernel.name!r}]" in text
