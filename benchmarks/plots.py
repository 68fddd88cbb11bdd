"""The plots of a result file: roofline, bandwidth against size, what each variant buys, speed-up per case."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness import CEILINGS, best_peer, case_name, gbps, index

OURS, PEER, COPY, WORSE = "#1b6ca8", "#9aa0a6", "#2e8b57", "#c0392b"
COLORS = {
    "cudamem": OURS,
    "torch": "#d98032",
    "torch.compile": "#8e5ea2",
    "cupy": "#b8a11a",
    "memcpy": COPY,
    "read": "#5fa777",
}
Result = Mapping[str, Any]


def _new(width: float, height: float, title: str, meta: Mapping[str, Any]) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    device = meta["gpu"] or f"CPU ({meta['figures']})"
    axes.set_title(f"{title}\n{device}, torch {meta['torch']}, {meta['date'][:10]}", fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=100, facecolor="white", metadata={"Software": ""})
    plt.close(figure)
    return path


def _forward(result: Result) -> list[dict[str, dict[str, Any]]]:
    """The timed providers of each forward case."""
    cases = []
    for providers in index(row for row in result["rows"] if row["direction"] == "forward").values():
        timed = {name: row for name, row in providers.items() if row["kernel_us"]}
        if "cudamem" in timed:
            cases.append(timed)
    return cases


def draw_speed_up(result: Result, folder: Path) -> Path | None:
    """Each case against the fastest peer; below 1.0 we lose."""
    bars = []
    for providers in index(result["rows"]).values():
        ours, peer = providers.get("cudamem"), best_peer(providers)
        if ours and ours["kernel_us"] and peer:
            direction = "" if ours["direction"] == "forward" else f" ({ours['direction']})"
            bars.append((case_name(ours) + direction, peer["kernel_us"] / ours["kernel_us"], peer["provider"]))
    if not bars:
        return None
    meta = result["meta"]
    figure, axes = _new(9, 1.4 + 0.24 * len(bars), f"{meta['op']}: speed-up over the fastest peer", meta)
    bars.reverse()
    factors = [factor for _, factor, _ in bars]
    colors = [OURS if factor >= 0.995 else WORSE for factor in factors]
    axes.barh(range(len(bars)), [factor - 1 for factor in factors], left=1, color=colors, height=0.7)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    low, high = min(0.5, *factors), max(2.0, *factors)
    axes.set_xlim(low * 0.9, high * 2.2)
    ticks = [2.0**k for k in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=8)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    for i, (_, factor, peer_name) in enumerate(bars):
        axes.text(max(factor, 1.0) * 1.03, i, f"{factor:.2f} x {peer_name}", va="center", fontsize=8)
    axes.set_xlabel("time of the fastest peer / our time (1.0: equal)")
    return _save(figure, folder / f"{meta['op']}_speedup.png")


def draw_bandwidth(result: Result, folder: Path) -> Path | None:
    """Effective bandwidth against the bytes moved, over the cases that differ in nothing but size."""
    families: dict[tuple[Any, ...], list[dict[str, dict[str, Any]]]] = {}
    for case in _forward(result):
        ours = case["cudamem"]
        if ours["dtype"] != "float32":
            continue
        shape = ours["shape"]
        form = "square" if len(shape) == 2 and shape[0] == shape[1] else (len(shape), *shape[:-1])
        families.setdefault((form, str(ours["args"])), []).append(case)
    family = max(families.values(), key=len, default=[])
    if len(family) < 2:
        return None
    meta = result["meta"]
    shapes = f"{case_name(family[0]['cudamem'])} and other sizes"
    figure, axes = _new(8, 4.8, f"{meta['op']}: effective bandwidth against size ({shapes})", meta)
    for provider, color in COLORS.items():
        points = sorted((case[provider]["bytes_moved"], gbps(case[provider])) for case in family if provider in case)
        if points:
            style = "--" if provider in CEILINGS else "-"
            axes.plot(*zip(*points, strict=True), style, marker="o", color=color, label=provider, markersize=4)
    axes.set_xscale("log", base=2)
    low, high = (math.log2(f([c["cudamem"]["bytes_moved"] for c in family])) for f in (min, max))
    step = max(1, round((high - low) / 8))
    ticks = list(range(math.floor(low), math.ceil(high) + 1, step))
    axes.set_xticks([2.0**k for k in ticks], [_binary_size(k) for k in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes read and written")
    axes.set_ylabel("GB/s")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return _save(figure, folder / f"{meta['op']}_bandwidth.png")


def _binary_size(exponent: int) -> str:
    prefixes = ["", "Ki", "Mi", "Gi", "Ti"]
    return f"{2 ** (exponent % 10)} {prefixes[exponent // 10]}B"


def draw_ladder(result: Result, folder: Path) -> Path | None:
    """Effective bandwidth of each variant, beside the default path, torch and the ceilings."""
    cases = [case for case in _forward(result) if any(name.startswith("cudamem:") for name in case)]
    if not cases:
        return None
    meta = result["meta"]
    order = [name for case in cases for name in case if name.startswith("cudamem:")]
    names = [*dict.fromkeys(order), "cudamem", "torch", *CEILINGS]
    names = [name for name in names if any(name in case for case in cases)]
    figure, axes = _new(
        9, 1.2 + len(cases) * (0.35 + 0.2 * len(names)), f"{meta['op']}: what each technique buys", meta
    )
    shades = plt.get_cmap("Blues")
    variants = [name for name in names if name.startswith("cudamem:")]
    height = 0.8 / len(names)
    for j, name in enumerate(names):
        color = COLORS.get(name) or shades(0.25 + 0.5 * variants.index(name) / max(1, len(variants)))
        for i, case in enumerate(cases):
            if name in case:
                y, value = i - 0.4 + (j + 0.5) * height, gbps(case[name])
                axes.barh(y, value, height=height * 0.9, color=color)
                label = (
                    f" {name.removeprefix('cudamem:')} {value:,.0f}" if name != "cudamem" else f" default {value:,.0f}"
                )
                axes.text(value, y, label, va="center", fontsize=7)
    axes.set_yticks(range(len(cases)), [case_name(case["cudamem"]) for case in cases], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("effective bandwidth, GB/s (bytes that must be read and written / time)")
    return _save(figure, folder / f"{meta['op']}_ladder.png")


def draw_roofline(result: Result, folder: Path) -> Path | None:
    """FLOP/s against FLOPs per byte, under the measured copy and read rates and the specified FMA rate."""
    cases = [case for case in _forward(result) if case["cudamem"]["flops"]]
    if not cases:
        return None
    meta = result["meta"]
    figure, axes = _new(8, 5.2, f"{meta['op']}: roofline", meta)
    intensity = [case["cudamem"]["flops"] / case["cudamem"]["bytes_moved"] for case in cases]
    peak = meta["fp32_peak_flops"]
    low, high = min(intensity) / 2, max(max(intensity), 4.0) * 2
    for name in CEILINGS:
        rate = max((gbps(case[name]) * 1e9 for case in cases if name in case), default=None)
        if rate is None:
            continue
        ridge = min(high, peak / rate) if peak else high
        axes.plot(
            [low, ridge],
            [low * rate / 1e12, ridge * rate / 1e12],
            color=COLORS[name],
            label=f"{name} {rate / 1e12:.2f} TB/s",
        )
    if peak:
        axes.plot([low, high], [peak / 1e12] * 2, color="black", label=f"float32 FMA {peak / 1e12:.1f} TFLOP/s")
    for provider, marker in (("torch", "x"), ("cudamem", "o")):
        points = [
            (
                case[provider]["flops"] / case[provider]["bytes_moved"],
                case[provider]["flops"] / case[provider]["kernel_us"] / 1e6,
            )
            for case in cases
            if provider in case
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, marker=marker, s=28, color=COLORS[provider], label=provider, zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOPs per byte")
    axes.set_ylabel("TFLOP/s")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="lower right")
    return _save(figure, folder / f"{meta['op']}_roofline.png")


def draw_all(results: Sequence[Result], folder: Path) -> list[Path]:
    """Draws what the results have data for, and returns the files."""
    plots = (draw_speed_up, draw_bandwidth, draw_ladder, draw_roofline)
    return [path for result in results for plot in plots if (path := plot(result, folder))]
