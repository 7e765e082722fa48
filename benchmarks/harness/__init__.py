"""One harness for benchmarks of kernels: a workload is data, one driver measures it against peers.

    aotc build benchmarks/attention.toml -o dist
    python -m benchmarks.harness attention d128 --archive dist/attention.aotc --json run.json
    python -m benchmarks.harness attention --list

`workload.py` says what a workload has, `workloads/` holds them by family. aotc and Triton get the
same source, arguments and grid, all from the manifest. Each peer picks its fastest candidate among
those that are right; then the peers take turns.
"""
