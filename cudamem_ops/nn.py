"""Layers for models: torch.nn's, with this library's operators inside."""

import torch
from torch import Tensor
from torch.nn import functional as F

from cudamem_ops._conv1d import conv1d


class Conv1d(torch.nn.Conv1d):
    """``torch.nn.Conv1d``, computed by :func:`cudamem_ops.conv1d`.

    ``out[n, o, t] = bias[o] + sum over c, k of weight[o, c, k] * input[n, g(o) + c, t * stride - padding + k *
    dilation]``, where ``g(o)`` is the first channel of o's group.

    Arguments, parameters, ``state_dict``, representation and initial values are those of ``torch.nn.Conv1d``, and so
    are the padding modes: all but "zeros" pad the input first, in a copy. Shapes, dtypes, accuracy and errors are those
    of :func:`cudamem_ops.conv1d`: banks that are not small go to cuDNN, as before.

    Example:
        >>> import torch, cudamem_ops
        >>> layer = cudamem_ops.nn.Conv1d(16, 16, kernel_size=5, groups=16, padding="same")
        >>> layer(torch.randn(2, 16, 100)).shape
        torch.Size([2, 16, 100])
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0,)
        return conv1d(input, weight, bias, self.stride, padding, self.dilation, self.groups)


def _gains(layer: torch.nn.Conv1d) -> bool:
    """Whether conv1d has a kernel of its own for the layer's bank; all others it passes on to cuDNN."""
    in_per_group, out_per_group = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    coefficients, most = in_per_group * layer.kernel_size[0], 128 if layer.weight.dtype == torch.float32 else 32
    return not layer.weight.is_complex() and (in_per_group == 1 or (out_per_group <= 8 and coefficients <= most))


def convert(model: torch.nn.Module) -> list[str]:
    """Makes a model's ``torch.nn.Conv1d`` layers that gain by it :class:`Conv1d`, in place.

    A layer gains where :func:`cudamem_ops.conv1d` has a kernel for its bank: one input channel per group (single
    filters, depthwise banks), or up to 8 output channels per group with up to 128 coefficients for each output (32 but
    in float32). Only the class of the layer changes: parameters, buffers, hooks and optimizer state stay what and where
    they are. Layers of another class, subclasses of ``torch.nn.Conv1d`` and parametrized layers among them, are left
    alone.

    Args:
        model: any module, also a single layer.

    Returns:
        The names of the layers that were changed, as ``model.named_modules()`` gives them ("" for the model itself).

    Example:
        >>> import torch, cudamem_ops
        >>> model = torch.nn.Sequential(torch.nn.Conv1d(8, 8, 3, groups=8), torch.nn.ReLU(), torch.nn.Conv1d(8, 64, 9))
        >>> cudamem_ops.nn.convert(model)
        ['0']
    """
    changed = []
    for name, layer in model.named_modules():
        if type(layer) is torch.nn.Conv1d and _gains(layer):
            layer.__class__ = Conv1d
            changed.append(name)
    return changed
