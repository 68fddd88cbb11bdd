"""Finds the CUDA toolkit and asks its nvcc what it is. Needs neither torch nor a GPU."""

import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST, NEWEST = (7, 5), (12, 0)  # the architectures that are built where no list says otherwise


def find_toolkit() -> Path | None:
    """The CUDA toolkit's folder. An nvcc on the PATH may be a wrapper script, so it is asked where its toolkit is."""
    candidates = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        plan = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True).stderr
        candidates += re.findall(r"^#\$ TOP=(.+)$", plan, re.MULTILINE)
    for folder in filter(None, candidates):
        home = Path(folder).resolve()
        if (home / "bin" / "nvcc").exists() and (home / "include" / "cuda_runtime.h").exists():
            return home
    return None


def supported_architectures(home: Path) -> list[tuple[int, int]]:
    listed = subprocess.run([home / "bin" / "nvcc", "--list-gpu-arch"], capture_output=True, text=True, check=True)
    found = [(int(a), int(b)) for a, b in re.findall(r"compute_(\d+)(\d)\b", listed.stdout)]
    return sorted(arch for arch in found if OLDEST <= arch <= NEWEST)


def nvcc_version(home: Path) -> str:
    text = subprocess.run([home / "bin" / "nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bV(\d+(?:\.\d+)*)", text)
    return found.group(1) if found else "unknown"
