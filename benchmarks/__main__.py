"""``python -m benchmarks``: every operator's benchmark on the current GPU, or a smaller set on the CPU.

A case of your own, in one line:

    python -m benchmarks --op sum --shape 4194304x64 --dim -1 --dtype float16
    python -m benchmarks --op conv1d --shape 8x2048x4096 --weight 2048x1x4 --groups 2048

Random problems instead of the chosen ones:

    python -m benchmarks --op transpose --sweep 150
"""

import argparse
import csv
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_conv1d import BENCHMARK as CONV1D
from benchmarks.bench_conv1d import OPTIONS
from benchmarks.bench_sum import BENCHMARK as SUM
from benchmarks.bench_transpose import BENCHMARK as TRANSPOSE
from benchmarks.fingerprint import ROOT
from benchmarks.harness import (
    PEERS,
    Benchmark,
    Case,
    Row,
    Timer,
    best_peer,
    case_name,
    describe_run,
    failed,
    gbps,
    index,
    make_timer,
    number,
    reason,
    result_folder,
    row_key,
    run_case,
    run_host_cost,
    sweep_verdict,
)

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (TRANSPOSE, SUM, CONV1D)}
SWEEP_NUMEL, CPU_SWEEP_NUMEL = 1 << 26, 1 << 14
ARGUMENTS = {"dim0": -2, "dim1": -1, "dim": None, "weight": None, **OPTIONS}  # of the operators, with torch's defaults


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.lower().split("x"))


def dtypes(text: str) -> list[torch.dtype]:
    found = [getattr(torch, name, None) for name in text.split(",")]
    if not all(isinstance(dtype, torch.dtype) for dtype in found):
        raise argparse.ArgumentTypeError(f"not a list of torch dtypes: {text}")
    return [dtype for dtype in found if isinstance(dtype, torch.dtype)]


def names(known: Iterable[str]) -> Any:
    def parse(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        unknown = set(chosen) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return chosen

    return parse


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--op", type=names(BENCHMARKS), default=list(BENCHMARKS), help=f"of {','.join(BENCHMARKS)} (default: all)"
    )
    parser.add_argument("--dtype", type=dtypes, help="only these, by commas; with --shape, the dtypes of that case")
    parser.add_argument("--shape", type=sizes, help="one case of your own: the input's shape, such as 4194304x64")
    own = parser.add_argument_group("arguments of a case of your own")
    own.add_argument("--dim", type=int, nargs="+", help="sum")
    own.add_argument("--dim0", type=int, help="transpose")
    own.add_argument("--dim1", type=int, help="transpose")
    own.add_argument("--weight", type=sizes, help="conv1d: the weight's shape, such as 8x1x31")
    for name in OPTIONS:
        own.add_argument(f"--{name}", type=int, help="conv1d")
    parser.add_argument("--quick", action="store_true", help="a few cases of each operator")
    parser.add_argument("--sweep", type=int, metavar="N", help="N random cases of each operator; <op>_sweep.json")
    parser.add_argument("--seed", type=int, default=0, help="of --sweep")
    parser.add_argument("--device", choices=["cpu"], help="the CPU even where there is a GPU")
    parser.add_argument("--peers", type=names(PEERS), help=f"of {','.join(PEERS)} (default: all; on the CPU torch)")
    parser.add_argument(
        "--out", type=Path, help="folder of the results (default: build/benchmarks/<gpu>; <gpu>-own with --shape)"
    )
    parser.add_argument("--baseline", type=Path, help="an earlier result file, or folder of them, to compare with")
    parser.add_argument("--fail-on-regress", action="store_true", help="exit status 1 where --baseline was faster")
    return parser


def own_case(parser: argparse.ArgumentParser, options: argparse.Namespace, benchmark: Benchmark) -> Case:
    args: dict[str, Any] = {}
    for name, default in ARGUMENTS.items():
        value = getattr(options, name)
        if value is None or value == default:
            continue
        if name not in benchmark.arguments:
            parser.error(f"{benchmark.name} takes no --{name}")
        if name == "dim":
            value = value[0] if len(value) == 1 else value
        args[name] = list(value) if isinstance(value, tuple) else value
    if "weight" in benchmark.arguments and "weight" not in args:
        parser.error(f"{benchmark.name} needs --weight")
    return Case(options.shape, args=args, compiled=True, ladder=True)


def choose_cases(
    parser: argparse.ArgumentParser, options: argparse.Namespace, benchmark: Benchmark, on_gpu: bool
) -> list[Case]:
    if options.shape:
        case = own_case(parser, options, benchmark)
        return [replace(case, dtype=dtype) for dtype in options.dtype or [torch.float32]]
    if options.sweep:
        rng = random.Random(options.seed)
        distinct: dict[str, Case] = {}
        while len(distinct) < options.sweep:
            case = benchmark.random_case(rng, SWEEP_NUMEL if on_gpu else CPU_SWEEP_NUMEL)
            distinct[str(case)] = case
        return list(distinct.values())
    cases = benchmark.cases() if on_gpu else benchmark.cpu_cases()
    if options.quick:
        cases = [case for case in cases if case.quick]
    return [case for case in cases if not options.dtype or case.dtype in options.dtype]


