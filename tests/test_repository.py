"""Promises about the repository itself: rooms are complete, README's code runs, the examples run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import assert_examples_hold

import cudamem_ops

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted(p.name for p in (ROOT / "csrc").iterdir() if p.is_dir() and p.name != "common")


def run(*command: str) -> str:
    result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_every_operator_has_a_room():
    assert ROOMS
    assert sorted(cudamem_ops.variants()) == ROOMS


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_all_its_siblings(room):
    siblings = [f"csrc/{room}/{room}{end}" for end in (".h", ".cuh", ".cu", "_op.cpp")]
    siblings += [f"cudamem_ops/_{room}.py", f"tests/test_{room}.py", f"benchmarks/bench_{room}.py"]
    assert [name for name in siblings if not (ROOT / name).is_file()] == []
    assert room in cudamem_ops.__all__
    assert callable(getattr(cudamem_ops, room))


@pytest.mark.parametrize("name", ["transpose", "transpose_", "sum", "conv1d"])
def test_docstring_example_prints_what_it_says(name):
    assert_examples_hold(getattr(cudamem_ops, name), name)


def readme_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", readme_blocks("python"))
def test_readme_python_runs(block):
    run("-c", block)


def test_readme_shell_commands_exist():
    commands = [line.split("#")[0].split() for block in readme_blocks("sh") for line in block.splitlines()]
    assert commands
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands:
        match command:
            case ["make", target]:
                assert target in targets
            case ["python", "-m", "benchmarks", *arguments]:
                known = run("-m", "benchmarks", "--help")
                assert all(option in known for option in arguments if option.startswith("--"))
            case ["pip", "install", *_]:
                pass  # what the tests themselves ran on
            case _:
                raise AssertionError(f"README shows {command}, which no test knows")


@pytest.mark.slow
def test_demo_compares_and_trains():
    shown = run("examples/demo.py", "--quick")
    assert "The two runs agree" in shown
    for operator in cudamem_ops.variants():
        assert re.search(rf"^ +{operator}\b", shown, re.MULTILINE)


SANITIZED = """
tests/test_sum.py::test_a[cuda-float32] ========= Invalid __global__ read of size 4 bytes
PASSED                           [ 20%]
tests/test_sum.py::test_a[cuda-float64] SKIPPED (needs a GPU)            [ 40%]
FAILED tests/test_sum.py::test_b[None] - AssertionError: 3 errors
================== 1 failed, 2 passed, 1 skipped, 1 error in 61.90s (0:01:01) ==================
========= {}
========= ERROR SUMMARY: 5 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""


@pytest.mark.parametrize(
    "summary", ["ERROR SUMMARY: 12 errors", "RACECHECK SUMMARY: 12 hazards displayed (12 errors, 0 warnings)"]
)
def test_what_the_sanitizer_found_is_read_from_its_log(summary, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import sanitize

    found = sanitize.read(SANITIZED.format(summary))
    assert found == {"failed": 1, "passed": 2, "skipped": 1, "error": 1, "sanitizer_errors": 12, "summaries": 1}


@pytest.mark.parametrize(("status", "planted"), [(0, 1), (99, 1), (0, 0)])
def test_a_sanitizer_that_fails_is_not_passed_over(status, planted, monkeypatch, tmp_path):
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(
        f"#!/bin/sh\ncase \"$*\" in *resize_*) echo '========= ERROR SUMMARY: {planted} errors'; exit 1;; esac\n"
        f"echo '= 2 passed in 1.00s ='\necho '========= ERROR SUMMARY: 0 errors'\nexit {status}\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(ROOT / "tools")
    import sanitize

    monkeypatch.setattr(sanitize, "ROOT", tmp_path)
    monkeypatch.setattr(sanitize, "LOGS", tmp_path)
    assert sanitize.run("memcheck", ["a", "b", "c"], jobs=2, seconds=60) == (status == 0 and planted > 0)
