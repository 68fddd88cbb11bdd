"""Finds the CUDA toolkit and asks its nvcc what it is. Needs neither torch nor a GPU."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
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


def real_from_virtual(architectures: Iterable[tuple[int, int]]) -> list[list[str]]:
    """Numbers such as "86", grouped by major version. nvcc's front end runs once for a group, with the first as the
    virtual architecture, and ptxas for each of its members: that takes half the time of as many separate compilations.
    """
    return [[f"{major}{minor}" for major, minor in group] for _, group in groupby(architectures, itemgetter(0))]


def gencode_flags(groups: list[list[str]]) -> list[str]:
    return [f"-gencode=arch=compute_{group[0]},code=sm_{number}" for group in groups for number in group]


def nvcc_version(home: Path) -> str:
    text = subprocess.run([home / "bin" / "nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bV(\d+(?:\.\d+)*)", text)
    return found.group(1) if found else "unknown"