# ---------------------------------------------------------------------------------------------------------------------
# What is printed
# ---------------------------------------------------------------------------------------------------------------------


class Progress:
    """A live bar where rich is installed and the output is a terminal; a line per case in any case."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.bar: Any = None

    @contextmanager
    def running(self) -> Iterator["Progress"]:
        try:
            from rich import progress
        except ImportError:
            yield self
            return
        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        with progress.Progress(*columns, transient=True) as self.bar:
            self.task = self.bar.add_task("", total=self.total)
            yield self
        self.bar = None

    def start(self, title: str) -> None:
        if self.bar:
            self.bar.update(self.task, description=title)

    def finish(self, line: str) -> None:
        self.done += 1
        line = f"[{self.done}/{self.total}] {line}"
        if self.bar and self.bar.console.is_terminal:
            self.bar.console.print(line, markup=False, highlight=False)
            self.bar.advance(self.task)
        else:
            print(line, flush=True)


def direction_name(row: Row) -> str:
    """The direction; of host cost also whether a gradient is recorded."""
    if "requires_grad" not in row:
        return str(row["direction"])
    return f"{row['direction']} {'with' if row['requires_grad'] else 'without'} grad"


def summary(rows: Sequence[Row], seconds: float) -> str:
    parts = []
    for providers in index(rows).values():
        ours = providers.get("cudamem", {})
        direction = direction_name(next(iter(providers.values())))
        if not ours.get("kernel_us"):
            host = ours.get("host_us")
            parts.append(f"{direction}: " + (f"host {host} us" if host else f"NOT TIMED ({ours.get('note')})"))
            continue
        copy, peer = providers.get("memcpy", {}).get("kernel_us"), best_peer(providers)
        text = f"{direction}: {ours['kernel_us']} us"
        if copy:
            text += f", {copy / ours['kernel_us']:.3f} of the copy"
        if peer:
            text += f", {peer['kernel_us'] / ours['kernel_us']:.2f} x {peer['provider']}"
        parts.append(text)
    return "; ".join(parts) + f"  ({seconds:.1f} s)"


def table_lines(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Case by case: a line with its name alone, then one for each provider. Host cost comes last."""
    header = ["", "us", "spread", "eager us", "GB/s", "of copy", "error"]
    lines = []
    groups = index(rows)
    for providers in sorted(groups.values(), key=lambda group: any(row["host_us"] for row in group.values())):
        first = next(iter(providers.values()))
        title = f"{case_name(first)}, {direction_name(first)}"
        lines.append([title + (", time of the host" if first["host_us"] else ""), *[""] * (len(header) - 1)])
        copy = providers.get("memcpy", {}).get("kernel_us")
        for name, row in providers.items():
            us = row["kernel_us"]
            measured = us or row["host_us"]
            lines.append(
                [
                    f"  {name}" + ("" if measured else f" ({row['note']})"),
                    number(measured),
                    number(row["spread_us"], 3),
                    number(row["eager_us"]),
                    number(gbps(row) if us and row["bytes_moved"] else None),
                    f"{copy / us:.3f}" if copy and us else "-",
                    "-" if row["max_rel_error"] is None else f"{row['max_rel_error']:.0e}",
                ]
            )
    return header, lines


def print_table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]], text_columns: int) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(f"\n{title}\n" + "\n".join("  ".join(line) for line in (header, *lines)))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < text_columns else "right", overflow="fold")
    for line in lines:
        table.add_row(*(cell.replace("[", r"\[") for cell in line))
    console.print(table)


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


