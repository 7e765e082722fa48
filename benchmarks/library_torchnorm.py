"""Entry points of torchnorm (0.1.2) for `library_draw.py`."""

from __future__ import annotations

from typing import Any

from library_draw import Draw, EntryPoints


def _layer(name: str, num_inputs: int, **settings: Any) -> Any:
    """Return a call of a layer, both ways or forward."""

    def run(draw: Draw) -> Any:
        grad = draw.flag()
        layer = draw.get(f"torchnorm:{name}")(draw.width, **settings).to(draw.dtype).to("cuda")
        inputs = [draw.tensor(draw.tokens, draw.width, grad=grad) for _ in range(num_inputs)]
        return layer(*inputs)

    return run


def _function(name: str, num_inputs: int, num_weights: int) -> Any:
    def run(draw: Draw) -> Any:
        inputs = [draw.tensor(draw.tokens, draw.width, grad=True) for _ in range(num_inputs)]
        weights = [draw.tensor(draw.width, grad=True) for _ in range(num_weights)]
        return draw(f"torchnorm._triton:{name}", *inputs, *weights, draw.one_of(1e-5, 1e-6))

    return run


ENTRY_POINTS: EntryPoints = {
    "RMSNorm": _layer("RMSNorm", 1),
    "FusedAddRMSNorm": _layer("FusedAddRMSNorm", 2),
    "LayerNorm": _layer("LayerNorm", 1),
    "LayerNorm_without_bias": _layer("LayerNorm", 1, bias=False),
    "fused_rms_norm": _function("fused_rms_norm", 1, 1),
    "fused_add_rms_norm": _function("fused_add_rms_norm", 2, 1),
    "fused_layer_norm": _function("fused_layer_norm", 1, 2),
}
