"""Logs of JIT monitors: compiled kernels, in every form of log, and unreadable lines."""

from __future__ import annotations

import json

import pytest

from aotc.package.record.jit_log import Compiled, read_log

# As Triton 3.6 and vLLM's monitor print them, but for paths.
KEY = (
    "(EngineCore pid=1) WARNING 06-15 01:59:47 [jit_monitor.py:97] Triton kernel JIT compilation during "
    "inference: add (key=[('*fp16', 'D'), ('*fp32', ''), ('constexpr', 1), ('constexpr', None), "
    "(('constexpr', 'i32'), (1, 'D')), ('fp32', None), ('constexpr', 64), ('constexpr', "
    "triton.language.float32), ('constexpr', 'a, (b')]{'num_warps': 2, 'debug': False}). This causes a "
    "latency spike; consider extending warmup to cover this shape/config."
)
VERBOSE = (
    "WARNING Triton kernel JIT compilation during inference: add (constexprs={BLOCK=64, DTYPE="
    "triton.language.float32, MODE='a, (b', bias=None, n=1, shape[0]=1}; signature={BLOCK='constexpr', "
    "DTYPE='constexpr', MODE='constexpr', bias='constexpr', n='constexpr', scale='fp32', "
    "shape=('constexpr', 'i32'), x='*fp16', y='*fp32'}; extra_compile_info={configs=[{(0,): "
    "[['tt.divisibility', 16]], (1,): [], (4, 1): [['tt.divisibility', 16]]}], device=0, "
    "enable_fp_fusion=True, num_ctas=1, num_stages=3, num_warps=2}; key=\"[('*fp16', 'D'), ('*fp...). This"
)
DATA = {
    "name": "kern.add",
    "signature": {
        "x": "*fp16", "y": "*fp32", "n": "constexpr", "bias": "constexpr", "shape": ["constexpr", "i32"],
        "scale": "fp32", "BLOCK": "constexpr", "DTYPE": "constexpr", "MODE": "constexpr",
    },
    "constant_keys": [[2], [3], [4, 0], [6], [7], [8]],
    "constant_vals": [1, None, 1, 64, "fp32", "a, (b"],
    "attrs_keys": [[0], [1], [4, 1]],
    "attrs_vals": [[["tt.divisibility", 16]], [], [["tt.divisibility", 16]]],
    "options": {"num_warps": 2, "num_ctas": 1, "num_stages": 3, "arch": "sm90", "backend_name": "cuda"},
}  # fmt: skip
HOOK = json.dumps({"name": "add", "module": "kern", "specialization_data": json.dumps(DATA)})
NESTED = json.dumps({"name": "add", "module": "kern", "specialization_data": DATA})
SHOWN = "INFO\n" + json.dumps(
    {
        "kernel_name": "add",
        "module": "kern",
        "options": str(DATA["options"]),
        "target": "GPUTarget(backend='cuda', arch=90, warp_size=32)",
        "signature": str({**DATA["signature"], "shape": ("constexpr", "i32")}),  # type: ignore[dict-item]
        "constants": "{(2,): 1, (3,): None, (4, 0): 1, (6,): 64, (7,): 'fp32', (8,): 'a, (b'}",
        "attrs": "{(0,): [['tt.divisibility', 16]], (1,): [], (4, 1): [['tt.divisibility', 16]]}",
    },
    indent=2,
)
NAMES = ("x", "y", "n", "bias", "shape", "scale", "BLOCK", "DTYPE", "MODE")


def plain(kernel: Compiled) -> tuple[object, ...]:
    """Return the fields of a specialisation, with names for positions."""

    def named(path: tuple[int | str, ...]) -> tuple[object, ...]:
        return (NAMES[path[0]] if isinstance(path[0], int) else path[0], *path[1:])

    types = (
        kernel.types
        if isinstance(kernel.types, dict)
        else dict(zip(NAMES, kernel.types, strict=True))
    )
    constants = {named(path): value for path, value in kernel.constants.items()}
    return kernel.name, types, constants, {named(path) for path in kernel.divisible}


