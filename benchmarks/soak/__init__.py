"""The soak: variants and random programs on a GPU, against the interpreter.

    python -m benchmarks.soak all -o OUT          # on a machine with a GPU
    python -m benchmarks.soak all -o OUT --smoke  # a handful, in the emulator, on any machine

Worker processes compile and interpret, which is nearly all of the cost; a few more launch, each with a
context of its own. Each writes a launch to the journal before it tries it: a hang has a name. A launch that
hangs keeps the GPU busy even when its process is gone. After one the soak launches no more on that GPU,
and what is most likely to hang comes last.

Invariant: a case is judged as `aotc verify --device` judges it, launch for launch.
"""
