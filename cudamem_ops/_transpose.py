"""The transpose operator, with its documentation."""

import torch
from torch import Tensor

from cudamem_ops._call import only_dispatched
from cudamem_ops._load import _C


def transpose(input: Tensor, dim0: int = -2, dim1: int = -1, *, variant: str | None = None) -> Tensor:
    """Swaps two dims and lays the result out in fresh contiguous memory.

    ``out[..., j, ..., i, ...] = input[..., i, ..., j, ...]``: ``input.transpose(dim0, dim1).contiguous()``, but never
    a view and never the input itself, also where nothing moves.

    Args:
        input: any shape, strides and dtype (bool, complex and float8 too), on a CPU or CUDA device. Conjugate and
            negative views are resolved.
        dim0: a dim of ``input``, negative from the end. A 0-dim tensor takes 0 and -1.
        dim1: the dim to swap it with.
        variant: on CUDA, the kernel by name. "naive" (scattered writes), "shared" (32 x 32 tile in shared memory,
            32-way bank conflicts) and "padded" (32 x 33 tile, none) take every input. "swizzled" (16 bytes an access)
            needs multiples of 16 bytes everywhere, "aligned" (whole sectors from any alignment) an input that is
            contiguous along one dim. By default the fastest for the sizes and strides at hand, which may be a kernel
            that has no name: ``csrc/transpose/README.md`` tells which. On the CPU the name is checked and ATen runs.

    Returns:
        The swapped shape, contiguous, of ``input``'s dtype and device. Every bit is moved as it is; the result is the
        same on each run. Differentiable any number of times. Under ``torch.func`` transforms and forward-mode AD,
        ATen's operators run instead.

    Raises:
        IndexError: a dim is out of range.
        RuntimeError: the variant's name is unknown, or it cannot run on this input; the GPU's architecture was not
            built.

    Example:
        >>> import torch, cudamem_ops
        >>> cudamem_ops.transpose(torch.tensor([[1, 2, 3], [4, 5, 6]]))
        tensor([[1, 4],
                [2, 5],
                [3, 6]])

    Source: M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA Developer Blog, 2013.
    """
    if variant is not None:
        return torch.ops.cudamem.transpose.variant(input, dim0, dim1, variant=variant)
    if only_dispatched(input):
        return _C.transpose(input, dim0, dim1)
    return torch.ops.cudamem.transpose.default(input, dim0, dim1)


def transpose_(input: Tensor, dim0: int = -2, dim1: int = -1) -> Tensor:
    """Transposes square matrices in place: the elements change places in memory, sizes and strides stay.

    ``input[..., i, ..., j, ...] = input[..., j, ..., i, ...]``, as ``input.copy_(input.transpose(dim0, dim1).clone())``
    without the clone. (``torch.Tensor.transpose_`` moves nothing: it swaps strides.)

    Args:
        input: any strides and dtype, on a CPU or CUDA device; ``dim0`` and ``dim1`` of one size. No two elements may
            share memory.
        dim0: a dim of ``input``, negative from the end.
        dim1: the dim to swap it with.

    Returns:
        ``input``. Differentiable, like torch's in-place operators not for a leaf that requires grad.

    Raises:
        IndexError: a dim is out of range.
        RuntimeError: the two sizes differ; elements share memory; a leaf that requires grad; the GPU's architecture
            was not built.

    Example:
        >>> import torch, cudamem_ops
        >>> cudamem_ops.transpose_(torch.tensor([[1, 2], [3, 4]]))
        tensor([[1, 3],
                [2, 4]])
    """
    torch.ops.cudamem.transpose_.default(input, dim0, dim1)
    return input
