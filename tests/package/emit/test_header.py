"""The generated header compiles as C and C++, and its calls pass the caller's arguments."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import parse
from aotc.package.archive.index import (
    DTYPE_BYTES,
    Access,
    Archive,
    Choice,
    Guard,
    Kernel,
    Param,
    TypeVariable,
)
from aotc.package.emit.header import c_identifier, header_text

_INCLUDE = Path(__file__).parents[3] / "runtime_c" / "include"
_COMPILERS = {
    "c11": ["cc", "-std=c11"],
    "c++17": ["c++", "-std=c++17"],
}
_WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]


def compiled(folder: Path, source: str, language: str) -> Path:
    """Compile a source including the header in `folder` and return the object."""
    compiler, standard = _COMPILERS[language]
    if shutil.which(compiler) is None:
        pytest.fail(f"no {compiler}: the tests need a C and a C++ compiler")
    suffix = "c" if language == "c11" else "cc"
    (folder / f"use.{suffix}").write_text(source)
    command = [compiler, standard, *_WARNINGS, f"-I{_INCLUDE}", f"-I{folder}"]
    process = subprocess.run(
        [*command, "-c", f"use.{suffix}", "-o", "use.o"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return folder / "use.o"


def every_type(kernel: Kernel) -> Kernel:
    """Return a kernel with a param of every kind and dtype, and choices of every type."""
    params = [
        Param(f"{kind}_{dtype}", kind, dtype)
        for dtype in DTYPE_BYTES
        for kind in ("pointer", "scalar")
    ]
    params += [
        Param("t", "tensor", "T", rank=3),
        Param("s", "scalar", "T"),
        Param("p", "pointer", "U"),
        Param("double", "scalar", "i32"),
        Param("stream", "scalar", "i32"),
    ]
    choices = (
        Choice("FLAG", (True, False)),
        Choice("COUNT", (1, 2)),
        Choice("MODE", ('a"b\\', "c?\n")),
        Choice("SCALE", (0.5, 1.0)),
        Choice("ANY", (None, 1, "x")),
        Choice("ONE", ("fixed",)),
    )
    return replace(
        kernel,
        name="every type",
        params=tuple(params),
        type_variables=(TypeVariable("T", ("fp16", "fp32")), TypeVariable("U", ("bf16",))),
        choices=choices,
        guards=(Guard(parse("t % 16 == 0"), "odd */ text\n#error"),),
        variants=(
            replace(
                kernel.variants[0],
                types=("fp16", "bf16"),
                choices=tuple(choice.values[0] for choice in choices),
                guards=(),
            ),
        ),
    )


@pytest.mark.parametrize("language", _COMPILERS)
def test_header_compiles_without_a_warning(
    samples: SimpleNamespace, tmp_path: Path, language: str
) -> None:
    kernels = (*samples.archive.kernels, every_type(samples.norm))
    archive = Archive("my-llm.kernels", "1 */", kernels)
    (tmp_path / "llm.h").write_text(header_text(archive))
    compiled(tmp_path, '#include "llm.h"\n#include "llm.h"\n', language)


def test_header_of_an_empty_archive_compiles(tmp_path: Path) -> None:
    (tmp_path / "none.h").write_text(header_text(Archive("none", "1", ())))
    compiled(tmp_path, '#include "none.h"\n', "c11")


_PROBE = r"""
#include "llm.h"
#include <stdio.h>
#include <string.h>

const unsigned char llm_archive[] = {1, 2, 3};
const size_t llm_archive_size = sizeof(llm_archive);

const char *found[2];
int num_found;

aotc_status aotc_kernel_get(const aotc_archive *archive, const char *name,
                            const aotc_kernel **kernel, aotc_error *error) {
    (void)archive, (void)error;
    found[num_found] = name;
    *kernel = (const aotc_kernel *)&found[num_found++];
    return AOTC_OK;
}

aotc_status aotc_open_memory(const void *data, size_t size_bytes, const aotc_open_options *options,
                             aotc_archive **archive, aotc_error *error) {
    (void)options, (void)archive, (void)error;
    printf("open %d %zu\n", data == llm_archive, size_bytes);
    return AOTC_OK;
}

aotc_status aotc_launch(const aotc_kernel *kernel, const aotc_launch_desc *desc, aotc_error *error) {
    (void)error;
    printf("%s", *(const char *const *)kernel);
    for (uint32_t i = 0; i < desc->arg_count; i++) {
        printf(" %u:%u:%llx", desc->args[i].kind, desc->args[i].dtype,
               (unsigned long long)desc->args[i].as.bits);
    }
    for (uint32_t i = 0; i < desc->choice_count; i++) {
        printf(" %s=%u:%d", desc->choices[i].name, desc->choices[i].kind,
               (int)desc->choices[i].as.integer);
    }
    printf(" grid %u %d %d %d", desc->grid_rank, (int)desc->grid[0], (int)desc->grid[1],
           (int)desc->grid[2]);
    printf(" scratch %llu flags %u stream %d\n", (unsigned long long)desc->scratch_bytes, desc->flags,
           desc->stream != NULL);
    return AOTC_ERROR_ARCH;
}