def write_json(folder: Path, stem: str, meta: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """One row a line, so that two results can be compared by eye."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    text = f'{{"meta": {json.dumps(meta, indent=1)},\n"rows": [\n{lines}\n]}}\n'
    (folder / f"{stem}.json").write_text(text)


def write_csv(folder: Path, stem: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    names = dict.fromkeys(name for row in rows for name in row if name != "samples_us")
    with (folder / f"{stem}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(names), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(
            row | {"shape": "x".join(map(str, row["shape"])), "args": json.dumps(row["args"])} for row in rows
        )


def draw(folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
    try:
        from benchmarks.plots import draw_all
    except ImportError as error:
        print(f"no plots: {reason(error)}", file=sys.stderr)
        return
    for path in draw_all(results, folder):
        print(f"drawn: {path}")


def read_baseline(path: Path) -> dict[Any, Row]:
    """The rows of a result file, or of all those in a folder."""
    files = (
        [file for file in path.glob("*.json") if file.stem.removesuffix("_sweep") in BENCHMARKS]
        if path.is_dir()
        else [path]
    )
    return {row_key(row): row for file in files for row in json.loads(file.read_text())["rows"]}


def compare(earlier: Mapping[Any, Row], rows: Sequence[Row]) -> list[list[str]]:
    """Each row beside the same one of an earlier result: what is slower by more than both spreads is marked."""
    lines = []
    for row in rows:
        old = earlier.get(row_key(row))
        measure = "kernel_us" if row["kernel_us"] else "host_us"
        if not old or not old.get(measure) or not row[measure]:
            continue
        noise = (row["spread_us"] or 0) + (old["spread_us"] or 0)
        if measure == "host_us":  # best of several runs, without a spread of its own
            noise = 0.1 * old[measure]
        change = row[measure] - old[measure]
        mark = "SLOWER" if change > noise else "faster" if -change > noise else ""
        name = f"{case_name(row)} {row['direction']}"
        figures = [number(old[measure]), number(row[measure]), f"{row[measure] / old[measure]:.3f}", mark]
        lines.append([name, row["provider"], measure, *figures])
    return lines


# ---------------------------------------------------------------------------------------------------------------------


def run(
    benchmark: Benchmark,
    cases: Sequence[Case],
    timer: Timer,
    peers: Sequence[str],
    show: Progress,
    options: argparse.Namespace,
) -> Any:
    """Runs one operator's cases; the result file is complete after each of them."""
    meta = describe_run(benchmark, timer)
    stem = benchmark.name
    if options.sweep:
        stem += "_sweep"
        meta |= {"sweep": options.sweep, "seed": options.seed}
    folder = options.out or ROOT / "build" / "benchmarks" / (result_folder(meta) + ("-own" if options.shape else ""))
    rows: list[Row] = []
    start = time.perf_counter()
    for case in cases if options.sweep else (None, *cases):
        title = f"{benchmark.name} {case or 'host cost'}"
        show.start(title)
        case_start = time.perf_counter()
        try:
            new = run_case(benchmark, case, timer, peers) if case else run_host_cost(benchmark, timer, peers)
            line = summary(new, time.perf_counter() - case_start)
        except Exception as error:  # such as memory that does not suffice: the other cases are still worth running
            new, line = [], f"FAILED: {reason(error)}"
            timer.release()
        meta["failed_cases"] = meta.get("failed_cases", []) + ([title] if not new or failed(new) else [])
        rows += new
        meta["seconds"] = round(time.perf_counter() - start, 1)
        write_json(folder, stem, meta, rows)
        show.finish(f"{title}: {line}")
    write_csv(folder, stem, rows)
    return folder, {"meta": meta, "rows": rows}


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.shape and len(options.op) != 1:
        parser.error("--shape needs one --op")
    given = [name for name in ARGUMENTS if getattr(options, name) is not None]
    if options.sweep is not None and (options.sweep < 1 or options.shape or options.quick or options.dtype):
        parser.error(
            "--sweep takes a number of cases from 1 on, and chooses them itself: no --shape, --quick or --dtype"
        )
    if given and not options.shape:
        parser.error(f"--{given[0]} needs --shape")
    if options.fail_on_regress and not options.baseline:
        parser.error("--fail-on-regress needs --baseline")
    earlier = read_baseline(options.baseline) if options.baseline else {}  # now: --out may overwrite it
    timer = make_timer(options.device)
    on_gpu = timer.on_gpu
    peers = (PEERS if on_gpu else ("torch",)) if options.peers is None else options.peers
    chosen = {op: choose_cases(parser, options, BENCHMARKS[op], on_gpu) for op in options.op}
    if not on_gpu:
        print("No GPU: a smaller set on the CPU, timed by the wall clock. It says nothing about the kernels.")
    start = time.perf_counter()
    status, results, folder = 0, [], Path()
    with timer.active(), Progress(sum(len(cases) + (not options.sweep) for cases in chosen.values())).running() as show:
        for op, cases in chosen.items():
            folder, result = run(BENCHMARKS[op], cases, timer, peers, show, options)
            results.append(result)
    for op, result in zip(chosen, results, strict=True):
        title = f"{op} on {result['meta']['gpu'] or result['meta']['cpu']}: {result['meta']['figures']}"
        if options.sweep:
            sentence, lost = sweep_verdict(result["rows"])
            if lost:
                table = table_lines([row for case in lost for row in case.values()])
                print_table(f"{title}, cases that a peer wins", *table, text_columns=1)
            print(f"{op}: {sentence}")
        else:
            print_table(title, *table_lines(result["rows"]), text_columns=1)
        if options.baseline:
            lines = compare(earlier, result["rows"])
            header = ["case", "provider", "of", "was", "is", "ratio", ""]
            print_table(f"{op}, now / {options.baseline}", header, lines, text_columns=3)
            slower = [line for line in lines if line[-1] == "SLOWER" and line[1].startswith("cudamem")]
            print(f"{op}: {len(lines)} rows compared, {len(slower)} of cudamem's slower by more than the spread")
            status |= bool(slower and options.fail_on_regress)
        for title in result["meta"]["failed_cases"]:
            print(f"FAILED: {title}", file=sys.stderr)
            status = 1
    if not options.sweep:
        draw(folder, results)
    print(f"{folder}: results of {', '.join(chosen)}, {time.perf_counter() - start:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