@pytest.mark.parametrize(
    "text", [KEY, VERBOSE, HOOK, NESTED, SHOWN], ids=["key", "verbose", "hook", "nested", "shown"]
)
def test_every_form_says_the_same(text: str) -> None:
    log = read_log(f"starting\n{{not JSON\n{text}\n[1, 2]\n{{}}\n")
    assert log.problems == []
    (kernel,) = log.compiled
    name, types, constants, divisible = plain(kernel)
    assert name == "add"
    assert types == {**DATA["signature"]}  # type: ignore[dict-item]
    assert constants == {
        ("n",): {"value": 1}, ("bias",): {"value": None}, ("shape", 0): {"value": 1},
        ("BLOCK",): {"value": 64}, ("DTYPE",): {"value": "fp32"}, ("MODE",): {"value": "a, (b"},
    }  # fmt: skip
    assert divisible == {("x",), ("shape", 1)}
    assert kernel.options["num_warps"] == 2
    assert kernel.open_promises is False
    assert kernel.arch == (90 if text in (HOOK, NESTED, SHOWN) else 0)


def test_values_are_read_not_evaluated() -> None:
    line = (
        "JIT compilation during inference: k (key=[('constexpr', JITFunction(pkg.ops:act)), "
        "('constexpr', constexpr[3]), ('constexpr', -inf), ('constexpr', <object at 0x7f00>), "
        "('constexpr', __import__('os').getcwd()), ('constexpr', uint8)]{})"
    )
    (kernel,) = read_log(line).compiled
    values = list(kernel.constants.values())
    assert values[0] == {"function": {"module": "pkg.ops", "function": "act"}}
    assert values[1:3] == [{"value": 3}, {"value": float("-inf")}]
    assert values[3:5] == [{"other": "<object at 0x7f00>"}, {"other": "__import__('os').getcwd()"}]
    assert values[5] == {"value": "u8"}


def test_promises_that_are_cut_short_are_open() -> None:
    cut = VERBOSE.replace("(1,): [], (4, 1): [['tt.divisibility', 16]]}]", "(1,): [['tt.div...")
    (kernel,) = read_log(cut).compiled
    assert kernel.divisible == {(0,)}
    assert kernel.open_promises


def test_what_cannot_be_read_is_told_with_its_line() -> None:
    text = (
        "one\nJIT compilation during inference: bare. This causes a latency spike\n"
        "JIT compilation during inference: cut (key=[('*fp16', 'D'), ('i3\n"
        '{"name": "k", "module": "m", "specialization_data": "{"}\n'
    )
    log = read_log(text)
    assert log.compiled == []
    assert log.problems[0].startswith("line 2: bare: it is named without what it was compiled for")
    assert "--jit-monitor-verbose" in log.problems[0]
    assert log.problems[1] == "line 3: cut: the line is cut short"
    assert log.problems[2].startswith("line 4: a kernel: ")


@pytest.mark.parametrize(
    "text",
    [
        (
            "Triton autotuning for function f,\nwith key as (100, 'torch.float32'),\nfinished after 0.01s,\n"
            "best config selected: BLOCK: 64, num_warps: 2, MODE: fast, maxnreg: None;\n"
        ),
        (
            "(pid=3) Triton autotuning for function f,\n(pid=3) with key as (1,),\n(pid=3) finished after 1s,\n"
            "(pid=3) best config selected: BLOCK: 64, num_warps: 2, MODE: fast, maxnreg: None;\n"
        ),
        (
            "Triton autotuning for function f finished after 1.20s; best config selected: BLOCK: 64, "
            "num_warps: 2, MODE: fast, maxnreg: None;\n"
        ),
    ],
)
def test_what_an_autotuner_chose_is_read(text: str) -> None:
    log = read_log(f"Autotuning kernel f with config BLOCK: 32\n{text}")
    assert log.choices == {"f": [{"BLOCK": 64, "num_warps": 2, "MODE": "fast", "maxnreg": None}]}


@pytest.mark.parametrize("depth", [60, 2_000, 20_000])
@pytest.mark.parametrize(
    "form",
    [
        "JIT compilation during inference: deep (key=[('i32', {})])",
        'JIT compilation during inference: deep (constexprs={{A={}}}; signature={{A="constexpr"}})',
        '{{"name": "deep", "signature": {{"x": {}}}}}',
        '{{"name": "deep", "specialization_data": "{{\\"signature\\": {}}}"}}',
        "Triton autotuning for function f finished after 1s; best config selected: A: {};",
    ],
)
def test_what_is_nested_deeply_is_told_or_text(form: str, depth: int) -> None:
    log = read_log(f"first\n{form.format('[' * depth + ']' * depth)}\n{KEY}\n")
    assert [kernel.name for kernel in log.compiled] == ["add"]
    if "autotuning" in form:
        assert log.choices == {"f": [{"A": "[" * depth + "]" * depth}]} or depth == 60
    else:
        (problem,) = log.problems
        assert problem.startswith("line 2: ")
        assert problem.endswith("its brackets are nested deeper than 50")
