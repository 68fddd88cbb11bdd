#!/usr/bin/env python3
"""Writes README's tables from the committed benchmark results, between ``<!-- results:<op> -->`` and
``<!-- /results -->``.

    tools/render_results.py           writes them
    tools/render_results.py --check   exit status 1 where README differs from what would be written

``stale.json`` in the folder of a GPU's results ({"op": "reason"}) makes README say that a table is outdated, and why.
"""

import argparse
import json
import math
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import PEERS, Row, best_peer, case_name, gbps, index, number, sweep_verdict  # noqa: E402

SECTION = re.compile(r"(<!-- results:(?P<op>\w+) -->\n).*?(<!-- /results -->)", re.DOTALL)
DIRECTIONS = {"forward": "", "backward": ", backward", "both": ", forward and backward"}
PLOTS = {"speedup": "speed-up over the fastest peer", "ladder": "what each technique buys"}
Providers = Mapping[str, Row]


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *lines)]


def time_of(providers: Providers, name: str) -> float | None:
    return providers[name]["kernel_us"] if name in providers else None


def ratio(numerator: float | None, denominator: float | None, digits: int = 2) -> str:
    return f"{numerator / denominator:.{digits}f}" if numerator and denominator else "-"


def case_line(providers: Providers) -> list[str]:
    ours = providers["cudamem"]
    us, peer = ours["kernel_us"], best_peer(providers)
    return [
        case_name(ours) + DIRECTIONS[ours["direction"]],
        number(us),
        number(gbps(ours) if us and ours["bytes_moved"] else None),
        ratio(time_of(providers, "memcpy"), us, 3),
        number(time_of(providers, "torch")),
        f"{peer['provider']} {number(peer['kernel_us'])}" if peer else "-",
        ratio(peer["kernel_us"], us) if peer else "-",
    ]


def ladder_lines(cases: Sequence[Providers]) -> tuple[list[str], list[list[str]]]:
    """GB/s of each variant, for the cases that have them."""
    climbed = [providers for providers in cases if any(name.startswith("cudamem:") for name in providers)]
    names = list(dict.fromkeys(name for providers in climbed for name in providers if name.startswith("cudamem:")))
    names = [*names, "cudamem", "torch", "memcpy"]

    def rate(providers: Providers, name: str) -> str:
        if not time_of(providers, name):
            return "-"
        gaps = " *" if providers[name]["timing"] == "events" else ""
        return number(gbps(providers[name])) + gaps

    header = ["GB/s", *(name.removeprefix("cudamem:").replace("cudamem", "default") for name in names)]
    return header, [
        [case_name(providers["cudamem"]), *(rate(providers, name) for name in names)] for providers in climbed
    ]


def host_sentence(rows: Sequence[Row]) -> str:
    """Ours and torch's wall clock of an eager call."""
    titles = {
        (False, "forward"): "no gradient",
        (True, "forward"): "recorded for a gradient",
        (True, "both"): "with backward",
    }
    parts = []
    for providers in index(row for row in rows if row["host_us"]).values():
        ours, builtin = providers["cudamem"], providers.get("torch")
        title = titles[bool(ours.get("requires_grad")), ours["direction"]]
        beside = f" (torch {number(builtin['host_us'], 3)})" if builtin else ""
        parts.append(f"{title} {number(ours['host_us'], 3)} us{beside}")
    return f"Wall clock of an eager call on a tiny tensor: {', '.join(parts)}." if parts else ""


def summary(cases: Sequence[Providers]) -> str:
    """Against each peer by itself: one that was not timed in a case has not lost it."""
    factors: dict[str, list[float]] = {}
    for case in cases:
        ours = time_of(case, "cudamem")
        for name, row in case.items():
            if name.split(":")[0] in PEERS and ours and row["kernel_us"]:
                factors.setdefault(name, []).append(row["kernel_us"] / ours)
    parts = (
        f"{name} in {sum(f >= 0.995 for f in found)} of {len(found)} cases "
        f"(geometric mean {math.exp(statistics.fmean(map(math.log, found))):.2f}x)"
        for name, found in factors.items()
    )
    return f"As fast or faster than {', '.join(parts)}." if factors else ""


def render_gpu(op: str, folder: Path, readme: Path) -> list[str]:
    """One GPU's part of an operator's section."""
    result: dict[str, Any] = json.loads((folder / f"{op}.json").read_text())
    meta, rows = result["meta"], result["rows"]
    cases = [case for case in index(row for row in rows if row["host_us"] is None).values() if "cudamem" in case]
    device = meta["gpu"] or f"{meta['cpu']} (CPU)"
    software = f"torch {meta['torch']}, CUDA {meta['cuda']}, driver {meta['driver']}"
    lines = [f"**{device}** ({software}; {meta['date'][:10]}). {summary(cases)}", ""]
    stale = folder / "stale.json"
    why = json.loads(stale.read_text()).get(op) if stale.exists() else None
    if why:
        lines += [f"> **Outdated:** these figures are of an earlier version of the kernels. {why}", ""]
    header = ["case", "us", "GB/s", "of copy", "torch us", "fastest peer, us", "speed-up"]
    lines += [*markdown_table(header, [case_line(case) for case in cases]), ""]
    header, ladder = ladder_lines([case for case in cases if case["cudamem"]["direction"] == "forward"])
    if ladder:
        lines += ["The ladder of variants, effective bandwidth:", "", *markdown_table(header, ladder), ""]
        if any(cell.endswith("*") for line in ladder for cell in line):
            lines += ["\\* It cannot be captured into a CUDA graph: timed as eager calls, launch gaps included.", ""]
    sweep = folder / f"{op}_sweep.json"
    if sweep.exists():
        lines += [sweep_verdict(json.loads(sweep.read_text())["rows"])[0], ""]
    if host := host_sentence(rows):
        lines += [host, ""]
    for plot, title in PLOTS.items():
        path = folder / f"{op}_{plot}.png"
        if path.exists():
            lines += [f"![{op}: {title}]({Path(os.path.relpath(path, readme.parent)).as_posix()})", ""]
    return lines


def render_section(op: str, results: Path, readme: Path) -> str:
    folders = sorted(path.parent for path in results.glob(f"*/{op}.json"))
    lines = [line for folder in folders for line in render_gpu(op, folder, readme)]
    return "\n".join(["", *lines] if lines else ["", "No results are committed yet.", ""])


def render(text: str, results: Path, readme: Path) -> str:
    """README's text with each of its sections written anew."""
    return SECTION.sub(lambda match: match[1] + render_section(match["op"], results, readme) + "\n" + match[3], text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where README differs")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args(argv)
    before = options.readme.read_text()
    after = render(before, options.results, options.readme)
    if not options.check:
        options.readme.write_text(after)
        return 0
    if before != after:
        print(f"{options.readme} is not what the results say: run tools/render_results.py", file=sys.stderr)
    sections = {match["op"] for match in SECTION.finditer(before)}
    measured = {path.stem for path in options.results.glob("*/*.json")} - {"stale"}
    for op in sorted(measured - sections):
        print(f"{options.readme} has no section <!-- results:{op} -->", file=sys.stderr)
    return int(before != after or bool(measured - sections))


if __name__ == "__main__":
    sys.exit(main())
