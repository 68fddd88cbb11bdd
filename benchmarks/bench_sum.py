"""sum: every byte is read once and little is written, so that its limit is a read-only pass."""

import math
import random
from typing import Any

import torch
from torch import Tensor

import cudamem_ops
from benchmarks.harness import Benchmark, Case, Function, random_layout, random_shape, tensor_bytes

NUMEL = 1 << 28


class SumBenchmark(Benchmark):
    name = "sum"
    arguments = ("dim",)
    ceilings = ("memcpy", "read")

    def cases(self) -> list[Case]:
        f16, f32, f64, bf16, i64 = torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.int64
        last, first = {"dim": -1}, {"dim": 0}

        def case(shape: tuple[int, ...], dtype: torch.dtype = f32, args: Any = None, **flags: Any) -> Case:
            return Case(shape, dtype, args or {}, compiled=True, **flags)

        return [
            *[case((1 << 30,), d) for d in (f32, bf16, f64, i64)],
            case((NUMEL,), f32, ladder=True, quick=True),
            *[case((NUMEL,), d) for d in (bf16, f64, i64, torch.int32, torch.int8, torch.uint8, torch.bool)],
            *[case((1 << k,), quick=k == 20) for k in (24, 20, 16, 10)],
            case((16384, 16384), f32, last, directions=("forward", "both"), ladder=True, quick=True),
            case((16384, 16384), f32, first, ladder=True, quick=True),
            *[
                case((NUMEL // row, row), d, last, ladder=(row, d) == (64, f32), quick=(row, d) == (64, f32))
                for row in (2, 4, 8, 16, 32, 64, 100, 1000)
                for d in (f32, f16)
            ],
            *[case((rows, 1 << 22), f32, first, ladder=rows == 8) for rows in (2, 8, 64)],
            case((1 << 26, 4), f32, first),
            case((64, 4096, 1024), bf16, {"dim": 1}),
            *[case((32, 64, 128, 256), f32, {"dim": dims}) for dims in ([0, 2], [1, 3])],
            *[Case((8191, 8193), f16, args) for args in (first, last)],
            case((1, NUMEL), f32, last),
            case((3, 1 << 26), f32, last),
            case((1 << 20, 1), f32, first),
        ]

    def cpu_cases(self) -> list[Case]:
        return [
            Case((1 << 18,), directions=("forward", "both"), quick=True),
            Case((512, 512), torch.bfloat16, {"dim": 0}),
            Case((8, 16, 32, 64), torch.int8, {"dim": [0, 2]}),
        ]

    def random_case(self, rng: random.Random, numel: int) -> Case:
        shape = random_shape(rng, rng.randint(1, 5), numel)
        dtype = rng.choice(
            [*[torch.float32] * 3, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int8]
        )
        dims = rng.sample(range(len(shape)), rng.randint(1, len(shape)))
        args: dict[str, Any] = {"dim": sorted(dims)}
        if rng.random() < 0.3:
            args["keepdim"] = True
        if dtype in (torch.float16, torch.bfloat16, torch.int8) and rng.random() < 0.3:
            args["dtype"] = "float32"
        return Case(shape, dtype, args, compiled=True, layout=random_layout(rng))

    def host_case(self) -> Case:
        return Case((64,))

    def input_shapes(self, case: Case) -> list[tuple[int, ...]]:
        return [case.shape]

    @staticmethod
    def _options(case: Case) -> dict[str, Any]:
        dtype = case.args.get("dtype")
        return {"keepdim": case.args.get("keepdim", False), "dtype": getattr(torch, dtype) if dtype else None}

    def ours(self, case: Case, variant: str | None = None) -> Function:
        dim, options = case.args.get("dim"), self._options(case)
        return lambda x: cudamem_ops.sum(x, dim, variant=variant, **options)

    def builtin(self, case: Case) -> Function:
        dim, options = case.args.get("dim"), self._options(case)
        return lambda x: torch.sum(x, dim, **options)

    def cupy(self, case: Case) -> Function:
        dim = case.args.get("dim")
        axis, options = tuple(dim) if isinstance(dim, list) else dim, self._options(case)
        dtype = "float32" if options["dtype"] else None  # else CuPy's own, which is torch's
        return lambda x: x.sum(axis=axis, keepdims=options["keepdim"], dtype=dtype)

    def reference(self, case: Case, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        dtype = torch.complex128 if x.is_complex() else torch.float64  # converted element by element, without a copy
        return torch.sum(x, case.args.get("dim"), case.args.get("keepdim", False), dtype=dtype)

    def tolerance(self, case: Case, direction: str) -> float:
        """The result is rounded once; a partial sum grows by at most 256 elements one by one, the rest by a tree."""
        out = self._options(case)["dtype"] or case.dtype
        if not (out.is_floating_point or out.is_complex):
            return 0.0
        eps = torch.finfo(torch.float64 if case.dtype in (torch.float64, torch.complex128) else torch.float32).eps
        return torch.finfo(out).eps + (256 + math.log2(math.prod(case.shape))) * eps

    def _outputs(self, case: Case) -> int:
        dim = case.args.get("dim")
        dims = range(len(case.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
        reduced = {d % len(case.shape) for d in dims}
        return math.prod(size for d, size in enumerate(case.shape) if d not in reduced)

    def bytes_moved(self, case: Case, direction: str) -> int:
        if direction == "backward":
            return 0  # the gradient is an expanded view
        wide = case.dtype.is_floating_point or case.dtype.is_complex
        out = self._options(case)["dtype"] or (case.dtype if wide else torch.int64)
        return tensor_bytes(case.shape, case.dtype) + self._outputs(case) * out.itemsize

    def flops(self, case: Case, direction: str) -> int:
        each = 2 if case.dtype.is_complex else 1
        return 0 if direction == "backward" else each * (math.prod(case.shape) - self._outputs(case))


BENCHMARK = SumBenchmark()
