"""How the library is built, loaded and described."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cudamem_ops

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = Path(cudamem_ops._load._C.__file__)
BUILT = cudamem_ops.build_info()
needs_kernels = pytest.mark.skipif(BUILT["cuda"] is None, reason="this build has no CUDA kernels")


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT
    )


def setup_py(*arguments, **environment):
    """Runs setup.py in a copy of the sources, so that this build is left alone. Variables set to None are absent."""
    env = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
    return subprocess.run(
        [sys.executable, "setup.py", *arguments], capture_output=True, text=True, env=env, cwd=environment.get("PWD")
    )


@pytest.fixture
def sources(tmp_path):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "tools", "cudamem_ops"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "build_info.json"))
    return tmp_path


def described(sources):
    """The build_info that setup.py wrote for the compiler."""
    text = (sources / "build" / "generated" / "build_info.h").read_text()
    return json.loads(re.search(r'R"json\((.*)\)json"', text).group(1))


def test_build_info_says_what_was_built():
    assert BUILT["torch"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert BUILT["compiler"]
    assert set(BUILT["flags"]) == {"cxx", "nvcc"}
    assert not any(flag.startswith("-std") for flags in BUILT["flags"].values() for flag in flags)
    assert (BUILT["nvcc"] is None) == (BUILT["cuda"] is None) == (BUILT["architectures"] == [])
    beside = json.loads(LIBRARY.with_name("build_info.json").read_text())
    assert {key: beside[key] for key in BUILT} == BUILT


@needs_kernels
def test_library_holds_device_code():
    sections = subprocess.run(["readelf", "-SW", LIBRARY], capture_output=True, text=True, check=True).stdout
    size = re.search(r"\.nv_fatbin\s+\S+\s+\S+\s+\S+\s+([0-9a-f]+)", sections)
    assert size is not None
    assert int(size.group(1), 16) > 100_000 * len(BUILT["architectures"])


def test_import_leaves_cuda_alone():
    result = python("import torch, cudamem_ops; print(torch.cuda.is_initialized())")
    assert result.stdout.strip() == "False", result.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_operators_work_in_a_forked_child():
    code = """
import multiprocessing, torch, cudamem_ops
def child(queue): queue.put(float(torch.ops.cudamem.sum(torch.ones(7, device="cuda"))))
context = multiprocessing.get_context("fork"); queue = context.Queue()
process = context.Process(target=child, args=(queue,)); process.start()
print(queue.get(timeout=120)); process.join()
"""
    assert python(code).stdout.strip() == "7.0"


def test_another_torch_minor_is_one_clear_error(tmp_path):
    package = shutil.copytree(ROOT / "cudamem_ops", tmp_path / "cudamem_ops")
    info = json.loads((package / "build_info.json").read_text())
    (package / "build_info.json").write_text(json.dumps({**info, "torch": "2.7.1+cu128"}))
    result = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import cudamem_ops")
    message = result.stderr.strip().splitlines()[-1]
    assert message.startswith("ImportError")
    for part in ("2.7", torch.__version__, info["rebuild"]):
        assert part in message


def test_patch_release_and_local_build_of_the_same_minor_are_accepted(tmp_path):
    package = shutil.copytree(ROOT / "cudamem_ops", tmp_path / "cudamem_ops")
    info = json.loads((package / "build_info.json").read_text())
    minor = ".".join(torch.__version__.split(".")[:2])
    (package / "build_info.json").write_text(json.dumps({**info, "torch": f"{minor}.9+other"}))
    result = python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import cudamem_ops; print(cudamem_ops.__file__)"
    )
    assert result.stdout.strip() == str(package / "__init__.py"), result.stderr


def test_unbuilt_sources_say_how_to_build(sources):
    result = python(f"import sys; sys.path.insert(0, {str(sources)!r}); import cudamem_ops")
    assert "ImportError: cudamem_ops is not built here" in result.stderr


def test_cuda_required_without_nvcc_is_a_clear_error(sources):
    code = """
import runpy, tools.cuda_toolkit
tools.cuda_toolkit.find_toolkit = lambda: None
runpy.run_path("setup.py")
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=sources,
        env={**os.environ, "CUDAMEM_CUDA": "1"},
    )
    assert result.returncode != 0
    assert "CUDAMEM_CUDA=1" in result.stderr
    assert "CUDA_HOME" in result.stderr
    assert "Traceback" not in result.stderr


def test_cpu_only_build_is_described(sources):
    result = setup_py("--version", CUDAMEM_CUDA="0", PWD=str(sources))
    assert result.returncode == 0, result.stderr
    assert described(sources)["cuda"] is None
    assert described(sources)["architectures"] == []


@needs_kernels
@pytest.mark.parametrize("listed", [None, ""])
def test_no_list_and_no_gpu_builds_every_architecture(sources, listed):
    environment = {"TORCH_CUDA_ARCH_LIST": listed, "CUDA_VISIBLE_DEVICES": ""}
    result = setup_py("--version", PWD=str(sources), **environment)
    assert result.returncode == 0, result.stderr
    built = described(sources)["architectures"]
    assert {"7.5", "8.0", "8.6", "8.9", "9.0"} <= set(built)
    assert built[-1].endswith("+PTX")
    assert sum("PTX" in name for name in built) == 1


@needs_kernels
@pytest.mark.parametrize(
    ("given", "built"), [("9.0", ["9.0"]), ("8.0;9.0+PTX", ["8.0", "9.0", "9.0+PTX"]), ("8.0 8.6", ["8.0", "8.6"])]
)
def test_architecture_list_is_honoured(sources, given, built):
    result = setup_py("--version", TORCH_CUDA_ARCH_LIST=given, PWD=str(sources))
    assert result.returncode == 0, result.stderr
    assert described(sources)["architectures"] == built


@needs_kernels
def test_wrong_architecture_list_is_named(sources):
    result = setup_py("--version", TORCH_CUDA_ARCH_LIST="nine", PWD=str(sources))
    assert result.returncode != 0
    assert "TORCH_CUDA_ARCH_LIST=nine" in result.stderr
    assert "Traceback" not in result.stderr


def test_kernel_table():
    if BUILT["cuda"] is None or not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="no CUDA"):
            cudamem_ops.kernels()
        return
    rows = cudamem_ops.kernels()
    for op in cudamem_ops.variants():
        assert any(row["name"].startswith(f"{op}_") for row in rows), op
    for row in rows:
        assert 0 < row["registers"] <= 255
        assert row["local_bytes"] == 0
        assert row["block_threads"] <= row["max_threads"]
        assert 0 < row["occupancy"] <= 1
        if row["name"].startswith(("conv1d_unrolled", "conv1d_short_rows", "conv1d_gradients", "transpose_chunk")):
            assert row["dynamic_shared_bytes"] > 0, row["name"]


def test_bug_report():
    result = subprocess.run([sys.executable, "-m", "cudamem_ops"], capture_output=True, text=True, check=True)
    assert f"torch: {torch.__version__}" in result.stdout
    assert "build architectures" in result.stdout
    assert "kernel" in result.stdout
