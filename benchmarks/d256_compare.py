"""Scratch: passes of several kernels for dK and dV in turn with cuDNN."""

from __future__ import annotations

import random
import statistics
import sys
import time
from functools import partial

import torch
from attention import LOG2_E
from attention_backward import NUM_DOTS, WORK, Tensors, cudnn_launch
from peers import built, in_turn, milliseconds, ratio

import aotc

full = "--full" in sys.argv
shape = WORK["d256"][0 if full else 1]
tensors = Tensors(shape)
scale, num_rows = shape.dim**-0.5, tensors.q.numel() // shape.dim
dq, dk, dv = map(tensors.rows_of, tensors.grads)
inputs = (*map(tensors.rows_of, (tensors.q, tensors.k, tensors.v, tensors.dout)),)
rows = (tensors.lse_log2, tensors.delta)
scalars = (scale, scale * LOG2_E, 1, shape.length, shape.length)
choices = {"HEAD_DIM": shape.dim, "CAUSAL": shape.causal}
parts = {}
for path in [each for each in sys.argv[1:] if each.endswith(".aotc")]:
    library = aotc.load(path)
    if "delta" in library:
        delta = library["delta"]
    for name in library:
        if name == "delta":
            continue
        kernel = library[name]
        out = (dq,) if "queries" in name else (dk, dv)
        for config in built(kernel, choices):
            label = " ".join(str(value) for value in (name.replace("backward_", ""), *config.values()))
            given = {"config": config, "choices": choices}
            arguments = (*inputs, *rows, *out, *scalars)
            parts[label] = (
                partial(kernel.launch, arguments, **given),
                partial(kernel.launch, arguments, **given, pdl=kernel.info.variants[0].waits_pdl),
            )


def sums():
    delta.launch((tensors.out, tensors.dout, tensors.delta, None, num_rows), choices={"HEAD_DIM": shape.dim})


sums()
rested = {label: [] for label in parts}
order, dice = list(parts), random.Random(1)
for launch, _ in parts.values():
    launch()
for _ in range(5):
    dice.shuffle(order)
    for label in order:
        time.sleep(0.05)
        rested[label].append(milliseconds(parts[label][0], 1, ahead=True))
for label, values in rested.items():
    dots = 3 if "queries" in label else 4
    took = statistics.median(values)
    print(f"  rested {took:.4f} ms {dots / 2 * shape.flops / took / 1e9:6.1f} TFLOP/s  {label}", flush=True)
queries = min((label for label in parts if "queries" in label), key=lambda each: statistics.median(rested[each]))


def whole(pair, pdl):
    sums()
    parts[pair][pdl]()
    parts[queries][pdl]()


peers = {label: partial(whole, label, 1) for label in parts if "queries" not in label}
peers |= {f"{label} no pdl": partial(whole, label, 0) for label in parts if "queries" not in label and "3 False" in label}
peers["cudnn"] = cudnn_launch(tensors)
for label, peer in peers.items():
    print(f"  wrong {tensors.wrong(peer):.3f} {label}")
for turns in (15,):
    times = in_turn(peers, turns, 3, ahead=True)
    for label, values in times.items():
        print(f"  all in turn {statistics.median(values):.4f} {ratio(times['cudnn'], values):.4f}  {label}", flush=True)
for label in [each for each in peers if each != "cudnn"]:
    times = in_turn({label: peers[label], "cudnn": peers["cudnn"]}, 15, 3, ahead=True)
    print(f"  with cudnn alone {statistics.median(times[label]):.4f} {statistics.median(times['cudnn']):.4f} "
          f"{ratio(times['cudnn'], times[label]):.4f}  {label}", flush=True)
