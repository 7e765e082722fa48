import sys, shutil
from pathlib import Path
from benchmarks.first_launch_in_c import launches
from tests.support.fake_gpu import FakeGpu, build
folder=Path(__import__('os').environ['FL']); shutil.rmtree(folder, ignore_errors=True); folder.mkdir()
gpu=FakeGpu(build(folder))
for n,f,w in launches([Path(p) for p in sys.argv[1:]], folder, gpu, ["stored","scale"]): print(n,f,w)
