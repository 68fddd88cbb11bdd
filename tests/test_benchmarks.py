"""The benchmarks themselves: their files, their comparisons, and figures that can be true."""

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import cudamem_ops

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import fingerprint, harness  # noqa: E402
from benchmarks.__main__ import BENCHMARKS, main  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def render_results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_results", ROOT / "tools" / "render_results.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OWN_CASES = {
    "transpose": ["--shape", "3x16x8", "--dim0", "0", "--dim1", "-1"],
    "sum": ["--shape", "16x64", "--dim", "-1"],
    "conv1d": ["--shape", "2x8x64", "--weight", "8x1x5", "--groups", "8", "--stride", "2", "--padding", "1"],
}


def run_own_case(op: str, out: Path, *more: str) -> int:
    return main(["--op", op, *OWN_CASES[op], "--device", "cpu", "--out", str(out), *more])


@pytest.mark.parametrize("op", BENCHMARKS)
def test_a_case_of_ones_own_end_to_end(op: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_own_case(op, tmp_path) == 0
    result = json.loads((tmp_path / f"{op}.json").read_text())
    assert result["meta"]["kernel_fingerprint"] == fingerprint.kernel_fingerprint(op)
    assert result["meta"]["gpu"] is None
    timed = {row["provider"]: row for row in result["rows"] if row["kernel_us"]}
    assert {"cudamem", "torch", "memcpy"} <= set(timed)
    for row in timed.values():
        assert row["timing"] == "perf_counter"
        assert row["bytes_moved"] > 0
        assert len(row["samples_us"]) == harness.CPU_SAMPLES
    assert timed["cudamem"]["max_rel_error"] is not None
    host = [row for row in result["rows"] if row["host_us"]]
    assert {(row["direction"], row["requires_grad"]) for row in host} == {
        ("forward", False),
        ("forward", True),
        ("both", True),
    }
    assert all(row["kernel_us"] is None for row in host)
    assert (tmp_path / f"{op}.csv").read_text().count("\n") == len(result["rows"]) + 1
    assert "wall-clock" in capsys.readouterr().out


@pytest.mark.parametrize("op", BENCHMARKS)
def test_a_sweep_end_to_end(op: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["--op", op, "--device", "cpu", "--sweep", "6"]
    assert main([*sweep, "--seed", "3", "--out", str(tmp_path / "first")]) == 0
    assert f"{op}: Of 6 random cases" in capsys.readouterr().out
    assert main([*sweep, "--seed", "3", "--out", str(tmp_path / "again")]) == 0
    assert main([*sweep, "--seed", "4", "--out", str(tmp_path / "other")]) == 0
    first, again, other = (
        json.loads((tmp_path / run / f"{op}_sweep.json").read_text()) for run in ("first", "again", "other")
    )
    assert (first["meta"]["sweep"], first["meta"]["seed"]) == (6, 3)
    assert all(row["kernel_us"] for row in first["rows"] if row["provider"] in ("cudamem", "torch"))
    keys = [[harness.row_key(row) for row in result["rows"]] for result in (first, again, other)]
    assert keys[0] == keys[1] != keys[2]
    assert len(harness.index(first["rows"])) == 6


@pytest.mark.parametrize("layout", harness.LAYOUTS)
def test_layouts_of_inputs(layout: str) -> None:
    made = []

    def make(shape: Sequence[int]) -> torch.Tensor:
        made.append(torch.randn(*shape))
        return made[-1]

    x = harness.LAYOUTS[layout]((3, 4, 5), make)
    assert x.shape == (3, 4, 5)
    assert x.untyped_storage().data_ptr() == made[0].untyped_storage().data_ptr()
    assert (x.is_contiguous(), x.storage_offset()) == (layout in ("", "offset"), int(layout == "offset"))


def test_the_verdict_on_a_sweep() -> None:
    def rows(size: int, **times: float) -> list[harness.Row]:
        base = {"op": "sum", "shape": [size], "dtype": "int8", "args": {}, "direction": "forward"}
        return [{**base, "provider": name.replace("_", "."), "kernel_us": us} for name, us in times.items()]

    won, lost, close = (
        rows(1, cudamem=1, torch=4),
        rows(2, cudamem=6, torch=12, torch_compile=4),
        rows(3, cudamem=1.02, torch=1),
    )
    sentence, worst_first = harness.sweep_verdict([*won, *lost, *close])
    assert sentence.startswith("Of 3 random cases 1 are over 3% slower than the fastest peer, at most 1.50 times; ")
    assert "torch takes 1.99 times as long" in sentence
    assert [case["cudamem"]["shape"] for case in worst_first] == [[2]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sweep", "2", "--quick"],
        ["--sweep", "2", "--dtype", "float32"],
        ["--sweep", "0"],
        ["--shape", "4x4"],
        ["--op", "sum", "--shape", "4x4", "--weight", "1x1x3"],
        ["--op", "conv1d", "--shape", "1x1x9"],
        ["--dim", "0"],
        ["--fail-on-regress"],
        ["--op", "fold"],
        ["--dtype", "float33"],
        ["--peers", "jax"],
    ],
    ids=" ".join,
)
def test_arguments_that_do_not_fit_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--device", "cpu", *arguments])
    assert "error:" in capsys.readouterr().err


def test_every_operator_has_a_benchmark() -> None:
    assert set(BENCHMARKS) == set(cudamem_ops.variants())


def test_every_case_states_its_bytes_and_shapes() -> None:
    for op, benchmark in BENCHMARKS.items():
        keys = []
        for case in benchmark.cases():
            meta = [torch.empty(shape, dtype=case.dtype, device="meta") for shape in benchmark.input_shapes(case)]
            expected_shape = benchmark.builtin(case)(*meta).shape
            assert benchmark.ours(case)(*meta).shape == expected_shape
            for direction in case.directions:
                keys.append((case.shape, case.dtype, str(case.args), direction))
                assert benchmark.bytes_moved(case, direction) > 0, (op, case)
        assert len(set(keys)) == len(keys), f"{op}: a case is listed twice"
        assert any(case.quick for case in benchmark.cases())
        assert any(case.ladder for case in benchmark.cases())


@pytest.mark.parametrize("op", BENCHMARKS)
def test_wrong_results_are_not_timed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = BENCHMARKS[op]
    right = type(benchmark).ours

    def almost_right(self: Any, case: harness.Case, variant: str | None = None) -> harness.Function:
        def call(*inputs: torch.Tensor) -> torch.Tensor:
            result = right(self, case, variant)(*inputs).clone()
            result.view(-1)[-1] += 1
            return result

        return call

    case = benchmark.cpu_cases()[-1]
    monkeypatch.setattr(type(benchmark), "ours", almost_right)
    rows = {row["provider"]: row for row in harness.run_case(benchmark, case, harness.CpuTimer())}
    assert rows["cudamem"]["kernel_us"] is None
    assert "error" in rows["cudamem"]["note"]
    assert rows["torch"]["kernel_us"] > 0
    assert harness.failed(list(rows.values()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize(("op", "direction"), [(op, d) for op in BENCHMARKS for d in ("forward", "both")])
def test_right_results_of_any_dtype_are_timed(op: str, direction: str, dtype: torch.dtype) -> None:
    benchmark = BENCHMARKS[op]
    case = dataclasses.replace(benchmark.host_case(), dtype=dtype, directions=(direction,))
    rows = harness.run_case(benchmark, case, harness.CpuTimer(), ("torch",))
    assert not harness.failed(rows)
    assert all(row["kernel_us"] > 0 for row in rows if row["provider"] in ("cudamem", "torch"))


def test_only_the_same_bits_are_exact() -> None:
    x = torch.tensor([[0.0, 1.0]])[:, ::2]  # one element, at a stride of 2
    assert harness.relative_error(x, torch.zeros(1, 1)) == 0
    assert harness.relative_error(-x, torch.zeros(1, 1)) == 1


def test_nan_is_an_error() -> None:
    good = torch.ones(3, dtype=torch.float64)
    for bad in (torch.tensor([1.0, float("nan"), 1.0]), torch.ones(2)):
        assert not harness.relative_error(bad, good) <= 1e-3


def test_side_by_side() -> None:
    x = torch.randn(1000)
    row = harness.side_by_side(torch.sum, lambda t: t.sum() + 1, x.double().sum(), x, timer=harness.make_timer("cpu"))
    assert row["max_error"] < 1e-3 < row["torch_max_error"]
    assert row["ours_us"] > 0
    assert row["speed_up"] == row["torch_us"] / row["ours_us"]


# ---------------------------------------------------------------------------------------------------------------------
# Fingerprints
# ---------------------------------------------------------------------------------------------------------------------

SOURCE = """
// twice
__global__ void twice(float* x) {  // [n]
  /* one thread
     an element */
  x[threadIdx.x] *= 2;
  printf("a // b");
}
"""


def write_room(root: Path, kernel: str, common: str = "constexpr int kWarp = 32;\n") -> str:
    for name, text in (("csrc/sum/sum.cu", kernel), ("csrc/common/device.cuh", common)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return fingerprint.kernel_fingerprint("sum", root)


def test_the_fingerprint_ignores_comments_and_whitespace(tmp_path: Path) -> None:
    before = write_room(tmp_path, SOURCE)
    assert write_room(tmp_path, SOURCE.replace("// twice", "/* doubles */").replace("  ", "\t\n")) == before
    (tmp_path / "csrc/sum/sum_op.cpp").write_text("int torch_side;")
    assert fingerprint.kernel_fingerprint("sum", tmp_path) == before


@pytest.mark.parametrize(("old", "new"), [("*= 2", "*= 3"), ("a // b", "a // c"), ("a // b", "a  // b")])
def test_the_fingerprint_changes_with_the_code(old: str, new: str, tmp_path: Path) -> None:
    before = write_room(tmp_path, SOURCE)
    assert write_room(tmp_path, SOURCE.replace(old, new)) != before
    assert write_room(tmp_path, SOURCE, "constexpr int kWarp = 64;\n") != before


def test_every_room_has_a_fingerprint() -> None:
    assert len({fingerprint.kernel_fingerprint(op) for op in BENCHMARKS}) == len(BENCHMARKS)
    for op in BENCHMARKS:
        names = {path.name for path in fingerprint.kernel_sources(op)}
        assert {f"{op}.cu", f"{op}.cuh", f"{op}.h", "device.cuh"} <= names


def committed_results() -> list[Path]:
    return [path for path in sorted(RESULTS.glob("*/*.json")) if path.name != "stale.json"]


def test_committed_results_are_of_the_committed_kernels() -> None:
    for path in committed_results():
        stale = path.with_name("stale.json")
        op = path.stem.removesuffix("_sweep")
        if op in (json.loads(stale.read_text()) if stale.exists() else {}):
            continue
        measured = json.loads(path.read_text())["meta"]["kernel_fingerprint"]
        assert measured == fingerprint.kernel_fingerprint(op), (
            f"{path} was measured on other kernels: measure again, or name the operator and a reason in {stale}"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Baselines and README
# ---------------------------------------------------------------------------------------------------------------------


def scale_times(path: Path, factor: float) -> None:
    result = json.loads(path.read_text())
    for row in result["rows"]:
        for name in ("kernel_us", "spread_us", "host_us"):
            row[name] = row[name] and row[name] * factor
    path.write_text(json.dumps(result))


@pytest.mark.parametrize(("factor", "status"), [(1e-6, 1), (1e6, 0)], ids=["slower", "faster"])
def test_baseline(
    factor: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    steady = harness.Timing(samples_us=[10.0] * 7, calls=1, method="perf_counter")
    monkeypatch.setattr(harness.CpuTimer, "measure", lambda self, work: dict.fromkeys(work, steady))
    run_own_case("sum", tmp_path)
    scale_times(tmp_path / "sum.json", factor)
    baseline = ["--baseline", str(tmp_path / "sum.json")]
    assert run_own_case("sum", tmp_path / "now", *baseline) == 0  # told, but not failed
    assert run_own_case("sum", tmp_path / "now", *baseline, "--fail-on-regress") == status
    assert ("SLOWER" in capsys.readouterr().out) == bool(status)


def test_a_folder_can_be_the_baseline_and_be_overwritten(tmp_path: Path) -> None:
    run_own_case("sum", tmp_path)
    scale_times(tmp_path / "sum.json", 1e-6)
    assert run_own_case("sum", tmp_path, "--baseline", str(tmp_path), "--fail-on-regress") == 1


def test_rendering_round_trip(render_results: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "cpu"
    run_own_case("sum", folder)
    readme = tmp_path / "README.md"
    readme.write_text("# Title\n\n<!-- results:sum -->\n<!-- /results -->\n\nafter\n")
    arguments = ["--readme", str(readme), "--results", str(tmp_path / "results")]
    assert render_results.main([*arguments, "--check"]) == 1
    assert render_results.main(arguments) == 0
    assert render_results.main([*arguments, "--check"]) == 0
    text = readme.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("<!-- /results -->\n\nafter\n")
    assert "| 16x64 float32 dim -1 |" in text
    assert "Outdated" not in text

    (folder / "stale.json").write_text('{"sum": "The kernels were rewritten."}')
    assert render_results.main([*arguments, "--check"]) == 1
    render_results.main(arguments)
    assert "**Outdated:**" in readme.read_text()
    assert "The kernels were rewritten." in readme.read_text()

    readme.write_text("no section\n")
    assert render_results.main([*arguments, "--check"]) == 1


def test_readme_is_what_the_results_say(render_results: ModuleType) -> None:
    assert render_results.main(["--check"]) == 0


def test_plots_are_drawn(tmp_path: Path) -> None:
    plots = pytest.importorskip("benchmarks.plots", reason="needs matplotlib", exc_type=ImportError)
    rows = []
    for exponent in (20, 24):
        case = harness.Case((1 << exponent,))
        for name, us in (("cudamem", 5.0), ("cudamem:shuffle", 40.0), ("torch", 8.0), ("memcpy", 5.0), ("read", 4.5)):
            row = harness.make_row(BENCHMARKS["sum"], case, "forward", name)
            rows.append(row | {"kernel_us": us, "bytes_moved": 4 << exponent, "flops": 1 << exponent})
    meta = {"op": "sum", "gpu": "GPU", "torch": "2", "date": "2026-01-01", "fp32_peak_flops": 6e13, "figures": ""}
    drawn = plots.draw_all([{"meta": meta, "rows": rows}], tmp_path)
    assert [path.name for path in drawn] == [
        f"sum_{plot}.png" for plot in ("speedup", "bandwidth", "ladder", "roofline")
    ]
    assert all(path.stat().st_size > 0 for path in drawn)


# ---------------------------------------------------------------------------------------------------------------------
# Figures that can be true
# ---------------------------------------------------------------------------------------------------------------------


def test_kernel_time_agrees_with_events(cuda: str) -> None:
    """At this size launch gaps are hidden, so that events around eager calls tell the same."""
    benchmark, case = BENCHMARKS["transpose"], harness.Case((8192, 8192))
    timer = harness.make_timer()
    with timer.active():
        rows = {row["provider"]: row for row in harness.run_case(benchmark, case, timer, peers=["torch"])}
        inputs = [torch.randn(case.shape, device=cuda) for _ in range(3)]
        call = benchmark.ours(case)
        samples = []
        for _ in range(5):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for i in range(20):
                call(inputs[i % 3])
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / 20)
    ours = rows["cudamem"]
    assert ours["timing"] == "graph"
    assert ours["max_rel_error"] == 0
    assert ours["kernel_us"] == pytest.approx(sorted(samples)[2], rel=0.2)
    properties = torch.cuda.get_device_properties(cuda)
    clock_khz, bus_bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    if clock_khz and bus_bits:
        peak = 2 * clock_khz * 1e3 * bus_bits / 8  # bytes a second, at double data rate
        for row in rows.values():
            assert row["kernel_us"] is None or row["bytes_moved"] / (row["kernel_us"] * 1e-6) < peak, row
