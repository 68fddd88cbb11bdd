"""`make demo`: each operator beside its torch built-in, then a classifier trained with both (train_digits.py).

python examples/demo.py [--quick]
"""

import argparse
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read by torch's threads: waiting, they leave the cores to others

import torch
import torch.nn.functional as F
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import train_digits  # noqa: E402

import cudamem_ops  # noqa: E402
from benchmarks.harness import make_timer, side_by_side  # noqa: E402

Operator = Callable[..., Tensor]
Case = tuple[str, Operator, Operator, list[Tensor]]


def cases(device: str, quick: bool) -> list[Case]:
    """What it is, the operator, its built-in, and random inputs; smaller ones where a GPU's would take minutes."""
    side = 8192 if device == "cuda" and not quick else 512
    generator = torch.Generator(device).manual_seed(torch.seed())

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if dtype.is_floating_point:
            return torch.randn(shape, device=device, generator=generator).to(dtype)
        return torch.randint(-100, 100, shape, device=device, generator=generator).to(dtype)

    def channels_last(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous()

    return [
        (
            f"transpose {side}x{side} float32",
            cudamem_ops.transpose,
            lambda x: x.t().contiguous(),
            [random(side, side)],
        ),
        (
            f"transpose {side // 8}x128x64 bfloat16",
            lambda x: cudamem_ops.transpose(x, 1, 2),
            channels_last,
            [random(side // 8, 128, 64, dtype=torch.bfloat16)],
        ),
        (f"sum {side}x{side} float32", cudamem_ops.sum, torch.sum, [random(side, side)]),
        (f"sum {side}x{side} int32", cudamem_ops.sum, torch.sum, [random(side, side, dtype=torch.int32)]),
        (
            f"sum {side * 16}x64 float32, dim -1",
            lambda x: cudamem_ops.sum(x, -1),
            lambda x: torch.sum(x, -1),
            [random(side * 16, 64)],
        ),
        (
            "conv1d, one filter of 31 taps",
            cudamem_ops.conv1d,
            F.conv1d,
            [random(1, 1, side * side), random(1, 1, 31)],
        ),
        (
            f"conv1d, depthwise {side // 4}, 4 taps",
            lambda x, w: cudamem_ops.conv1d(x, w, groups=w.shape[0]),
            lambda x, w: F.conv1d(x, w, groups=w.shape[0]),
            [random(8, side // 4, side // 2), random(side // 4, 1, 4)],
        ),
        (
            "conv1d, dense 64 to 64, 3 taps",
            cudamem_ops.conv1d,
            F.conv1d,
            [random(16, 64, side), random(64, 64, 3) / 14],
        ),
    ]


def path_taken(call: Callable[[], object], device: str) -> str:
    """The GPU kernels that a call was seen to launch, the longest first; on the CPU, nothing: it is ATen for all."""
    if device == "cpu":
        return ""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
    names = [event.key for event in kernels if event.device_time_total > 0]
    ours = [re.search(r"cudamem::(\w+_kernel<.*>)\(", name) for name in names]
    if any(ours):
        return " + ".join(dict.fromkeys(match.group(1).replace("cudamem::", "") for match in ours if match))
    return f"at::conv1d: {names[0].split('(')[0][-40:]}" if names else "nothing was seen"


def compare(device: str, quick: bool, console: Console) -> None:
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    table = Table(title=f"Each operator beside its torch built-in, on {where}", box=SIMPLE_HEAD)
    table.add_column("case, and the path taken", min_width=33)
    for column in ("error", "ours us", "torch us", "gain"):
        table.add_column(column, justify="right")
    timer = make_timer(device)
    listed = cases(device, quick)
    with Progress(console=console, transient=True) as progress, timer.active():
        for name, ours, built_in, inputs in progress.track(listed, description="comparing"):
            reference = built_in(*(x.double() if x.is_floating_point() else x for x in inputs)).double()
            row = side_by_side(ours, built_in, reference, *inputs, timer=timer)
            path = path_taken(partial(ours, *inputs), device)
            table.add_row(
                f"{name}\n  [dim]{escape(path)}" if path else name,
                f"{row['max_error']:.1e}",
                f"{row['ours_us']:.1f}",
                f"{row['torch_us']:.1f}",
                f"{row['speed_up']:.2f}x",
            )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small inputs and few epochs")
    args = parser.parse_args()
    console = Console()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        console.print(
            "No GPU is visible: everything runs on the CPU, where the operators are ATen's own. "
            "The gains below say nothing about the CUDA kernels, and little beyond the cost of a call."
        )
    elif cudamem_ops.build_info()["cuda"] is None:
        raise SystemExit("There is a GPU, but cudamem_ops was built without CUDA: rebuild it with CUDAMEM_CUDA=1.")
    torch.backends.cudnn.allow_tf32 = False  # the same arithmetic on both sides
    compare(device, args.quick, console)
    built_in, ours = train_digits.train_both(2 if args.quick else 10, device, console)
    train_digits.show(built_in, ours, console)
    train_digits.check_agreement(built_in, ours)
    console.print(train_digits.AGREEMENT)


if __name__ == "__main__":
    main()
