"""Loads the compiled library, once it is known to fit this torch."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import torch


def _minor(version: str) -> str:
    found = re.match(r"\d+\.\d+", version)
    return found.group() if found else version


def _check_build(info_file: Path) -> None:
    """The library holds to the C++ interface of the torch minor that it was built for."""
    if not info_file.exists():
        raise ImportError(
            f"cudamem_ops is not built here: {info_file} is missing. Build these sources in place with `pip install "
            "--no-build-isolation -e .`; an installed cudamem_ops is found from any other folder."
        )
    built = json.loads(info_file.read_text())
    if _minor(built["torch"]) != _minor(torch.__version__):
        raise ImportError(
            f"cudamem_ops was built for torch {_minor(built['torch'])} (by {built['torch']}), but this is torch "
            f"{torch.__version__}. Rebuild it, in its sources: {built['rebuild']}"
        )


_check_build(Path(__file__).with_name("build_info.json"))
_C: Any = import_module("cudamem_ops._C")


def build_info() -> dict[str, Any]:
    """What this build was made with.

    Returns:
        A dict with the versions of ``torch``, ``cuda`` (None for a CPU-only build), ``nvcc`` and the C++ ``compiler``,
        the GPU ``architectures`` ("9.0" is machine code, "9.0+PTX" is compiled by the driver for newer GPUs) and
        the compilers' ``flags``.
    """
    return _C.build_info()


def kernels() -> list[dict[str, Any]]:
    """What the CUDA kernels use, and how many of them the current GPU holds at once.

    Returns:
        For each kernel a dict: ``name``; ``registers`` per thread; ``static_shared_bytes`` and ``constant_bytes``
        per block and kernel; ``local_bytes`` per thread (spills and arrays that did not fit in registers);
        ``max_threads`` that a block may have; and, for the largest block that the library launches, ``block_threads``,
        the ``dynamic_shared_bytes`` of its launch (a typical problem's, where it depends on that), ``blocks_per_sm``
        and ``occupancy`` of the current device (resident threads of those that fit, 0 to 1).

    Raises:
        RuntimeError: there is no GPU, or this build has no CUDA kernels.
    """
    return _C.kernels()


def variants() -> dict[str, tuple[str, ...]]:
    """The names that each operator's ``variant`` argument takes, the simplest technique first."""
    return _C.variants()
