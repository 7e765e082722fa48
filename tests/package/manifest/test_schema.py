"""The JSON Schema of manifests: it accepts all of this repository, and names the reader's keys."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli

from aotc.config import CONFIG_KEYS
from aotc.ir.types import SCALARS
from aotc.limits import LIMIT_KEYS
from aotc.package.manifest import bench_table, kernel_table, read, tuned
from aotc.target import OPTIONAL_FEATURES, TARGET_SETS, TARGETS, TOOLCHAINS

ROOT = Path(__file__).parents[3]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs/reference/kernels.schema.json").read_text())


def _manifests() -> list[Path]:
    """Return the manifests of the repository: TOML files with a `[[kernel]]` table."""
    listed = subprocess.run(
        ["git", "ls-files", "*.toml"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = listed.stdout.split() or [str(path) for path in ROOT.rglob("*kernels*.toml")]
    paths = [ROOT / name for name in names]
    return [path for path in paths if "kernel" in tomli.loads(path.read_text())]


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    return jsonschema.Draft7Validator(SCHEMA)


def test_every_manifest_of_the_repository_is_valid(validator: Any) -> None:
    manifests = _manifests()
    assert ROOT / "kernels.toml" in manifests
    for path in manifests:
        errors = [error.message for error in validator.iter_errors(tomli.loads(path.read_text()))]
        assert errors == [], path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('name = "kernels"', 'nome = "kernels"'),
        ('"sm_90a"', '"sm_90"'),
        ("[kernel.signature]", "[kernel.signatur]"),
        ("[package]", "[pakage]"),
        ('version = "0.1.0"', 'version = "1"'),
    ],
)
def test_mistakes_are_found(validator: Any, before: str, after: str) -> None:
    text = (ROOT / "kernels.toml").read_text()
    assert before in text
    assert not validator.is_valid(tomli.loads(text.replace(before, after)))


def test_the_keys_are_the_readers() -> None:
    definitions = SCHEMA["definitions"]
    kernel = definitions["kernel"]["properties"]
    assert set(SCHEMA["properties"]) == set(read._ROOT_KEYS)  # pyright: ignore[reportPrivateUsage]
    package = definitions["package"]["properties"]
    assert set(package) == set(read._PACKAGE_KEYS)  # pyright: ignore[reportPrivateUsage]
    assert set(kernel) == set(kernel_table.KERNEL_KEYS)
    assert set(definitions["tuned"]["properties"]) == set(tuned.TUNED_KEYS)
    assert set(kernel["limits"]["properties"]) == set(LIMIT_KEYS)
    assert set(kernel["bench"]["properties"]) == set(bench_table.BENCH_KEYS)
    assert set(definitions["target"]["enum"]) == {*TARGETS, *TARGET_SETS}
    assert set(definitions["dtype"]["enum"]) == set(SCALARS)
    assert package["without"]["items"]["enum"] == [*OPTIONAL_FEATURES]
    assert package["toolchain"]["enum"] == [*TOOLCHAINS]
    assert set(kernel["configs"]["anyOf"][1]["properties"]) <= set(CONFIG_KEYS)