int main(void) {
    llm_kernels kernels;
    aotc_archive *archive = NULL;
    int64_t sizes[2] = {3, 4};
    aotc_tensor tensor = {(void *)0x40, 2, 0, sizes, sizes};
    struct CUstream_st *stream = (struct CUstream_st *)0x8;
    llm_open(NULL, &archive, NULL);
    if (llm_kernels_get(archive, &kernels, NULL) != AOTC_OK) return 1;
    if (llm_norm(&kernels, stream, AOTC_BF16, true, (void *)0x10, (void *)0x20, -1, 7, 1.0f,
                 AOTC_LAUNCH_PDL, (void *)0x30, 512, NULL) != AOTC_ERROR_ARCH) return 2;
    llm_copy(&kernels, NULL, 5, 6, 7, &tensor, -2, NULL);
    return 0;
}
"""


def test_calls_pass_what_the_caller_passed(samples: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "llm.h").write_text(header_text(samples.archive))
    compiled(tmp_path, _PROBE, "c11")
    subprocess.run(["cc", "use.o", "-o", "use"], cwd=tmp_path, check=True)
    process = subprocess.run([tmp_path / "use"], capture_output=True, text=True, check=True)
    opened, norm, copy = process.stdout.splitlines()
    assert opened == "open 1 3"
    assert norm == (
        "norm 1:11:10 1:11:20 2:4:ffffffffffffffff 2:4:7 2:12:3f800000"
        " CAUSAL=1:1 grid 0 0 0 0 scratch 512 flags 1 stream 1"
    )
    assert re.fullmatch(
        r"copy 3:11:[0-9a-f]+ 2:5:fffffffffffffffe grid 3 5 6 7 scratch 0 flags 0 stream 0", copy
    )


def test_doc_comment_says_what_was_built(samples: SimpleNamespace) -> None:
    text = header_text(samples.archive)
    for line in (
        " * Targets: sm_80 sm_90a",
        " * Grid: cdiv(n_rows, 4)",
        " * T: fp16 bf16",
        " * Config: num_warps=8, stages=x",
        " * Requires: x_ptr is 16-byte aligned",
        " * Faster if: stride is a multiple of 16",
    ):
        assert line in text.splitlines()


def test_const_and_the_comment_say_whose_memory_is_written(samples: SimpleNamespace) -> None:
    accesses: dict[str, Access] = {"r": "read", "w": "write", "b": "both", "u": "unknown"}
    params = [Param(name, "pointer", "fp32", access=kind) for name, kind in accesses.items()]
    params += [Param("t", "tensor", "fp32", rank=1, access="write"), Param("n", "scalar", "i32")]
    kernel = replace(every_type(samples.norm), params=tuple(params), guards=())
    text = header_text(Archive("llm", "1", (kernel,)))
    for line in ("Reads: r", "Writes: w, t", "Reads and writes: b", "May read and write: u"):
        assert f" * {line}\n" in text
    assert "const float *r, float *w, float *b, float *u, const aotc_tensor *t" in " ".join(
        text.split()
    )


def test_long_lists_of_configs_are_cut(samples: SimpleNamespace) -> None:
    configs = tuple((("num_warps", index),) for index in range(20))
    text = header_text(Archive("n", "1", (replace(samples.norm, configs=configs),)))
    assert text.count(" * Config:") == 8
    assert " * Config: and 13 more" in text


@pytest.mark.parametrize(
    ("name", "identifier"),
    [("add", "add"), ("my-add.v2", "my_add_v2"), ("2x", "_2x"), ("größe", "gr__e"), ("", "")],
)
def test_names_become_identifiers(name: str, identifier: str) -> None:
    assert c_identifier(name) == identifier


def test_two_kernels_of_one_c_name_are_an_error(samples: SimpleNamespace) -> None:
    kernels = (replace(samples.copy, name="a-b"), replace(samples.copy, name="a_b"))
    with pytest.raises(ManifestError, match="'a-b' and 'a_b' are both `a_b` in C"):
        header_text(Archive("n", "1", kernels))


def test_two_arguments_of_one_c_name_are_an_error(samples: SimpleNamespace) -> None:
    params = tuple(Param(name, "scalar", "i32") for name in ("int", "int_"))
    with pytest.raises(ManifestError, match="are both `int_` in C"):
        header_text(Archive("n", "1", (replace(samples.copy, params=params),)))


def test_names_of_c_and_of_the_header_get_an_underscore(
    samples: SimpleNamespace, tmp_path: Path
) -> None:
    names = ("open", "archive", "kernels", "double", "ok")
    kernels = tuple(replace(samples.copy, name=name) for name in names)
    text = header_text(Archive("llm", "1", kernels))
    for function in ("llm_open_(", "llm_archive_(", "llm_kernels_(", "llm_double_(", "llm_ok("):
        assert f"static inline aotc_status {function}const llm_kernels *kernels" in text
    (tmp_path / "llm.h").write_text(text)
    compiled(tmp_path, '#include "llm.h"\n', "c++17")


def test_an_archive_may_not_take_the_runtimes_prefix(samples: SimpleNamespace) -> None:
    with pytest.raises(ManifestError, match="'aotc'"):
        header_text(Archive("aotc", "1", (samples.copy,)))
