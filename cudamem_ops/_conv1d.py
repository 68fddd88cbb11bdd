"""The conv1d operator, with its documentation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cudamem_ops._call import as_list, only_dispatched
from cudamem_ops._load import _C


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    variant: str | None = None,
) -> Tensor:
    """One-dimensional convolution (cross-correlation, as in all of torch).

    ``out[n, o, t] = bias[o] + sum over c, k of weight[o, c, k] * input[n, g(o) + c, t * stride - padding + k *
    dilation]`` with zeros outside the input, where ``g(o)`` is the first channel of o's group; as
    ``torch.nn.functional.conv1d``.

    Args:
        input: ``(N, C_in, L)``, or ``(C_in, L)`` without a batch; any strides.
        weight: ``(C_out, C_in / groups, K)``, of ``input``'s dtype and device.
        bias: ``(C_out,)``, or None.
        stride: the step between outputs, in samples.
        padding: zeros added at both ends, in samples; or "valid" (none) or "same" (as many as keep the length; stride
            1 only; an odd total has its last zero at the end, which costs a padded copy of the input).
        dilation: the distance between taps, in samples.
        groups: into how many groups the channels are split; ``C_in`` for a depthwise bank.
        variant: on CUDA, a kernel by name. "tiled": samples and coefficients in shared memory, a window in registers;
            where the samples of a warp's outputs and the coefficients take less than 24 KB, and signals up to 2^30
            samples. "flat": one position of the output a thread, from global memory, up to 2^30 outputs and 2^15 taps.
            One output a thread, with the coefficients in "global" memory (ordinary loads), "readonly" the
            same (``__ldg``), "shared" memory, "constant" memory (``__constant__``; weights of up to 65,536 bytes, and
            no capture into a CUDA graph), or a "parameter" of the kernel (up to 2048 bytes, for which the host waits;
            no capture). Eight outputs a thread, with the coefficients in "registers" (one channel per group, up to 32
            taps). Not with a padding in words. On the CPU the name is checked and ATen runs.

    By default, on CUDA, a small bank takes "tiled", or "flat" where signals are short or few, or "global" where they
    have more than 2^30 samples, or no tile fits and outputs are many. A small bank has one channel per group (a single
    filter, a depthwise bank), or up to 8 output channels per group and up to 128 coefficients for each output (32 but
    in float32). Of large signals whose samples lie far apart in memory a contiguous copy is made first. Everything
    else, and complex numbers, goes to ``at::conv1d`` (cuDNN), with its TF32 settings.

    Returns:
        ``(N, C_out, L_out)`` or ``(C_out, L_out)``, contiguous, with ``L_out = (L + 2 * padding - dilation * (K - 1) -
        1) // stride + 1``. float16 and bfloat16 accumulate in float32 and are rounded once; the kernels never round
        float32 to TF32, and give the same bits on every run. With no input channels the output is the bias.
        Differentiable any number of times, by ``torch.ops.cudamem.conv1d_backward``: with one channel and one filter
        per group, stride and dilation 1 and up to 32 taps, one kernel computes the gradients of input and weight, with
        the same bits on every run; other gradients may be ATen's. Under ``torch.func`` transforms and forward-mode AD,
        ATen's operators run instead. Under autocast it is cast as ``F.conv1d`` is.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit together (named, with what was received); stride, dilation
            or groups below 1; negative padding; a kernel longer than the padded input; an unknown variant, or one that
            cannot be used here; the GPU's architecture was not built.
        NotImplementedError: a variant was named for a dtype that has no kernel.

    Example:
        >>> import torch, cudamem_ops
        >>> signal, differences = torch.tensor([[[1., 4., 9., 16.]]]), torch.tensor([[[-1., 1.]]])
        >>> cudamem_ops.conv1d(signal, differences)
        tensor([[[3., 5., 7.]]])

    Source: V. Podlozhnyuk, "Image Convolution with CUDA", NVIDIA, 2007.
    """
    stride, dilation = as_list(stride), as_list(dilation)
    if isinstance(padding, str):
        if variant is not None:
            raise RuntimeError(f"cudamem::conv1d: variant '{variant}' needs padding in numbers, but got '{padding}'")
        return torch.ops.cudamem.conv1d.padding(input, weight, bias, stride, padding, dilation, groups)
    padding = as_list(padding)
    if variant is not None:
        return torch.ops.cudamem.conv1d.variant(input, weight, bias, stride, padding, dilation, groups, variant=variant)
    if only_dispatched(input, weight, bias):
        return _C.conv1d(input, weight, bias, stride, padding, dilation, groups)
    return torch.ops.cudamem.conv1d.default(input, weight, bias, stride, padding, dilation, groups)
