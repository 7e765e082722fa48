"""The soak: variants and random programs on a GPU, against the interpreter.

    python -m benchmarks.soak all -o OUT          # on a machine with a GPU
    python -m benchmarks.soak all -o OUT --smoke  # a handful, in the emulator, on any machine

Worker processes compile and interpret: nearly all of the cost. A few more launch, each with its
own context. Each writes a launch to the journal before it tries it, so a hang has a name. A
hanging launch keeps the GPU busy even when its process is gone. After one the soak launches no
more on that GPU, so the cases most likely to hang come last.

Invariant: a case is judged as `aotc verify --device` judges it, launch for launch.
"""
