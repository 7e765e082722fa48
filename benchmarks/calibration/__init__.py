"""The PTX emulator held against a GPU: the same instructions and kernels on both, bit for bit.

The machine with the compiler rarely has the GPU, so there are two steps:

    python -m benchmarks.calibration prepare -o dist/calibration     where aotc is installed
    python -m benchmarks.calibration run dist/calibration --json F   on the GPU's machine
    python -m benchmarks.calibration report F                        the table of docs/internals/calibration.md
"""
