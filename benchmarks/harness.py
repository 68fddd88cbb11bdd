"""The one harness of all benchmarks: checks results, then times providers side by side. See docs/measuring.md.

On a GPU a figure is the median of 20 replays of a CUDA graph that holds at least 20 calls (where one call is short),
over inputs and outputs that rotate through more than 512 MB, so that nothing is found in L2. All providers of a case
are timed in turns. On the CPU it is the median wall-clock time of a call.
"""

import datetime
import itertools
import json
import math
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cudamem_ops
from benchmarks.fingerprint import ROOT, kernel_fingerprint

Row = dict[str, Any]
Function = Callable[..., Any]
PEERS = ("torch", "torch.compile", "cupy")
CEILINGS = ("memcpy", "read")

ROTATION_BYTES = 512_000_000  # several times the L2 of any GPU
MAX_SETS = 512  # of inputs; smaller ones leave part of L2 warm, which is then flushed before each replay
MIN_CALLS = 20
MAX_GRAPH_US = 40_000.0  # slow calls: fewer in a graph, since launch gaps no longer matter
REPLAYS, MIN_REPLAYS = 20, 3
BUDGET_US = 400_000.0  # of GPU time for all replays of one provider
HOPELESS_US = 50_000.0  # a rung of the ladder that takes longer is not timed; anything else only MIN_REPLAYS times
CPU_SAMPLES, CPU_SAMPLE_US = 7, 1_000.0
HOST_RUNS, HOST_RUN_US = 12, 2_000.0  # eager calls on tiny tensors: the best of so many runs of about this length
EMPTY_US = 0.2  # no kernel is this short: a graph without one
SLEEP_CYCLES = 20_000_000  # about 10 ms: lets the host queue its work ahead of the GPU


# ---------------------------------------------------------------------------------------------------------------------
# Cases and benchmarks
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One problem: the first tensor's shape, the dtype, and torch's arguments without its defaults."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    args: Mapping[str, Any] = field(default_factory=dict)
    directions: tuple[str, ...] = ("forward",)
    compiled: bool = False  # also against torch.compile, which takes seconds to compile
    ladder: bool = False  # also each variant
    quick: bool = False  # part of --quick
    layout: str = ""  # of the first input in memory: one of LAYOUTS

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return case_name({"shape": self.shape, "dtype": self.dtype_name, "args": self.args, "layout": self.layout})


def tensor_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


class Benchmark(ABC):
    """What one operator states about itself: its cases, providers, bytes and FLOPs. Results must be linear in each
    input, so that the same formula on absolute values gives the sum of all magnitudes, which errors are relative to."""

    name: str
    arguments: tuple[str, ...] = ()  # the options of the command line that it takes
    ceilings: tuple[str, ...] = ("memcpy",)

    @abstractmethod
    def cases(self) -> list[Case]: ...

    @abstractmethod
    def cpu_cases(self) -> list[Case]: ...

    @abstractmethod
    def host_case(self) -> Case:
        """So tiny that a call costs what the host spends on it."""

    @abstractmethod
    def input_shapes(self, case: Case) -> list[tuple[int, ...]]: ...

    @abstractmethod
    def ours(self, case: Case, variant: str | None = None) -> Function: ...

    @abstractmethod
    def builtin(self, case: Case) -> Function: ...

    @abstractmethod
    def reference(self, case: Case, *inputs: Tensor) -> Tensor:
        """The result in float64 or complex128; where the operator only moves data, in the input's dtype."""

    @abstractmethod
    def tolerance(self, case: Case, direction: str) -> float:
        """Of |result - reference| / (the sum of the magnitudes of all terms). 0 means exact."""

    @abstractmethod
    def bytes_moved(self, case: Case, direction: str) -> int:
        """What must be read and written, each tensor once for each pass over it."""

    @abstractmethod
    def flops(self, case: Case, direction: str) -> int: ...

    @abstractmethod
    def random_case(self, rng: random.Random, numel: int) -> Case:
        """Any problem whose first tensor has about so many elements at most, for a sweep."""

    def expressions(self, case: Case) -> dict[str, Function]:
        """What torch.compile gets, by provider."""
        return {"torch.compile": self.builtin(case)}

    def cupy(self, case: Case) -> Function | None:
        """A function of CuPy arrays, or None where CuPy has no such operator."""
        return None


def widened(tensor: Tensor) -> Tensor:
    """In the precision of references: float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def random_tensor(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Normal floats, uniform integers; those of 32 and 64 bits stay below 2^20, so that their sums are exact in
    float64."""
    where: dict[str, Any] = {"generator": generator, "device": generator.device}
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), dtype=torch.uint8, **where).to(torch.bool)
    if not dtype.is_floating_point and not dtype.is_complex:
        info = torch.iinfo(dtype)
        return torch.randint(max(info.min, -(1 << 20)), min(info.max, 1 << 20) + 1, tuple(shape), dtype=dtype, **where)
    if dtype.itemsize == 1:  # float8
        return torch.randn(tuple(shape), **where).to(dtype)
    return torch.randn(tuple(shape), dtype=dtype, **where)


