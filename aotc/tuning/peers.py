"""Time a launch's peers with a Python that has PyTorch and Triton.

Invariant: a peer that is missing or fails only changes its own entry.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from aotc.config import CONFIG_KEYS
from aotc.ir import expression
from aotc.ir.expression import ExpressionError
from aotc.package.cover.choose import launch_values
from aotc.package.manifest.configs import integer_values
from aotc.package.manifest.spec import KernelSpec
from aotc.package.tuning.work import bench_values, dot_dtype, evaluated
from aotc.tuning.bench import BenchOptions, Timed
from aotc.tuning.buffers import BufferPlan
from aotc.verify.checks.contents import HEAD_BYTES

Request = dict[str, Any]
_WORKER = Path(__file__).with_name("peer_worker.py")
_SECONDS = 120  # for a request, compiling included
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_NAMES = {"matmul": "cuBLAS", "attention": "cuDNN", "triton": "Triton"}
_NO_TORCH = "ModuleNotFoundError: No module named 'torch'"


class PeerError(Exception):
    """A peer cannot run a launch; the message has the reason."""


def requests_of(
    timed: Timed, spec: KernelSpec, plans: Sequence[BufferPlan], options: BenchOptions
) -> list[Request]:
    """Return the requests to peers for a launch. Raises: ManifestError for wrong extents."""
    how = {"passes": options.passes, "is_cold": options.is_cold}
    requests: list[Request] = []
    try:
        requests.append({"peer": "triton", **how, **_triton(timed, spec, plans)})
    except PeerError as error:
        requests.append({"peer": "triton", "problem": str(error)})
    values = bench_values(timed.kernel, timed.launch)
    for name, extents in spec.bench.peers.items():
        numbers = [evaluated(extent, values) for extent in extents]
        dtype = dot_dtype(timed.kernel, timed.launch)
        requests.append({"peer": name, **how, "extents": numbers, "dtype": dtype})
    return requests


def ask(python: str, requests: Sequence[Request], device: str) -> tuple[list[dict[str, Any]], str]:
    """Return an answer for each request, named; and why there are no peers at all, or "".

    `device` is the GPU's `CUDA_VISIBLE_DEVICES`.
    """
    valid_requests = [request for request in requests if "problem" not in request]
    answers, problem = _answers(python, valid_requests, device)
    if any(
        str(received_answer.get("problem", "")).startswith(_NO_TORCH) for received_answer in answers
    ):
        return [], f"{python} has no PyTorch"
    received = iter(answers)
    named_answers: list[dict[str, Any]] = []
    for request in requests:
        if "problem" in request:
            answer = {"problem": request["problem"]}
        else:
            answer = next(received, {"problem": problem})
        named_answers.append({"name": _NAMES[request["peer"]], **answer})
    return named_answers, ""


def _answers(
    python: str, requests: Sequence[Request], device: str
) -> tuple[list[dict[str, Any]], str]:
    """Return the received answers, and why the others are missing."""
    lines = "".join(f"{json.dumps(request)}\n" for request in requests)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device}
    problem = "the peers' process ended"
    try:
        process = subprocess.run(
            [python, str(_WORKER)],
            input=lines,
            capture_output=True,
            text=True,
            timeout=_SECONDS * max(1, len(requests)),
            env=environment,
            check=False,
        )
        output = process.stdout
    except subprocess.TimeoutExpired as error:
        partial: Any = error.stdout or ""  # bytes, even in text mode
        output = partial.decode(errors="replace") if isinstance(partial, bytes) else str(partial)
        problem = "it does not end"
    except OSError as error:
        return [], f"cannot run {python}: {error.strerror}"
    answers = [_answer(line) for line in output.splitlines()]
    return [answer for answer in answers if answer is not None], problem


def _answer(line: str) -> dict[str, Any] | None:
    """Parse an answer; None for other output, such as a print at import."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


def _triton(timed: Timed, spec: KernelSpec, plans: Sequence[BufferPlan]) -> Request:
    """Return the request for Triton's JIT. Raises: PeerError."""
    if spec.tuples:
        raise PeerError("arguments that are tuples are not passed to Triton")
    assert timed.variant is not None
    config = dict(timed.kernel.configs[timed.variant.config])
    values = {**spec.constants, **timed.launch.choices, **config}
    parameters = [parameter.name for parameter in spec.function.constexprs]
    constants = {
        name: None if value == "None" else value
        for name, value in values.items()
        if name in parameters
    }
    for name, value in constants.items():
        if isinstance(value, str) and ".py:" in value:
            raise PeerError(f"{name} is a function")
    return {
        "source": str(Path(spec.source).resolve()),
        "function": spec.function.name,
        "grid": _grid(timed),
        "args": _args(timed, spec, {plan.name: plan for plan in plans}, values),
        "constants": constants,
        "options": {
            name: value
            for name, value in config.items()
            if name in _OPTIONS and name in CONFIG_KEYS and name not in parameters
        },
    }


def _grid(timed: Timed) -> list[int]:
    """Return the grid of a launch. Raises: PeerError."""
    assert timed.variant is not None
    values = launch_values(timed.kernel, timed.launch)
    try:
        grid = [expression.evaluate(root, values) for root in timed.variant.grid]
    except ExpressionError as error:
        raise PeerError(f"its grid: {error.message}") from None
    return grid or list(timed.launch.grid)


def _args(
    timed: Timed, spec: KernelSpec, plans: Mapping[str, BufferPlan], values: Mapping[str, object]
) -> list[Request]:
    launch, args = timed.launch, list[Request]()
    for name, argument in spec.signature.items():
        plan = plans.get(name)
        if name in launch.null_pointers or argument.kind == "none":
            args.append({"name": name, "kind": "value", "value": None})
        elif plan is None:
            passed = {**launch.key, **launch.scalars}
            value = argument.value if argument.value is not None else passed.get(name)
            args.append({"name": name, "kind": "value", "value": value})
        elif argument.kind == "tensordesc":
            numbers = integer_values({k: v for k, v in values.items() if isinstance(v, int)})
            shape, strides = list(plan.shape), list(plan.strides)
            block = [_extent(extent, numbers) for extent in argument.block]
            fields = {"shape": shape, "strides": strides, "block": block}
            args.append({"name": name, "kind": "tensor", "dtype": plan.element.name, **fields})
        else:
            elements = max(1, (plan.room_bytes - HEAD_BYTES) // plan.element.size_bytes)
            fields = {"dtype": plan.element.name, "elements": elements}
            args.append({"name": name, "kind": "pointer", **fields})
    return args


def _extent(extent: int | str, numbers: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    return expression.evaluate(expression.parse(extent), numbers)
