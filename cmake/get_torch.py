#!/usr/bin/env python3
"""get_torch.py VERSION FOLDER: what it takes to build against one version of PyTorch's allocator interface.

Downloads the wheel (half a gigabyte) with pip, keeps of it the headers of c10 and the two libraries that hold the
allocator registries (some ten megabytes) as FOLDER/torch, and forgets the rest. Nothing else of PyTorch is needed to
build or to link; to run on a GPU takes a real installation.
"""

import pathlib
import subprocess
import sys
import tempfile
import zipfile

KEPT = (
    "torch/include/c10/",
    "torch/include/torch/headeronly/",
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/version.py",
)


def main(version: str, folder: pathlib.Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", work, f"torch=={version}"], check=True)
        (wheel,) = pathlib.Path(work).glob("*.whl")
        unpacked = pathlib.Path(work) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if name.startswith(KEPT)])
        unpacked.rename(folder)  # whole or not at all


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
