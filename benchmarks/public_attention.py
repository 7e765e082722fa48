"""Works of Triton's tutorial 06 and of FlashAttention (2.8) for `public_sources.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from public_work import Step, Work, causal_work, error_of, random_tensor

TUTORIAL = "triton_tutorials.fused_attention"
_ABSENT = """
    bias Cache_seqlens Cache_batch_idx Descale_Q Descale_K Descale_V Descale_O stride_descale_q_z
    stride_descale_k_z stride_descale_v_z stride_descale_o_z cu_seqlens_q cu_seqlens_k philox_seed
    philox_offset_base sd_mask dropout_mask alibi_slopes
"""
_ZERO = "bz bh bm bn az ah sz sh sm sn"
_OFF = """
    IS_VARLEN IS_INFERENCE PRE_LOAD_V USE_BIAS ENABLE_DROPOUT RETURN_SCORES USE_ALIBI IS_FP8
    FP8_OUTPUT
"""


def _strides(**tensors: Any) -> dict[str, int]:
    """Return the strides of four-axis tensors by the tutorial's names."""
    names = {"q": "zhmk", "k": "zhnk", "v": "zhkn", "o": "zhmn"}
    return {
        f"stride_{name}{axis}": tensor.stride(axis_index)
        for name, tensor in tensors.items()
        for axis_index, axis in enumerate(names[name])
    }


def tutorial() -> Iterator[Work]:
    """The tutorial's forward pass, with block pointers."""
    import torch

    batch, heads, length = 4, 16, 4096
    for stage in (3, 1):
        q, k, v, out = (random_tensor(batch, heads, length, 128).half() for _ in range(4))
        sums = torch.empty(batch, heads, length, device="cuda")
        values = {
            "Q": q, "K": k, "V": v, "sm_scale": 128**-0.5, "M": sums, "Out": out, "Z": batch,
            "H": heads, "N_CTX": length, **_strides(q=q, k=k, v=v, o=out),
        }  # fmt: skip
        step = Step(
            "tutorial_forward", TUTORIAL, "_attn_fwd", values, {"HEAD_DIM": 128, "STAGE": stage},
            lambda config: (-(-length // config["BLOCK_M"]), batch * heads, 1),
        )  # fmt: skip
        views = [tensor.transpose(1, 2) for tensor in (q, k, v, out)]
        name = "tutorial, causal" if stage == 3 else "tutorial, full"
        yield causal_work(name, step, *views, 1, is_causal=stage == 3)


def tutorial_backward() -> Iterator[Work]:
    """The tutorial's backward pass, causal: sums of dO · O, then all gradients."""
    import torch

    batch, heads, length = 4, 16, 4096
    for features in (64, 128):
        q, k, v, d_out = (random_tensor(batch, heads, length, features).half() for _ in range(4))
        scale, log2_e = features**-0.5, 1.4426950408889634
        causal = torch.ones(length, length, device="cuda").tril().bool()
        out, sums = torch.empty_like(q), torch.empty(batch, heads, length, device="cuda")
        for b, h in ((b, h) for b in range(batch) for h in range(heads)):
            scores = (q[b, h].float() @ k[b, h].float().T * scale).masked_fill(~causal, -torch.inf)
            sums[b, h] = scores.logsumexp(-1) * log2_e
            out[b, h] = (scores.softmax(-1) @ v[b, h].float()).half()
        scaled = (k * (scale * log2_e)).half()
        grads = [torch.empty_like(q) for _ in range(3)]
        delta = torch.empty_like(sums)
        sizes = {"H": heads, "N_CTX": length}
        first = Step(
            "tutorial_backward_sums", TUTORIAL, "_attn_bwd_preprocess",
            {"O": out, "DO": d_out, "Delta": delta, "Z": batch, **sizes}, {"HEAD_DIM": features},
            lambda config: (length // config["BLOCK_M"], batch * heads),
        )  # fmt: skip
        second = Step(
            "tutorial_backward", TUTORIAL, "_attn_bwd",
            {
                "Q": q, "K": scaled, "V": v, "sm_scale": scale, "DO": d_out,
                **dict(zip(("DQ", "DK", "DV"), grads, strict=True)), "M": sums, "D": delta,
                **{f"stride_{axis}": q.stride(axis_index) for axis_index, axis in enumerate(("z", "h", "tok", "d"))},
                **sizes,
            },
            {"HEAD_DIM": features, "BLK_SLICE_FACTOR": 2},
            lambda config: (length // config["BLOCK_N1"], 1, batch * heads),
        )  # fmt: skip
        picked = [(0, 0), (batch - 1, heads - 1)]
        expected: list[Any] = []
        for b, h in picked:
            head_inputs = [tensor[b, h].double().requires_grad_() for tensor in (q, k, v)]
            scores = (head_inputs[0] @ head_inputs[1].T * scale).masked_fill(~causal, -torch.inf)
            (scores.softmax(-1) @ head_inputs[2]).backward(d_out[b, h].double())
            expected.append([tensor.grad for tensor in head_inputs])

        def wrong(
            grads: list[Any] = grads, picked: Any = picked, expected: Any = expected
        ) -> float:
            return max(
                error_of(grad[b, h], expected_grad)
                for (b, h), head_grads in zip(picked, expected, strict=True)
                for grad, expected_grad in zip(grads, head_grads, strict=True)
            )

        yield Work(
            f"tutorial backward d{features} {batch}x{heads}x{length}",
            5.0 * batch * heads * length**2 * features, [first, second], wrong, [*grads, delta],
        )  # fmt: skip


def flash() -> Iterator[Work]:
    """FlashAttention's forward pass in Triton, of its backend for AMD."""
    import torch

    batch, length, heads = 4, 4096, 16
    for is_causal in (True, False):
        q, k, v, out = (random_tensor(batch, length, heads, 128) for _ in range(4))
        lse = torch.empty(batch, heads, length, device="cuda")
        tensors = {"q": q, "k": k, "v": v, "o": out}
        zeros = [f"stride_{stride}" for stride in _ZERO.split()]
        values = {
            **dict.fromkeys(_ABSENT.split()), **dict.fromkeys(zeros, 0), "Q": q, "K": k, "V": v, "Out": out,
            "LSE": lse, "dropout_p": 0.0,
            **_strides(**{name: tensor.transpose(1, 2) for name, tensor in tensors.items()}),
            **{f"stride_lse_{axis}": lse.stride(axis_index) for axis_index, axis in enumerate("zhm")},
        }  # fmt: skip
        constants = {
            "SM_SCALE": 128**-0.5, "HQ": heads, "HK": heads, "ACTUAL_BLOCK_DMODEL": 128,
            "MAX_SEQLENS_Q": length, "MAX_SEQLENS_K": length, "BLOCK_DMODEL": 128,
            "IS_CAUSAL": is_causal, "USE_EXP2": True, "FP8_MAX": None,
            **dict.fromkeys(_OFF.split(), False),
        }  # fmt: skip
        step = Step(
            "flash_forward", "flash_attn.flash_attn_triton_amd.fwd_prefill", "attn_fwd", values,
            constants, lambda config: (-(-length // config["BLOCK_M"]), heads, batch),
        )  # fmt: skip
        name = "flash, causal" if is_causal else "flash, full"
        yield causal_work(name, step, q, k, v, out, 1, is_causal=is_causal)
