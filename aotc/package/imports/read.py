"""Read files of other autotuners: Triton's and Helion's caches, vLLM's configs.

    NAME.autotune.json              Triton (`cache_results=True`): times of all configs for one key
    HASH.best_config                Helion: the config chosen for some shapes
    E=…,N=…,device_name=….json      vLLM, mixture of experts: the config for each number of tokens
    N=…,K=…,device_name=….json      vLLM, fp8 by blocks: the same

Invariant: only the content of a file is used; the caller gives the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.toml_table import Constant
from aotc.package.record.timings import seconds_of
from aotc.regular_file import MAX_RECORDS_BYTES, read_regular

_TRITON, _HELION = ".autotune.json", ".best_config"
_VLLM = re.compile(
    r"(?:E=(?P<E>\d+),N=(?P<N>\d+)|N=(?P<columns>\d+),K=(?P<K>\d+)),"
    r"device_name=(?P<device>[^,]+?)(?:,(?:dtype=)?(?P<dtype>.*))?\.json"
)
_EXTENTS = re.compile(r"\((\d+(?:, \d+)*),?\)")
_CONFIG_FIELDS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_REMEDY = "files are NAME.autotune.json, HASH.best_config and vLLM's …,device_name=….json"


@dataclass(frozen=True, slots=True)
class Imported:
    """Configs for one launch, with their seconds, or None for a config chosen without a time.

    `function` is the kernel's, empty if not in the file. `key` has an autotuner's values by
    position, then `dtypes` of its tensors; `numbers` are named values of the file. `form` is vLLM's
    name of the weights, such as "fp8_w8a8,block_shape=[128,128]".
    """

    path: Path
    configs: tuple[tuple[Mapping[str, Constant], float | None], ...]
    function: str = ""
    key: tuple[object, ...] = ()
    dtypes: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    gpu: str = ""
    form: str = ""


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of a supported kind in paths; folders are searched.

    Raises: ManifestError if a path is none, or has none.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(filter(_is_known, path.rglob("*"))) if path.is_dir() else [path]
        if not inside or not (path.is_dir() or _is_known(path)):
            raise ManifestError(f"expected configs of an autotuner, got {path}", remedy=_REMEDY)
        files += inside
    return files


def _is_known(path: Path) -> bool:
    name = path.name
    return name.endswith((_TRITON, _HELION)) or _VLLM.fullmatch(name) is not None


def read_file(path: Path) -> list[Imported]:
    """Return the configs in a file. Raises: ManifestError if it is not of its kind."""
    try:
        document = json.loads(read_regular(path, MAX_RECORDS_BYTES))
        if path.name.endswith(_TRITON):
            return list(_triton(path, document))
        return list(
            _helion(path, document) if path.name.endswith(_HELION) else _vllm(path, document)
        )
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise ManifestError(message) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        kind = f"{type(error).__name__}: {error}"
        raise ManifestError(f"{path} is not written by its autotuner: {kind}") from None


def _triton(path: Path, document: dict[str, Any]) -> Iterator[Imported]:
    """Yield the times of one key: values of the decorator's `key`, then dtypes of tensors."""
    key = list(document["key"])
    first_dtype = len(key)
    while first_dtype and str(key[first_dtype - 1]).startswith("torch."):
        first_dtype -= 1
    configs = [
        ({**config["kwargs"], **_fields(config)}, seconds_of(times))
        for config, times in document["configs_timings"]
    ]
    timed = tuple((config, seconds) for config, seconds in configs if seconds is not None)
    if timed:
        function = path.name.removesuffix(_TRITON)
        dtypes = tuple(map(str, key[first_dtype:]))
        yield Imported(path, timed, function, tuple(key[:first_dtype]), dtypes)


def _fields(config: Mapping[str, Any]) -> dict[str, Constant]:
    """Return a config's non-default entries, without constants."""
    fields = {name: config.get(name) for name in _CONFIG_FIELDS}
    return {
        name: value
        for name, value in fields.items()
        if value is not None and (name, value) != ("num_ctas", 1)
    }


def _helion(path: Path, document: dict[str, Any]) -> Iterator[Imported]:
    """Yield the chosen config; `tI_J` is number J of the key's tuple I of integers."""
    config: dict[str, Any] = json.loads(document["config"])
    blocks = {
        f"_BLOCK_SIZE_{position}": size
        for position, size in enumerate(config.get("block_sizes", []))
    }
    plain = {
        name: value for name, value in config.items() if isinstance(value, bool | int | float | str)
    }
    fields: dict[str, Any] = document["key"]["fields"]
    tuples = _EXTENTS.findall(str(fields.get("specialization_key", "")))
    numbers = {
        f"t{position}_{axis}": int(text)
        for position, extents in enumerate(tuples)
        for axis, text in enumerate(extents.split(", "))
    }
    settings = {**blocks, **plain}
    yield Imported(path, ((settings, None),), numbers=numbers, gpu=str(fields.get("hardware", "")))


def _vllm(path: Path, document: dict[str, Any]) -> Iterator[Imported]:
    """Yield the config chosen for each number of tokens, `M`; the name has `E`, `N` or `K`."""
    name = _VLLM.fullmatch(path.name)
    assert name is not None
    gpu = name["device"].replace("_", " ")
    for tokens, config in document.items():
        if tokens.isdecimal():  # "triton_version" is another key
            texts = {"E": name["E"], "N": name["N"] or name["columns"], "K": name["K"]}
            sizes = {key: int(text) for key, text in texts.items() if text}
            chosen = ((dict(config), None),)
            numbers = {"M": int(tokens), **sizes}
            yield Imported(path, chosen, numbers=numbers, gpu=gpu, form=name["dtype"] or "")
