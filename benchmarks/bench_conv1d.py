"""conv1d: input and output pass through memory once where the filters are few, so that its limit is a copy, up to as
many taps as the GPU's FMA rate allows."""

import math
import random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

import cudamem_ops
from benchmarks.harness import Benchmark, Case, Function, random_layout, random_shape, tensor_bytes, widened

LENGTH = 1 << 26
TF32_EPS = 2.0**-10
OPTIONS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}  # torch's order and defaults


def bank(taps: int, out_channels: int = 1, channels_per_group: int = 1, **options: int) -> dict[str, Any]:
    return {"weight": [out_channels, channels_per_group, taps], **options}


def options_of(case: Case) -> dict[str, int]:
    return {name: case.args.get(name, default) for name, default in OPTIONS.items()}


class Conv1dBenchmark(Benchmark):
    name = "conv1d"
    arguments = ("weight", *OPTIONS)

    def cases(self) -> list[Case]:
        f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
        single, deep = (1, 1, LENGTH), (8, 2048, 4096)
        all_directions = ("forward", "backward", "both")

        def depthwise(taps: int, channels: int = 2048, **options: int) -> dict[str, Any]:
            return bank(taps, channels, groups=channels, **options)

        return [
            Case(single, f32, bank(3), compiled=True),
            Case(single, f32, bank(9), all_directions, compiled=True, ladder=True, quick=True),
            Case(single, f32, bank(17), compiled=True),
            Case(single, f32, bank(31), ("forward", "both"), compiled=True, ladder=True, quick=True),
            *[Case(single, f32, bank(taps), ladder=taps == 129) for taps in (129, 513)],
            *[Case(single, d, bank(taps), compiled=d == bf16) for d in (bf16, f16) for taps in (9, 31)],
            *[Case((1, 1, 1 << k), f32, bank(9)) for k in (16, 20, 24)],
            Case((4096, 1, 16384), f32, bank(31), ("forward", "both")),
            Case(deep, f32, depthwise(3), ("forward", "both")),
            Case(deep, f32, depthwise(4), all_directions, ladder=True, quick=True),
            *[Case(deep, bf16, depthwise(t), ("forward", "both") if t == 4 else ("forward",)) for t in (3, 4, 31)],
            Case(deep, f32, depthwise(31), ("forward", "both"), ladder=True),
            Case((64, 512, 1024), bf16, depthwise(7, 512), ("forward", "both")),
            Case((256, 256, 200), f32, depthwise(3, 256)),
            *[Case(deep, f32, depthwise(5, dilation=dilation)) for dilation in (2, 4, 8)],
            Case(deep, f32, depthwise(5, stride=2)),
            Case((8, 2048, 4095), f32, depthwise(5)),
            Case((1, 4, 1 << 22), f32, bank(9, 8, 4), compiled=True, ladder=True, quick=True),
            Case((64, 256, 1024), f32, bank(3, 256, 256), compiled=True),
        ]

    def cpu_cases(self) -> list[Case]:
        return [
            Case((1, 1, 1 << 16), torch.float32, bank(9), ("forward", "backward", "both"), quick=True),
            Case((2, 16, 512), torch.bfloat16, bank(4, 16, groups=16, padding=3)),
            Case((2, 4, 512), torch.float32, bank(3, 8, 4, stride=2, dilation=2)),
        ]

    def random_case(self, rng: random.Random, numel: int) -> Case:
        batch, channels, length = random_shape(rng, 3, numel)
        channels = min(channels, 1024)
        kind = rng.choice(["single", "depthwise", "depthwise", "few channels", "groups"])
        groups, per_group = {"single": (1, 1), "few channels": (1, min(channels, rng.randint(1, 8)))}.get(
            kind, (channels, 1)
        )
        if kind == "groups":
            groups = rng.choice([n for n in range(1, channels + 1) if channels % n == 0 and channels // n <= 16])
            per_group = channels // groups
        out_per_group = rng.randint(1, 8) if kind in ("few channels", "groups") else 1
        taps = rng.choice([1, 2, 3, 4, 5, 7, 9, 15, 31, 64])
        args = bank(taps, groups * out_per_group, per_group)
        args |= {"stride": rng.choice([1, 1, 1, 2, 3]), "dilation": rng.choice([1, 1, 1, 2, 4]), "groups": groups}
        reach = args["dilation"] * (taps - 1) + 1
        args["padding"] = rng.choice([0, reach // 2, reach - 1])
        if rng.random() < 0.5:
            args["bias"] = [groups * out_per_group]
        args = {name: value for name, value in args.items() if OPTIONS.get(name) != value}
        shape = (batch, groups * per_group, max(length, reach))
        dtype = rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
        return Case(shape, dtype, args, compiled=True, layout=random_layout(rng))

    def host_case(self) -> Case:
        return Case((1, 1, 64), args=bank(3))

    def input_shapes(self, case: Case) -> list[tuple[int, ...]]:
        return [case.shape, tuple(case.args["weight"]), *([tuple(case.args["bias"])] if "bias" in case.args else [])]

    def ours(self, case: Case, variant: str | None = None) -> Function:
        options = options_of(case).values()
        return lambda x, weight, bias=None: cudamem_ops.conv1d(x, weight, bias, *options, variant=variant)

    def builtin(self, case: Case) -> Function:
        options = options_of(case).values()
        return lambda x, weight, bias=None: conv1d(x, weight, bias, *options)

    def _is_plain_filter(self, case: Case) -> bool:
        return math.prod(case.args["weight"][:2]) == 1 and set(case.args) == {"weight"}

    def expressions(self, case: Case) -> dict[str, Function]:
        taps = case.args["weight"][2]
        if not self._is_plain_filter(case) or taps > 32:
            return super().expressions(case)

        def shifted_adds(x: Tensor, weight: Tensor) -> Tensor:
            length = x.shape[-1] - taps + 1
            total = x[..., :length] * weight[0, 0, 0]
            for k in range(1, taps):
                total = total + x[..., k : k + length] * weight[0, 0, k]
            return total

        return {**super().expressions(case), "torch.compile:shifted_adds": shifted_adds}

    def cupy(self, case: Case) -> Function | None:
        taps = case.args["weight"][2]
        if not self._is_plain_filter(case) or taps > 32:  # CuPy compiles its kernel for each number of taps
            return None

        def correlate(x: Any, weight: Any) -> Any:
            from cupyx.scipy.ndimage import correlate1d

            whole = correlate1d(x, weight[0, 0], axis=-1, mode="constant")  # as long as the input
            return whole[..., taps // 2 : taps // 2 + x.shape[-1] - taps + 1]

        return correlate

    def reference(self, case: Case, *inputs: Tensor) -> Tensor:
        x, weight, *bias = (widened(tensor) for tensor in inputs)
        options = options_of(case)
        groups, stride, dilation = options["groups"], options["stride"], options["dilation"]
        batch, _, length = self._output_shape(case)
        x = pad(x, (options["padding"],) * 2).unflatten(1, (groups, -1))
        weight = weight.unflatten(0, (groups, -1))  # [groups, out_channels / groups, channels_per_group, taps]
        total: Tensor | None = None
        for k in range(weight.shape[-1]):
            start = k * dilation
            samples = x[..., start : start + (length - 1) * stride + 1 : stride]  # [batch, groups, channels, length]
            taps = weight[..., k]
            term = samples * taps if taps.shape[-1] == 1 else torch.einsum("bgcl,goc->bgol", samples, taps)
            total = term if total is None else total + term
        assert total is not None
        total = total.reshape(batch, -1, length)
        return total + bias[0][:, None] if bias else total

    def tolerance(self, case: Case, direction: str) -> float:
        """The result is rounded once, after one rounding per term. Where cuDNN may compute (dense banks, gradients),
        torch lets it round float32 factors to TF32; the gradients of the weights are sums of as many terms
        as there are outputs, added in blocks."""
        _, channels_per_group, taps = case.args["weight"]
        precise = torch.float64 if case.dtype in (torch.float64, torch.complex128) else torch.float32
        bound = torch.finfo(case.dtype).eps + taps * channels_per_group * torch.finfo(precise).eps
        by_cudnn = channels_per_group > 1 or direction != "forward"
        if by_cudnn and case.dtype == torch.float32 and torch.backends.cudnn.allow_tf32:
            bound += TF32_EPS
        return bound

    def _output_shape(self, case: Case) -> tuple[int, int, int]:
        out_channels, _, taps = case.args["weight"]
        options = options_of(case)
        reach = options["dilation"] * (taps - 1) + 1
        length = (case.shape[-1] + 2 * options["padding"] - reach) // options["stride"] + 1
        return case.shape[0], out_channels, length

    def bytes_moved(self, case: Case, direction: str) -> int:
        x = tensor_bytes(case.shape, case.dtype)
        y = tensor_bytes(self._output_shape(case), case.dtype)
        weight = tensor_bytes(case.args["weight"], case.dtype) + tensor_bytes(case.args.get("bias", [0]), case.dtype)
        forward, backward = x + weight + y, (x + weight + y) + (x + weight)  # backward reads x, weight, dy
        return {"forward": forward, "backward": backward, "both": forward + backward}[direction]

    def flops(self, case: Case, direction: str) -> int:
        _, channels_per_group, taps = case.args["weight"]
        each = 8 if case.dtype.is_complex else 2
        forward = each * math.prod(self._output_shape(case)) * channels_per_group * taps
        return forward * {"forward": 1, "backward": 2, "both": 3}[direction]


BENCHMARK = Conv1dBenchmark()