# How a tensor lies in memory, given how to make a contiguous one.
LAYOUTS: dict[str, Callable[[tuple[int, ...], Callable[[Sequence[int]], Tensor]], Tensor]] = {
    "": lambda shape, make: make(shape),
    "offset": lambda shape, make: make((math.prod(shape) + 1,))[1:].view(shape),
    "sliced": lambda shape, make: make((*shape[:-1], shape[-1] + 5))[..., : shape[-1]],
    "every other": lambda shape, make: make((*shape[:-1], 2 * shape[-1]))[..., ::2],
    "permuted": lambda shape, make: make(shape[::-1]).permute(*reversed(range(len(shape)))),
}


def random_layout(rng: random.Random) -> str:
    return rng.choice(["", "", "", *LAYOUTS])


def random_shape(rng: random.Random, rank: int, numel: int) -> tuple[int, ...]:
    """Sizes of any proportion and parity, at most `numel` elements in all; rather large than small."""
    total = math.log2(numel) * rng.random() ** 0.5
    parts = sorted([0.0, total, *(rng.uniform(0, total) for _ in range(rank - 1))])
    sizes = [2 ** (high - low) for low, high in itertools.pairwise(parts)]
    even = rng.random() < 0.5
    return tuple(2 ** int(math.log2(size)) if even else int(size) for size in sizes)


def random_words(count: int, generator: torch.Generator) -> Tensor:
    """64 random bits each, but for the uppermost two."""
    return torch.randint(0, 1 << 62, (count,), generator=generator, device=generator.device)


# ---------------------------------------------------------------------------------------------------------------------
# Result rows
# ---------------------------------------------------------------------------------------------------------------------


def case_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the providers of one case and direction have in common."""
    args = json.dumps(row["args"], sort_keys=True)
    grad, layout = bool(row.get("requires_grad")), row.get("layout") or ""
    return row["op"], tuple(row["shape"]), row["dtype"], args, layout, grad, row["direction"]


def row_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return *case_key(row), row["provider"]


def index(rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[str, Row]]:
    """Rows by case, then by provider."""
    result: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        result.setdefault(case_key(row), {})[row["provider"]] = row
    return result


def case_name(row: Mapping[str, Any]) -> str:
    parts = [compact(row["shape"], "x"), row["dtype"]]
    for name, value in row["args"].items():
        parts.append(f"{name} {compact(value, 'x' if name == 'weight' else ',')}")
    if row.get("layout"):
        parts.append(f"({row['layout']})")
    return " ".join(parts)


def compact(value: Any, separator: str) -> str:
    """Powers of two as 2^k where they are large."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return separator.join(compact(item, separator) for item in value)
    large_power = isinstance(value, int) and value > 1 << 16 and value & (value - 1) == 0
    return f"2^{value.bit_length() - 1}" if large_power else str(value)


def number(value: float | None, digits: int = 4) -> str:
    """So many significant digits, and all those before the point."""
    return "-" if value is None else f"{value:,.{max(0, digits - len(str(int(abs(value)))))}f}"


def gbps(row: Row) -> float:
    """The effective bandwidth of a row that was timed: the bytes that must be read and written, over the time."""
    return row["bytes_moved"] / row["kernel_us"] / 1e3


def best_peer(providers: Mapping[str, Row]) -> Row | None:
    """The fastest provider that is neither ours nor a ceiling."""
    timed = [
        row
        for name, row in providers.items()
        if not name.startswith("cudamem") and name not in CEILINGS and row["kernel_us"]
    ]
    return min(timed, key=lambda row: row["kernel_us"], default=None)


SWEEP_SLACK = 1.03  # a case of a sweep is lost where it takes so much longer than the fastest peer


def sweep_verdict(rows: Iterable[Row]) -> tuple[str, list[dict[str, Row]]]:
    """What a sweep says in one sentence, and the cases that it lost, the worst first."""
    timed = [case for case in index(row for row in rows if row["kernel_us"]).values() if "cudamem" in case]
    if not timed:
        return "No case was timed.", []

    def slowness(case: Mapping[str, Row]) -> float:
        peer = best_peer(case)
        return case["cudamem"]["kernel_us"] / peer["kernel_us"] if peer else 0.0

    lost = sorted((case for case in timed if slowness(case) > SWEEP_SLACK), key=slowness, reverse=True)
    factors = [case["torch"]["kernel_us"] / case["cudamem"]["kernel_us"] for case in timed if "torch" in case]
    sentence = f"Of {len(timed)} random cases {len(lost)} are over {SWEEP_SLACK - 1:.0%} slower than the fastest peer"
    if lost:
        sentence += f", at most {slowness(lost[0]):.2f} times"
    if factors:
        sentence += f"; torch takes {statistics.geometric_mean(factors):.2f} times as long in the geometric mean"
    return sentence + ".", lost


