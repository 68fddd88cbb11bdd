"""transpose: every byte is read once and written once, so that its limit is a copy."""

import random
from typing import Any

import torch
from torch import Tensor

import cudamem_ops
from benchmarks.harness import Benchmark, Case, Function, random_layout, random_shape, tensor_bytes

ALL_DIRECTIONS = ("forward", "backward", "both")


class TransposeBenchmark(Benchmark):
    name = "transpose"
    arguments = ("dim0", "dim1")

    def cases(self) -> list[Case]:
        f16, bf16, i8 = torch.float16, torch.bfloat16, torch.int8
        square = (8192, 8192)
        return [
            Case(square, directions=ALL_DIRECTIONS, compiled=True, ladder=True, quick=True),
            Case(square, f16, compiled=True, ladder=True, quick=True),
            Case(square, i8, compiled=True, ladder=True),
            *[Case(square, d) for d in (torch.bfloat16, torch.bool, torch.float8_e4m3fn)],
            *[Case(square, d) for d in (torch.float64, torch.complex128)],
            *[Case((n, n), compiled=n in (512, 1024)) for n in (512, 1024, 2048, 4096)],
            Case((16384, 16384), compiled=True),
            Case((32768, 8192)),
            *[Case((8191, 8193), d, compiled=d != f16, quick=d == torch.float32) for d in (torch.float32, f16, i8)],
            Case((1048576, 64), compiled=True, ladder=True),
            *[Case(shape) for shape in ((64, 1048576), (4194304, 3), (3, 4194304), (4194304, 16))],
            Case((1 << 24, 2), compiled=True),
            Case((64, 1024, 768), bf16, compiled=True),
            Case((4096, 128, 64), bf16),
            Case((65536, 32, 32), f16, compiled=True),
            Case((8, 2048, 32, 128), bf16, {"dim0": 1, "dim1": 2}, compiled=True, quick=True),
            Case((8, 512, 64, 8), args={"dim0": 1, "dim1": 2}),
            Case((17, 33, 65, 129), args={"dim0": 0, "dim1": 3}, compiled=True),
        ]

    def cpu_cases(self) -> list[Case]:
        return [
            Case((512, 512), directions=ALL_DIRECTIONS, quick=True),
            Case((511, 513), torch.int8),
            Case((4, 64, 8, 32), torch.bfloat16, {"dim0": 1, "dim1": 2}),
        ]

    def random_case(self, rng: random.Random, numel: int) -> Case:
        shape = random_shape(rng, rng.randint(2, 5), numel)
        dtype = rng.choice([torch.int8, torch.bool, torch.float16, torch.bfloat16, *[torch.float32] * 2, torch.float64])
        dim0, dim1 = rng.sample(range(len(shape)), 2)
        return Case(shape, dtype, {"dim0": dim0, "dim1": dim1}, compiled=True, layout=random_layout(rng))

    def host_case(self) -> Case:
        return Case((16, 16))

    def input_shapes(self, case: Case) -> list[tuple[int, ...]]:
        return [case.shape]

    @staticmethod
    def _dims(case: Case) -> tuple[int, int]:
        return case.args.get("dim0", -2), case.args.get("dim1", -1)

    def ours(self, case: Case, variant: str | None = None) -> Function:
        dim0, dim1 = self._dims(case)
        return lambda x: cudamem_ops.transpose(x, dim0, dim1, variant=variant)

    def builtin(self, case: Case) -> Function:
        dim0, dim1 = self._dims(case)
        return lambda x: x.transpose(dim0, dim1).contiguous()

    def cupy(self, case: Case) -> Function:
        dim0, dim1 = self._dims(case)

        def transpose(x: Any) -> Any:
            import cupy

            return cupy.ascontiguousarray(cupy.swapaxes(x, dim0, dim1))

        return transpose

    def reference(self, case: Case, *inputs: Tensor) -> Tensor:
        dim0, dim1 = self._dims(case)
        order = list(range(len(case.shape)))
        order[dim0], order[dim1] = order[dim1], order[dim0]
        return inputs[0].permute(order).clone(memory_format=torch.contiguous_format)

    def tolerance(self, case: Case, direction: str) -> float:
        return 0.0

    def bytes_moved(self, case: Case, direction: str) -> int:
        passes = {"forward": 2, "backward": 2, "both": 4}  # each a read or a write of the whole tensor
        return passes[direction] * tensor_bytes(case.shape, case.dtype)

    def flops(self, case: Case, direction: str) -> int:
        return 0


BENCHMARK = TransposeBenchmark()
