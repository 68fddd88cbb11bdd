"""Fixtures: where the tests run, what they draw at random, and what they need."""

import os
import secrets
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from helpers import unavailable_cuda

SEED_VARIABLE = "CUDAMEM_TEST_SEED"
RUN_SEED = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(31))


def pytest_report_header() -> str:
    return f"random data: {SEED_VARIABLE}={RUN_SEED} repeats this run's"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for all tests that were skipped for the same reason; and how to repeat a failed run."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, count in Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped).most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"To repeat this run's random data: {SEED_VARIABLE}={RUN_SEED}")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # the tensors are small: threads on the CPU would mostly wait for each other
    config.addinivalue_line("filterwarnings", "ignore:ComplexHalf support is experimental:UserWarning")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``@pytest.mark.large(gib=N)`` runs where N GiB of GPU memory are free."""
    marker = item.get_closest_marker("large")
    if marker is None:
        return
    if reason := unavailable_cuda():
        pytest.skip(reason)
    torch.cuda.empty_cache()
    free_gib = torch.cuda.mem_get_info()[0] / 2**30
    if free_gib < marker.kwargs["gib"]:
        pytest.skip(f"needs {marker.kwargs['gib']} GiB of GPU memory, and {free_gib:.1f} are free")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seeds torch's generators of all devices: new data in each run, and the same for a test that runs by itself."""
    value = RUN_SEED ^ zlib.crc32(request.node.nodeid.encode())
    torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions that cuDNN computes are compared with float64: no TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def cuda() -> Iterator[str]:
    """Skips without a GPU; afterwards no error may be left behind on it."""
    if reason := unavailable_cuda():
        pytest.skip(reason)
    yield "cuda"
    torch.cuda.synchronize()


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda":
        return request.getfixturevalue("cuda")
    return request.param


@pytest.fixture
def two_gpus(cuda: str) -> list[str]:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return ["cuda:0", "cuda:1"]