# ---------------------------------------------------------------------------------------------------------------------
# Timing
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """A provider's call on the i-th of `sets` sets of buffers."""

    call: Callable[[int], Any]
    sets: int
    limit_us: float = math.inf  # not timed where one call takes longer
    eager: bool = False  # also time eager calls, back to back


@dataclass
class Timing:
    samples_us: list[float] = field(default_factory=list)
    calls: int | None = None  # in one sample
    method: str | None = None  # "graph", "events" (around eager calls on a GPU) or "perf_counter" (CPU)
    eager_us: float | None = None
    extra_bytes: int | None = None  # the peak of one call, beside its inputs and results
    note: str | None = None

    @property
    def median_us(self) -> float | None:
        return round(statistics.median(self.samples_us), 3) if self.samples_us else None

    @property
    def spread_us(self) -> float | None:
        """Between the 10th and the 90th percentile."""
        if len(self.samples_us) < 2:
            return None
        deciles = statistics.quantiles(self.samples_us, n=10, method="inclusive")
        return round(deciles[-1] - deciles[0], 3)


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]


class CpuTimer:
    on_gpu = False
    device = torch.device("cpu")
    copy_kernel: str | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        yield

    def measure(self, work: Mapping[str, Work]) -> dict[str, Timing]:
        results = {name: Timing(method="perf_counter") for name in work}
        for name, item in work.items():
            once_us = min(_wall_us(partial(item.call, 0), 1) for _ in range(2))
            results[name].calls = max(1, min(1000, int(CPU_SAMPLE_US / max(once_us, 1.0))))
        for _ in range(CPU_SAMPLES):
            for name, item in work.items():
                calls = results[name].calls or 1
                results[name].samples_us.append(_wall_us(partial(item.call, 0), calls))
        return results

    def ceilings(self, names: Sequence[str], bytes_moved: int) -> dict[str, Work]:
        half = bytes_moved // 2
        source = random_words(half // 8 + 1, torch.Generator().manual_seed(0)).view(torch.uint8)[:half]
        target = torch.empty_like(source)
        return {"memcpy": Work(lambda i: target.copy_(source), 1)} if "memcpy" in names else {}

    def sets(self, input_bytes: int) -> int:
        return 1

    def release(self) -> None:
        pass


def _wall_us(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) * 1e6 / calls


CEILING_KERNELS = r"""
// One 16-byte vector a thread, 256 threads a block; the thread past the last vector copies the bytes that are left.
extern "C" __global__ void __launch_bounds__(256)
copy_vectors(const uint4* in, uint4* out, int vectors, int tail_bytes) {
  const unsigned i = blockIdx.x * 256u + threadIdx.x;
  if (i < vectors) {
    out[i] = in[i];
  } else if (i == vectors) {
    for (int b = 0; b < tail_bytes; ++b) {
      reinterpret_cast<char*>(out + i)[b] = reinterpret_cast<const char*>(in + i)[b];
    }
  }
}

// Four 16-byte vectors a thread, 512 threads a block. Random data practically never meets the condition of the write.
extern "C" __global__ void __launch_bounds__(512)
read_vectors(const uint4* in, uint4* out, int vectors, int unused) {
  const unsigned block = blockIdx.x * 2048u;
  uint4 v[4];
  if (block + 2048u <= vectors) {
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = in[block + k * 512u + threadIdx.x];
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned i = block + k * 512u + threadIdx.x;
      v[k] = i < vectors ? in[i] : make_uint4(0, 0, 0, 0);
    }
  }
  unsigned mix = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) mix ^= (v[k].x * 3u + v[k].y) ^ (v[k].z * 5u + v[k].w);
  if (mix == 0x9e3779b9u && v[0].x == 0x7f4a7c15u) out[0] = v[0];
}
"""
KERNEL_BLOCKS = {"copy_vectors": (256, 256), "read_vectors": (512, 2048)}  # threads, vectors of a block


def _nvrtc_kernel(name: str) -> Callable[..., None]:
    kernel = torch.cuda._compile_kernel(CEILING_KERNELS, name)

    def launch(blocks: int, threads: int, source: Tensor, target: Tensor, vectors: int, tail_bytes: int) -> None:
        kernel(grid=(blocks, 1, 1), block=(threads, 1, 1), args=[source, target, vectors, tail_bytes])

    return launch


def _cupy_kernel(name: str) -> Callable[..., None]:
    import cupy
    import numpy

    kernel = cupy.RawKernel(CEILING_KERNELS, name)

    def launch(blocks: int, threads: int, source: Tensor, target: Tensor, vectors: int, tail_bytes: int) -> None:
        pointers = (numpy.uint64(source.data_ptr()), numpy.uint64(target.data_ptr()))
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((blocks,), (threads,), (*pointers, numpy.int32(vectors), numpy.int32(tail_bytes)))

    return launch


class GpuTimer:
    on_gpu = True

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.stream = torch.cuda.Stream(self.device)  # the default stream cannot be captured
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.source = torch.empty(0, dtype=torch.uint8, device=self.device)
        self.target = self.source
        self.kernels: dict[str, Callable[..., None]] = {}
        self.copy_kernel: str | None = None  # what compiled the kernels of the ceilings

    @contextmanager
    def active(self) -> Iterator[None]:
        """Everything runs on one stream of its own. cuDNN searches for its fastest algorithm, outside the timing."""
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            with torch.cuda.stream(self.stream):
                self._grow(ROTATION_BYTES, 0)
                self._compile_kernels()
                for _ in range(1000):  # about 0.2 s, in which the clocks rise
                    self.flush()
                torch.cuda.synchronize()
                yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _grow(self, source_bytes: int, target_bytes: int) -> None:
        if self.source.numel() < source_bytes:
            words = -(-source_bytes // 8)
            self.source = random_words(words, self.generator).view(torch.uint8)
        if self.target.numel() < target_bytes:
            self.target = torch.empty(target_bytes, dtype=torch.uint8, device=self.device)

    def _compile_kernels(self) -> None:
        for origin, compile_kernel in (("nvrtc", _nvrtc_kernel), ("cupy", _cupy_kernel)):
            try:
                self.kernels = {name: compile_kernel(name) for name in KERNEL_BLOCKS}
                source, target = self.source[:100_007], torch.zeros(100_007, dtype=torch.uint8, device=self.device)
                self._launch("copy_vectors", source, target)
                self._launch("read_vectors", source, target)
                if torch.equal(source, target):
                    self.copy_kernel = origin
                    return
            except Exception as error:  # one of the two is enough; without both, cudaMemcpyAsync is the ceiling
                print(f"no ceiling kernels from {origin}: {reason(error)}", file=sys.stderr)
        self.kernels = {}

    def _launch(self, name: str, source: Tensor, target: Tensor) -> None:
        vectors, tail_bytes = divmod(source.numel(), 16)
        threads, block_vectors = KERNEL_BLOCKS[name]
        self.kernels[name](vectors // block_vectors + 1, threads, source, target, vectors, tail_bytes)

    def flush(self) -> None:
        """Fills L2 with clean lines of something else."""
        if self.kernels:
            self._launch("read_vectors", self.source[:ROTATION_BYTES], self.source)
        else:
            self.source[:ROTATION_BYTES].view(torch.int64).sum()

    def sets(self, input_bytes: int) -> int:
        return min(MAX_SETS, ROTATION_BYTES // max(input_bytes, 1) + 1)

    def ceilings(self, names: Sequence[str], bytes_moved: int) -> dict[str, Work]:
        """memcpy writes as much as it reads, read only reads; both move `bytes_moved`, by every means there is."""
        work: dict[str, Work] = {}
        half = bytes_moved // 2
        if "memcpy" in names and half:
            sets, pitch = self.sets(half), -(-half // 512) * 512
            self._grow(sets * pitch, sets * pitch)

            def rotating(tensor: Tensor, i: int) -> Tensor:
                return tensor[i * pitch : i * pitch + half]

            work["memcpy:cudaMemcpyAsync"] = Work(
                lambda i: rotating(self.target, i).copy_(rotating(self.source, i)), sets
            )
            if self.kernels:
                work["memcpy:kernel"] = Work(
                    lambda i: self._launch("copy_vectors", rotating(self.source, i), rotating(self.target, i)), sets
                )
        if "read" in names and bytes_moved and self.kernels:
            read_sets, read_pitch = self.sets(bytes_moved), -(-bytes_moved // 512) * 512
            self._grow(read_sets * read_pitch, 0)
            work["read"] = Work(
                lambda i: self._launch(
                    "read_vectors", self.source[i * read_pitch : i * read_pitch + bytes_moved], self.source
                ),
                read_sets,
            )
        return work

    def measure(self, work: Mapping[str, Work]) -> dict[str, Timing]:
        pool = torch.cuda.graph_pool_handle()
        results = {name: Timing() for name in work}
        launches: dict[str, tuple[Callable[[], None], int]] = {}
        for name, item in work.items():
            try:
                launch = self._prepare(item, results[name], pool)
            except Exception as error:  # a provider that fails is reported, and the others are timed
                results[name].note = reason(error)
                continue
            if launch:
                launch_us = self._elapsed_us(launch)
                replays = max(MIN_REPLAYS, min(REPLAYS, int(BUDGET_US / max(launch_us, 1.0))))
                very_slow = launch_us / (results[name].calls or 1) > HOPELESS_US
                launches[name] = launch, MIN_REPLAYS if very_slow else replays
        rotate_enough = all(item.sets < MAX_SETS for item in work.values())
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in launches}
        torch.cuda._sleep(SLEEP_CYCLES)
        for turn in range(REPLAYS):
            for name, (launch, replays) in launches.items():
                if turn < replays:
                    if not rotate_enough:
                        self.flush()
                    events[name].append(self._record(launch))
        torch.cuda.synchronize()
        for name, pairs in events.items():
            calls = results[name].calls or 1
            results[name].samples_us = [start.elapsed_time(end) * 1e3 / calls for start, end in pairs]
            if results[name].method == "events":
                results[name].eager_us = results[name].median_us
            elif work[name].eager and calls >= MIN_CALLS:
                loop = self._loop(work[name], MIN_CALLS)
                results[name].eager_us = round(min(self._elapsed_us(loop) for _ in range(3)) / MIN_CALLS, 3)
        return results

    def _prepare(self, item: Work, timing: Timing, pool: Any) -> Callable[[], None] | None:
        """Something that runs `timing.calls` calls, or None where one call takes too long."""
        torch.cuda.synchronize()
        item.call(0)  # compiles, loads and searches
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = item.call(0)
        end.record()
        torch.cuda.synchronize()
        timing.extra_bytes = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        del result
        once_us = start.elapsed_time(end) * 1e3
        if once_us > item.limit_us:
            timing.note = f"not timed: one call takes {once_us / 1e3:.0f} ms"
            return None
        timing.calls = max(MIN_CALLS, item.sets)
        if once_us * timing.calls > MAX_GRAPH_US:
            timing.calls = max(1, min(MIN_CALLS, int(MAX_GRAPH_US / once_us)))
        try:
            graph = self._capture(self._loop(item, timing.calls), pool)
        except Exception as error:
            timing.method, timing.note = "events", f"not captured: {reason(error)}"
            return self._loop(item, timing.calls)
        timing.method = "graph"
        return graph.replay

    @staticmethod
    def _loop(item: Work, calls: int) -> Callable[[], None]:
        def loop() -> None:
            held: list[Any] = [None] * item.sets  # results stay allocated for a round, so that they rotate too
            for i in range(calls):
                held[i % item.sets] = item.call(i % item.sets)

        return loop

    def _capture(self, loop: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
        """As torch.cuda.graph does it, without its garbage collection, which would take most of the time."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(pool=pool, capture_error_mode="relaxed")
        try:
            loop()
        finally:
            graph.capture_end()
        graph.replay()
        torch.cuda.synchronize()
        return graph

    @staticmethod
    def _record(launch: Callable[[], None]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch()
        end.record()
        return start, end

    def _elapsed_us(self, launch: Callable[[], None]) -> float:
        start, end = self._record(launch)
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    def release(self) -> None:
        """Gives the memory of a case back."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


Timer = CpuTimer | GpuTimer


def make_timer(device: str | None = None) -> Timer:
    """Of the current GPU, or of the CPU where there is none (or "cpu" is asked for)."""
    return GpuTimer() if device != "cpu" and torch.cuda.is_available() else CpuTimer()


# ---------------------------------------------------------------------------------------------------------------------
# Providers
# ---------------------------------------------------------------------------------------------------------------------


def cupy_function(function: Function) -> Function:
    """A function of CuPy arrays as one of tensors: on torch's stream and out of torch's memory, so that it can be
    captured, and its memory is counted, like the others'."""
    import cupy

    def malloc(size: int, device: int) -> int:
        return torch.cuda.caching_allocator_alloc(size, device, torch.cuda.current_stream()) if size else 0

    def free(pointer: int, device: int) -> None:
        if pointer:
            torch.cuda.caching_allocator_delete(pointer)

    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(malloc, free).malloc)

    def call(*inputs: Tensor) -> Any:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            return function(*(cupy.asarray(tensor.detach()) for tensor in inputs))

    return call


def providers(benchmark: Benchmark, case: Case, direction: str, timer: Timer, peers: Sequence[str]) -> dict:
    """The functions of tensors to compare, by name."""
    on_gpu = timer.on_gpu
    result: dict[str, Function] = {"cudamem": benchmark.ours(case)}
    if "torch" in peers:
        result["torch"] = benchmark.builtin(case)
    if "torch.compile" in peers and case.compiled and direction == "forward":
        torch._dynamo.reset()  # else the second shape would be compiled with symbolic sizes
        for name, expression in benchmark.expressions(case).items():
            result[name] = torch.compile(expression, dynamic=False)
    if "cupy" in peers and on_gpu and direction == "forward" and find_spec("cupy"):
        function = benchmark.cupy(case)
        if function is not None:
            result["cupy"] = cupy_function(function)
    if case.ladder and on_gpu and direction == "forward":  # backward passes take no variant
        for variant in cudamem_ops.variants()[benchmark.name]:
            result[f"cudamem:{variant}"] = benchmark.ours(case, variant)
    return result


def call_in_direction(
    direction: str, function: Function, sets: Sequence[Sequence[Tensor]], grads: Sequence[Tensor]
) -> Callable[[int], Any]:
    """The call on the i-th set. The backward pass gives the gradients of all inputs."""
    if direction == "forward":
        return lambda i: function(*sets[i])
    if direction == "both":
        return lambda i: torch.autograd.grad(function(*sets[i]), sets[i], grads[i])
    outputs = [function(*inputs) for inputs in sets]
    return lambda i: torch.autograd.grad(outputs[i], sets[i], grads[i], retain_graph=True)


# ---------------------------------------------------------------------------------------------------------------------
# Correctness
# ---------------------------------------------------------------------------------------------------------------------


def expected(
    benchmark: Benchmark, case: Case, direction: str, inputs: Sequence[Tensor], grad: Tensor | None
) -> tuple[list[Tensor], list[Tensor] | None]:
    """The reference of a direction's results, and the sums of the magnitudes of their terms (None: exact)."""
    exact = benchmark.tolerance(case, direction) == 0

    def results(absolute: bool) -> list[Tensor]:
        def prepare(tensor: Tensor) -> Tensor:
            return tensor.detach().abs() if absolute else tensor.detach()

        if direction == "forward":
            return [benchmark.reference(case, *(prepare(tensor) for tensor in inputs))]
        assert grad is not None
        leaves = [widened(prepare(tensor)).requires_grad_() for tensor in inputs]
        with torch.enable_grad():
            output = benchmark.reference(case, *leaves)
        return list(torch.autograd.grad(output, leaves, widened(prepare(grad))))

    return results(False), None if exact else results(True)


def relative_error(result: Tensor, reference: Tensor, magnitude: Tensor | None = None) -> float:
    """max |result - reference| / magnitude, which counts as no less than the dtype's least normal number: NaN where the
    result has NaNs, infinite where it has another shape. Without a magnitude the result must be exact: 1 for any other
    bits in the reference's dtype; in another dtype relative to the reference where that is above 1."""
    if result.shape != reference.shape:
        return math.inf
    if result.numel() == 0:
        return 0.0
    if magnitude is None and result.dtype == reference.dtype:
        # One element is contiguous at any stride, and view needs a last dim of stride 1.
        bits = [t.resolve_conj().contiguous().unsqueeze(-1).view(torch.uint8) for t in (result, reference)]
        return 0.0 if torch.equal(*bits) else 1.0
    scale = reference.abs().clamp_min(1) if magnitude is None else magnitude.clamp_min(torch.finfo(result.dtype).tiny)
    return float(((widened(result) - reference).abs() / scale).max())


def check(
    call: Callable[[int], Any],
    result_bytes: int,
    device: torch.device,
    wanted: Sequence[Tensor],
    scales: Sequence[Tensor | None],
) -> float:
    """The largest relative error of a call's results. The memory that they get is filled with NaNs first."""
    poisoned = torch.full((result_bytes,), 0xFF, dtype=torch.uint8, device=device)
    del poisoned  # the allocator hands it to the next request of its size
    results = call(0)
    results = results if isinstance(results, tuple | list) else [results]
    tensors = [r if isinstance(r, Tensor) else torch.as_tensor(r, device=device) for r in results]
    return max(
        (
            relative_error(t.detach(), reference, scale)
            for t, reference, scale in zip(tensors, wanted, scales, strict=True)
        ),
        key=lambda error: math.inf if math.isnan(error) else error,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Running a case
# ---------------------------------------------------------------------------------------------------------------------


def make_row(benchmark: Benchmark, case: Case, direction: str, provider: str) -> Row:
    """A row in which nothing was measured yet."""
    return {
        "op": benchmark.name,
        "shape": list(case.shape),
        "dtype": case.dtype_name,
        "args": dict(case.args),
        "direction": direction,
        "provider": provider,
        "kernel_us": None,
        "spread_us": None,
        "host_us": None,
        "eager_us": None,
        "bytes_moved": None,
        "flops": None,
        "max_rel_error": None,
        "extra_bytes": None,
        "timing": None,
        "calls": None,
        "note": None,
        **({"layout": case.layout} if case.layout else {}),
    }


def _fill(row: Row, timing: Timing) -> None:
    row |= {
        "kernel_us": timing.median_us,
        "spread_us": timing.spread_us,
        "eager_us": timing.eager_us,
        "extra_bytes": timing.extra_bytes,
        "timing": timing.method,
        "calls": timing.calls,
        "note": "; ".join(filter(None, [row["note"], timing.note])) or None,
        "samples_us": [round(sample, 2) for sample in timing.samples_us],
    }


def run_case(benchmark: Benchmark, case: Case, timer: Timer, peers: Sequence[str] = PEERS) -> list[Row]:
    """Checks and times all providers of a case, in each of its directions."""
    generator = torch.Generator(timer.device).manual_seed(0)
    shapes = benchmark.input_shapes(case)
    count = timer.sets(sum(tensor_bytes(shape, case.dtype) for shape in shapes))
    differentiates = case.directions != ("forward",)

    def make(shape: Sequence[int]) -> Tensor:
        return random_tensor(shape, case.dtype, generator)

    sets = [
        [
            LAYOUTS["" if i else case.layout](shape, make).requires_grad_(differentiates)
            for i, shape in enumerate(shapes)
        ]
        for _ in range(count)
    ]
    output = benchmark.builtin(case)(*(torch.empty(shape, dtype=case.dtype, device="meta") for shape in shapes))
    grads = [random_tensor(output.shape, output.dtype, generator) for _ in range(count)] if differentiates else []
    rows: list[Row] = []
    for direction in case.directions:
        with torch.set_grad_enabled(direction != "forward"):
            rows += _run_direction(benchmark, case, direction, timer, peers, sets, grads, output)
    del sets, grads
    timer.release()
    return rows


def _run_direction(
    benchmark: Benchmark,
    case: Case,
    direction: str,
    timer: Timer,
    peers: Sequence[str],
    sets: Sequence[Sequence[Tensor]],
    grads: Sequence[Tensor],
    output: Tensor,
) -> list[Row]:
    wanted, magnitudes = expected(benchmark, case, direction, sets[0], grads[0] if grads else None)
    scales: Sequence[Tensor | None] = magnitudes or [None] * len(wanted)
    tolerance = benchmark.tolerance(case, direction)
    result = output if direction == "forward" else sets[0][0]
    result_bytes = tensor_bytes(result.shape, result.dtype)
    rows: dict[str, Row] = {}
    work: dict[str, Work] = {}
    for name, function in providers(benchmark, case, direction, timer, peers).items():
        row = rows[name] = make_row(benchmark, case, direction, name)
        row["bytes_moved"] = benchmark.bytes_moved(case, direction)
        row["flops"] = benchmark.flops(case, direction)
        try:
            call = call_in_direction(direction, function, sets, grads)
            error = check(call, result_bytes, timer.device, wanted, scales)
        except Exception as failure:  # such as a dtype that a peer does not take
            row["note"] = reason(failure)
            continue
        row["max_rel_error"] = error if math.isfinite(error) else None
        if not error <= tolerance:
            row["note"] = f"error {error:.3g} above {tolerance:.3g}"
            if name.startswith("cudamem"):
                continue  # what is wrong has no time
        limit_us = HOPELESS_US if name.startswith("cudamem:") else math.inf
        work[name] = Work(call, len(sets), limit_us, eager=name in ("cudamem", "torch"))
    del wanted, magnitudes, scales
    forward_bytes = benchmark.bytes_moved(case, "forward")
    timings = timer.measure(work | timer.ceilings(benchmark.ceilings, forward_bytes))
    for name in work:
        _fill(rows[name], timings[name])
        if (rows[name]["kernel_us"] or math.inf) < EMPTY_US:
            rows[name] |= {"kernel_us": None, "spread_us": None, "note": "launches no kernel: its result is a view"}
    for name in benchmark.ceilings:
        found = {key: timing for key, timing in timings.items() if key.split(":")[0] == name and timing.median_us}
        row = rows[name] = make_row(benchmark, case, direction, name)
        row |= {"bytes_moved": forward_bytes, "flops": 0, "note": None if found else "not available here"}
        if found:
            best = min(found, key=lambda key: found[key].median_us or math.inf)
            _fill(row, found[best])
            row["note"] = ", ".join(f"{key.split(':')[-1]} {timing.median_us} us" for key, timing in found.items())
    return list(rows.values())


def failed(rows: Sequence[Row]) -> list[Row]:
    """The rows of our own default path that could not be timed."""
    return [row for row in rows if row["provider"] == "cudamem" and row["kernel_us"] is None and row["host_us"] is None]


# ---------------------------------------------------------------------------------------------------------------------
# Host cost, and the quick comparison
# ---------------------------------------------------------------------------------------------------------------------


def run_host_cost(benchmark: Benchmark, timer: Timer, peers: Sequence[str] = PEERS) -> list[Row]:
    """Wall clock of an eager call on tiny tensors, ours and torch's in turns, best of several runs."""
    case = benchmark.host_case()
    generator = torch.Generator(timer.device).manual_seed(0)
    shapes = benchmark.input_shapes(case)
    functions = {"cudamem": benchmark.ours(case)}
    if "torch" in peers:
        functions["torch"] = benchmark.builtin(case)
    rows = []
    for direction, requires_grad in (("forward", False), ("forward", True), ("both", True)):
        inputs = [random_tensor(shape, case.dtype, generator).requires_grad_(requires_grad) for shape in shapes]
        with torch.set_grad_enabled(requires_grad):
            output = functions["cudamem"](*inputs)
            grad = random_tensor(output.shape, output.dtype, generator)
            calls = {
                name: call_in_direction(direction, function, [inputs], [grad]) for name, function in functions.items()
            }
            counts = {name: 10 for name in calls}
            best = dict.fromkeys(calls, math.inf)
            for turn in range(HOST_RUNS + 1):
                for name, call in calls.items():
                    _synchronize(timer)
                    call_us = _wall_us(partial(call, 0), counts[name])
                    if turn == 0:  # the warm-up tells how many calls a run takes
                        counts[name] = max(10, min(200, int(HOST_RUN_US / call_us)))
                    else:
                        best[name] = min(best[name], call_us)
        for name, host_us in best.items():
            row = make_row(benchmark, case, direction, name)
            rows.append(row | {"host_us": round(host_us, 3), "requires_grad": requires_grad, "timing": "perf_counter"})
    return rows


def _synchronize(timer: Timer) -> None:
    if timer.on_gpu:
        torch.cuda.synchronize()


def side_by_side(ours: Function, builtin: Function, reference: Tensor, *inputs: Tensor, timer: Timer) -> Row:
    """Two implementations on the same inputs: the errors of both against a float64 reference, relative to its largest
    element, and the time of a call. On a GPU the call must run inside ``with timer.active()``.

    Returns:
        A dict with ``max_error``, ``torch_max_error``, ``ours_us``, ``torch_us``, ``speed_up`` and ``timing``.
    """
    scale = reference.abs().max().clamp_min(1e-300)
    count = timer.sets(sum(tensor.nbytes for tensor in inputs))
    sets = [inputs, *([tensor.clone() for tensor in inputs] for _ in range(count - 1))]
    calls = {name: call_in_direction("forward", function, sets, []) for name, function in (("o", ours), ("b", builtin))}
    with torch.no_grad():
        errors = {name: float((widened(call(0)) - reference).abs().max() / scale) for name, call in calls.items()}
        timings = timer.measure({name: Work(call, count) for name, call in calls.items()})
    ours_us, torch_us = timings["o"].median_us, timings["b"].median_us
    return {
        "max_error": errors["o"],
        "torch_max_error": errors["b"],
        "ours_us": ours_us,
        "torch_us": torch_us,
        "speed_up": torch_us / ours_us if torch_us and ours_us else None,
        "timing": timings["o"].method,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Where and when
# ---------------------------------------------------------------------------------------------------------------------

FP32_LANES = {(7, 5): 64, (8, 0): 64}  # FMAs a cycle and multiprocessor; 128 on all others from 8.6 on


def _output_of(*command: str) -> str | None:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def describe_gpu(device: torch.device) -> dict[str, Any]:
    """The GPU, and its peaks by its specification; None where that is not known."""
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    which = [f"--id=GPU-{properties.uuid}"] if hasattr(properties, "uuid") else []
    asked = ["--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader,nounits"]
    query = _output_of("nvidia-smi", *which, *asked) or _output_of("nvidia-smi", *asked)
    driver, clock = query.split("\n")[0].split(", ") if query else (None, None)
    lanes = FP32_LANES.get(capability, 128)
    peak = properties.multi_processor_count * lanes * 2 * float(clock) * 1e6 if clock and clock.isdigit() else None
    return {
        "gpu": properties.name,
        "capability": ".".join(map(str, capability)),
        "multiprocessors": properties.multi_processor_count,
        "driver": driver,
        "fp32_peak_flops": peak,
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Of the sources that the library was built from; where that is not known, of those that lie here."""
    built = Path(cudamem_ops.__file__).with_name("build_info.json")
    return json.loads(built.read_text()).get("commit") or _output_of("git", "rev-parse", "HEAD")


def describe_run(benchmark: Benchmark, timer: Timer) -> dict[str, Any]:
    """The `meta` of a result file. What is not known is None."""
    on_gpu = timer.on_gpu
    status = _output_of("git", "status", "--porcelain", "--untracked-files=no")
    commit, head = _commit(), _output_of("git", "rev-parse", "HEAD")
    none = {"gpu": None, "capability": None, "multiprocessors": None, "driver": None, "fp32_peak_flops": None}
    return {
        "op": benchmark.name,
        **(describe_gpu(timer.device) if on_gpu else none),
        "cpu": _cpu_name(),
        "figures": "GPU kernel time" if on_gpu else "CPU wall-clock time of a call: says nothing about the kernels",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit,
        "dirty": bool(status) or head != commit if status is not None else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernel_fingerprint": kernel_fingerprint(benchmark.name),
        "copy_kernel": timer.copy_kernel,
    }


def result_folder(meta: Mapping[str, Any]) -> str:
    """ "h200" of "NVIDIA H200"; "cpu" without a GPU."""
    name = re.sub(r"^nvidia\s+", "", (meta["gpu"] or "cpu").lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")
