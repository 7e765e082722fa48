"""Entry points of turboadam (0.2.0) for `library_draw.py`."""

from __future__ import annotations

from typing import Any

import torch
from library_draw import Draw, EntryPoints


def _steps(**fixed: Any) -> Any:
    """Return three steps of the optimizer on two parameters."""

    def run(draw: Draw) -> Any:
        dtype = draw.one_of(torch.float32, torch.bfloat16)
        shapes = (draw.one_of(128, 100), draw.width), (8192 + draw.one_of(0, 3),)
        parameters = [torch.nn.Parameter(draw.tensor(*shape, dtype=dtype)) for shape in shapes]
        words = {"weight_decay": draw.one_of(0.0, 0.01), "v_bits": draw.one_of(4, 8), **fixed}
        optimizer = draw.get("turboadam:TurboAdam")(parameters, **words)
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = draw.tensor(*parameter.shape, dtype=dtype)
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    return run


ENTRY_POINTS: EntryPoints = {
    "TurboAdam": _steps(),
    "TurboAdam_blocks": _steps(block_size=64),
    "TurboAdam_plain_mean": _steps(compress_m=False),
    "TurboAdam_plain_variance": _steps(compress_v=False),
    "TurboAdam_lr": _steps(lr=1e-2, betas=(0.8, 0.99)),
}
