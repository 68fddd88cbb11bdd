"""Builds cudamem_ops._C: the torch side with the C++ compiler, the kernels with nvcc where there is one.

Environment:
  CUDAMEM_CUDA          auto (default): CUDA kernels if nvcc is found; 1: they must be built; 0: a CPU-only build
  CUDA_HOME, CUDA_PATH  the CUDA toolkit (else /usr/local/cuda, else what the nvcc on the PATH says)
  TORCH_CUDA_ARCH_LIST  architectures, as torch reads it, such as "9.0" or "8.0;9.0+PTX" (else those of the visible
                        GPUs; without one, all that this nvcc knows from 7.5 to 12.0, and PTX for the newest)
  MAX_JOBS              how many files are compiled at once
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from setuptools import Extension, setup
from torch.utils import cpp_extension

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT))

from tools.cuda_toolkit import (  # noqa: E402
    find_toolkit,
    gencode_flags,
    nvcc_version,
    real_from_virtual,
    supported_architectures,
)

GENERATED = ROOT / "build" / "generated"
REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps -e ."


def wanted_toolkit() -> tuple[Path | None, str]:
    """The toolkit to build with, or None and why there are to be no CUDA kernels."""
    mode = os.environ.get("CUDAMEM_CUDA", "auto")
    if mode not in ("auto", "0", "1"):
        raise SystemExit(f"CUDAMEM_CUDA={mode} is not understood: use auto, 1 or 0.")
    if mode == "0":
        return None, "it was built with CUDAMEM_CUDA=0"
    home = find_toolkit()
    if home is None and mode == "1":
        raise SystemExit(
            "CUDAMEM_CUDA=1 asks for CUDA kernels, but no CUDA toolkit with nvcc was found in CUDA_HOME, CUDA_PATH, "
            "/usr/local/cuda or on the PATH. Install one or set CUDA_HOME; CUDAMEM_CUDA=0 builds without CUDA."
        )
    return home, "no nvcc was found when it was built"


def architecture_flags(home: Path) -> list[str]:
    """nvcc's -gencode flags."""
    if os.environ.get("TORCH_CUDA_ARCH_LIST") or torch.cuda.is_available():
        try:
            return cpp_extension._get_cuda_arch_flags()
        except ValueError as error:
            raise SystemExit(
                f"TORCH_CUDA_ARCH_LIST={os.environ.get('TORCH_CUDA_ARCH_LIST')}: {error}. Use a list such as "
                '"9.0" or "8.0;9.0+PTX".'
            ) from error
    groups = real_from_virtual(supported_architectures(home))
    newest = groups[-1][-1]
    return [*gencode_flags(groups), f"-gencode=arch=compute_{newest},code=compute_{newest}"]


def architecture_names(flags: list[str]) -> list[str]:
    """["9.0", "9.0+PTX"] of -gencode flags."""
    pairs = re.findall(r"code=(sm|compute)_(\d+)(\d)([af]?)", " ".join(flags))
    pairs.sort(key=lambda pair: (int(pair[1]), int(pair[2]), pair[0] == "compute"))
    return [f"{major}.{minor}{suffix}" + ("+PTX" if kind == "compute" else "") for kind, major, minor, suffix in pairs]


def write_if_changed(path: Path, text: str) -> None:
    """Leaves an equal file alone, so that nothing is compiled again for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def describe_build(home: Path | None, flags: dict[str, list[str]]) -> dict[str, Any]:
    nvcc = nvcc_version(home) if home else None
    return {
        "torch": torch.__version__,
        "cuda": ".".join(nvcc.split(".")[:2]) if nvcc else None,
        "nvcc": nvcc,
        "compiler": subprocess.run(
            [os.environ.get("CXX", "c++"), "--version"], capture_output=True, text=True
        ).stdout.split("\n")[0],
        "architectures": architecture_names(flags["nvcc"]),
        "flags": flags,
    }


def extension() -> tuple[Extension, dict[str, Any]]:
    home, why_cpu_only = wanted_toolkit()
    # Python's own flags carry -g, which would make up nine tenths of the library; -g0 comes after it.
    flags = {"cxx": ["-O3", "-Wall", "-g0"], "nvcc": []}
    link: dict[str, list[str]] = {}
    suffixes = {".cpp"}
    if home:
        cpp_extension.CUDA_HOME = str(home)  # torch sets none where it was itself built without CUDA
        flags["nvcc"] = ["-O3", *architecture_flags(home)]
        link = {
            "library_dirs": [str(home / "lib64")],
            "libraries": ["cudart_static", "rt", "dl", "pthread"],
        }
        suffixes.add(".cu")
    else:
        flags["cxx"].append("-DCUDAMEM_CPU_ONLY")
    info = describe_build(home, flags)
    write_if_changed(
        GENERATED / "build_info.h",
        f'#define CUDAMEM_ARCHITECTURES "{" ".join(info["architectures"])}"\n'
        f'#define CUDAMEM_WHY_CPU_ONLY "{why_cpu_only}"\n'
        f'#define CUDAMEM_REBUILD "{REBUILD}"\n'
        f'#define CUDAMEM_BUILD_INFO R"json({json.dumps(info)})json"\n',
    )
    # The kernels of the last rooms take longest, so they come first: no processor is left alone with one at the end.
    files = [p.relative_to(ROOT).as_posix() for p in (ROOT / "csrc").rglob("*") if p.suffix in suffixes]
    sources = sorted(files, key=lambda name: (name.endswith(".cu"), name), reverse=True)
    headers = [p.relative_to(ROOT).as_posix() for p in (ROOT / "csrc").rglob("*.*h")]
    module = cpp_extension.CppExtension(
        "cudamem_ops._C",
        sources,
        depends=headers,
        include_dirs=[str(ROOT / "csrc"), str(GENERATED), *([str(home / "include")] if home else [])],
        extra_compile_args={compiler: list(own) for compiler, own in flags.items()},
        **link,
    )
    return module, info


MODULE, INFO = extension()


def commit() -> str | None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() or None


class BuildExtension(cpp_extension.BuildExtension):
    """Leaves build_info.json beside the library, to be read before the library is loaded."""

    def _write_info(self) -> None:
        library = Path(self.get_ext_fullpath(MODULE.name))
        info = {**INFO, "rebuild": REBUILD, "commit": commit()}  # were the commit in INFO, a new one would rebuild all
        write_if_changed(library.with_name("build_info.json"), json.dumps(info, indent=2) + "\n")

    def build_extensions(self) -> None:
        super().build_extensions()
        self._write_info()

    def copy_extensions_to_source(self) -> None:  # an editable or in-place build: the library moves to the sources
        super().copy_extensions_to_source()
        self._write_info()


setup(ext_modules=[MODULE], cmdclass={"build_ext": BuildExtension})
