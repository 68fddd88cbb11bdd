#!/usr/bin/env python3
"""compute-sanitizer over the operators' GPU tests, in several processes at once.

    tools/sanitize.py memcheck sum conv1d
    tools/sanitize.py racecheck --jobs 8 --minutes 20

Only this library's kernels are checked, by their namespace: those of torch would take most of the time. But initcheck
must see all of them, since they write what ours read. torch hands out pieces of large blocks of memory, between which
memcheck and initcheck see no border: here each tensor has an allocation of its own, which a graph cannot capture.
Tests marked ``without_sanitizer`` or ``large`` are left out. The exit status is 0 where every test passed, or was
skipped, and the sanitizer found no error; the logs are in ``build/sanitize``. Before memcheck, a sum over memory that
is not there has to be found: so that no filter hides all.
"""

import argparse
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "sanitize"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
OPS = sorted(room.name for room in (ROOT / "csrc").iterdir() if room.is_dir() and room.name != "common")
OUTCOMES = re.compile(r"^=+ (\d+ .*) in [\d.]+s.* =+$", re.MULTILINE)  # pytest's last line
# After so many seconds, as if the user had interrupted it, pytest ends and sums up what it did.
PYTEST_UNTIL = """
import signal, sys, pytest
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.alarm(int(sys.argv[1]))
sys.exit(pytest.main(sys.argv[2:]))
"""
GRACE_S = 60  # for it to end by itself
READS_TOO_FAR = """
import torch, cudamem_ops
x = torch.ones(1 << 20, device="cuda")
x.untyped_storage().resize_(1 << 10)  # bytes; the tensor keeps its size
cudamem_ops.sum(x)
torch.cuda.synchronize()
"""
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:errors?$|hazards? displayed)", re.MULTILINE)


def gpu_tests(ops: list[str]) -> list[str]:
    """The ids of the tests to run, in an order that gives each process some of everything."""
    files = [f"tests/test_{op}.py" for op in ops]
    choice = ["--collect-only", "-q", "-m", "not large and not without_sanitizer", "-k", "not cpu", *files]
    listed = subprocess.run([sys.executable, "-m", "pytest", *choice], cwd=ROOT, capture_output=True, text=True)
    ids = [line for line in listed.stdout.splitlines() if line.startswith("tests/") and "::" in line]
    if listed.returncode or not ids:
        sys.exit(f"no tests were found:\n{listed.stdout}{listed.stderr}")
    random.Random(0).shuffle(ids)
    return ids


def start(tool: str, code: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """A Python process under the sanitizer."""
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    ours = [] if tool == "initcheck" else ["--kernel-name", "kns=cudamem"]
    command = ["compute-sanitizer", "--tool", tool, *ours, "--error-exitcode", "99", sys.executable, "-c", code]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def start_tests(tool: str, ids: list[str], seconds: float, log: Path) -> subprocess.Popen[bytes]:
    names = log.with_suffix(".txt")
    names.write_text("\n".join(ids))
    # The process stops itself: compute-sanitizer, when it is told to stop, gives no summary.
    return start(tool, PYTEST_UNTIL, str(math.ceil(seconds)), "-v", "-p", "no:cacheprovider", f"@{names}", log=log)


def finds_what_reads_too_far() -> bool:
    log = LOGS / "reads_too_far.log"
    process = start("memcheck", READS_TOO_FAR, log=log)
    with suppress(subprocess.TimeoutExpired):
        process.wait(2 * GRACE_S)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = read(log.read_text(errors="replace"))["sanitizer_errors"] > 0
    if not found:
        print(f"{log.relative_to(ROOT)}: an error that is there was not found")
    return found


def read(log: str) -> Counter[str]:
    """What a log sums up: how many tests passed, failed and so on, the sanitizer's errors, and its summaries."""
    found: Counter[str] = Counter()
    for line in OUTCOMES.findall(log):
        found.update({name: int(count) for count, name in re.findall(r"(\d+) (\w+)", line)})
    summaries = [int(errors) for errors in SUMMARY.findall(log)]
    return found + Counter(sanitizer_errors=sum(summaries), summaries=len(summaries))


def run(tool: str, ids: list[str], jobs: int, seconds: float) -> bool:
    """Whether all tests passed, or were skipped, without an error, and some did pass."""
    LOGS.mkdir(parents=True, exist_ok=True)
    clean = tool != "memcheck" or finds_what_reads_too_far()
    logs = [LOGS / f"{tool}-{job}.log" for job in range(min(jobs, len(ids)))]
    processes = []
    end = time.monotonic() + seconds + GRACE_S
    try:
        processes += [start_tests(tool, ids[job :: len(logs)], seconds, log) for job, log in enumerate(logs)]
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, end - time.monotonic()))
    finally:  # also where the user interrupts
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    total: Counter[str] = Counter()
    for process, log in zip(processes, logs, strict=True):
        found = read(log.read_text(errors="replace"))
        if process.wait() != 0 or not found["summaries"]:
            clean = False
            print(f"{log.relative_to(ROOT)}: exit status {process.returncode}, {dict(found)}")
        total += found
    print(f"{tool}: {len(ids)} tests, {dict(total)}")
    return clean and total["passed"] > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("op", nargs="*", metavar="op", help=f"of {', '.join(OPS)}; all by default")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 1), help="processes at once")
    parser.add_argument("--minutes", type=float, default=60, help="after which the rest is given up")
    options = parser.parse_args()
    if unknown := set(options.op) - set(OPS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    return 0 if run(options.tool, gpu_tests(options.op or OPS), options.jobs, 60 * options.minutes) else 1


if __name__ == "__main__":
    sys.exit(main())
