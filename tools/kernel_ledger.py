"""The kernel ledger: what ptxas gives every kernel on every architecture.

    python tools/kernel_ledger.py           compiles all kernels and rewrites tools/kernel_ledger.json
    python tools/kernel_ledger.py --check   compiles them and fails where a kernel differs from the ledger, or spills

A change to a kernel rewrites the ledger on purpose, so that its diff shows what the change costs. Registers depend on
the compiler: with another nvcc than the ledger's, --check only looks for spills. Without nvcc nothing is checked.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "tools" / "kernel_ledger.json"
sys.path.insert(0, str(ROOT))

from tools.cuda_toolkit import (  # noqa: E402
    find_toolkit,
    gencode_flags,
    nvcc_version,
    real_from_virtual,
    supported_architectures,
)


def compile_one(home: Path, source: Path, group: list[str]) -> dict[tuple[str, str], list[int]]:
    """{(kernel, architecture): [registers, static shared bytes, spilled bytes]} for architectures built together."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(home / "bin" / "nvcc"), "-fatbin", "-O3", "-std=c++17", "-Xptxas", "-v", *gencode_flags([group])]
        command += [f"-I{ROOT / 'csrc'}", str(source), "-o", f"{folder}/kernels.fatbin"]
        report = subprocess.run(command, capture_output=True, text=True)
    if report.returncode != 0:
        raise SystemExit(f"{source.name} does not compile for {', '.join(group)}:\n{report.stderr}")
    kernels: dict[tuple[str, str], list[int]] = {}
    for block in report.stderr.split("Compiling entry function '")[1:]:
        heading = re.match(r"(\w+)' for 'sm_(\d+)'", block)
        registers = re.search(r"Used (\d+) registers", block)
        shared = re.search(r"(\d+) bytes smem", block)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", block)
        if heading is None or registers is None or spills is None:
            raise SystemExit(f"ptxas's report is not understood:\n{block}")
        kernels[heading.group(1), heading.group(2)] = [
            int(registers.group(1)),
            int(shared.group(1)) if shared else 0,
            int(spills.group(1)) + int(spills.group(2)),
        ]
    return kernels


def demangle(names: list[str]) -> dict[str, str]:
    text = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True).stdout
    short = (re.sub(r"\(cudamem::\w+\)$", "", line) for line in text.splitlines())
    return dict(zip(names, (name.replace("void ", "").replace("cudamem::", "") for name in short), strict=True))


def measure(home: Path) -> dict[str, dict[str, list[int]]]:
    """{kernel: {architecture: [registers, static shared bytes, spilled bytes]}}."""
    groups = real_from_virtual(supported_architectures(home))
    # The longest first, so that no processor is left alone with one at the end: those of most architectures, and of
    # these the smallest files, which instantiate the most kernels.
    sources = sorted((ROOT / "csrc").rglob("*.cu"), key=lambda source: source.stat().st_size)
    jobs = sorted(product(sources, groups), key=lambda job: len(job[1]), reverse=True)
    workers = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda job: compile_one(home, *job), jobs))
    names = demangle(sorted({name for result in results for name, _ in result}))
    ledger: dict[str, dict[str, list[int]]] = {}
    architectures = [number for group in groups for number in group]
    for result in results:
        for (name, architecture), numbers in result.items():
            ledger.setdefault(names[name], {})[architecture] = numbers
    ledger = {name: {n: row[n] for n in architectures if n in row} for name, row in ledger.items()}
    return dict(sorted(ledger.items()))


def render(nvcc: str, kernels: dict[str, dict[str, list[int]]]) -> str:
    """JSON with a line for each kernel, so that a diff reads well."""
    lines = [f"    {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in kernels.items()]
    return (
        f'{{\n  "nvcc": "{nvcc}",\n  "columns": ["registers", "static_shared_bytes", "spilled_bytes"],\n'
        '  "kernels": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of rewriting")
    check = parser.parse_args().check
    home = find_toolkit()
    if home is None:
        print("kernel ledger: no nvcc here, nothing compiled")
        return 0
    nvcc, kernels = nvcc_version(home), measure(home)
    spilled = [f"{name} on {arch}" for name, row in kernels.items() for arch, numbers in row.items() if numbers[2]]
    for place in spilled:
        print(f"kernel ledger: {place} spills registers")
    if not check:
        LEDGER.write_text(render(nvcc, kernels))
        print(f"kernel ledger: wrote {len(kernels)} kernels")
        return bool(spilled)
    committed = json.loads(LEDGER.read_text())
    if committed["nvcc"] != nvcc:
        print(f"kernel ledger: made by nvcc {committed['nvcc']}, this is {nvcc}: only spills were checked")
        return bool(spilled)
    differing = [
        n for n in kernels.keys() | committed["kernels"].keys() if kernels.get(n) != committed["kernels"].get(n)
    ]
    for name in sorted(differing):
        print(f"kernel ledger: {name}: now {kernels.get(name)}, ledger {committed['kernels'].get(name)}")
    if differing:
        print("kernel ledger: if that is meant, run `python tools/kernel_ledger.py` and commit what it writes")
    else:
        print(f"kernel ledger: {len(kernels)} kernels as committed, {len(spilled)} spills")
    return bool(spilled or differing)


if __name__ == "__main__":
    sys.exit(main())
