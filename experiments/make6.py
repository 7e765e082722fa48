"""The same archives in format 6, for the state before: make6.py KERNELS (FL: folder; what is launched is copied from FL7)."""
import hashlib, os, re, shutil, sys
from pathlib import Path
from aotc.package import archive as archives
from aotc.package import encoder
seven, six = Path(os.environ["FL"]), Path(os.environ["FL6"])
shutil.rmtree(six, ignore_errors=True); six.mkdir(parents=True)
found = [(p, archives.read(p)) for p in seven.glob("*.aotc") if p.name != "copy.aotc"]
encoder.MAJOR = 6
encoder.frame_digest = lambda data: hashlib.sha256(data).digest()
for path, archive in found:
    archives.write_file(six / path.name, archives.encode(archive, is_grouped=False, is_compressed=False))
for path in seven.glob("*.launch"):
    (six / path.name).write_text(path.read_text().replace(str(seven) + "/" , str(six) + "/", 1).replace(str(six), str(seven), 0))
    text = path.read_text(); lines = text.splitlines()
    lines[0] = lines[0].replace(str(seven), str(six)) if str(seven) in lines[0] else f"archive {six}/{Path(lines[0].split()[1]).name} {lines[0].split()[2]}"
    (six / path.name).write_text("\n".join(lines) + "\n")
    print(lines[0])
