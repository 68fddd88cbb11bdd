"""The transpose operator, with its documentation."""

import torch
from torch import Tensor


def transpose(input: Tensor, dim0: int = -2, dim1: int = -1, *, variant: str | None = None) -> Tensor:
    """Swaps two dims and lays the result out in fresh contiguous memory.

    ``out[..., j, ..., i, ...] = input[..., i, ..., j, ...]``: ``input.transpose(dim0, dim1).contiguous()``, but never
    a view and never the input itself, also where nothing moves.

    Args:
        input: any shape, strides and dtype (bool, complex and float8 too), on a CPU or CUDA device. Conjugate and
            negative views are resolved.
        dim0: a dim of ``input``, negative from the end. A 0-dim tensor takes 0 and -1.
        dim1: the dim to swap it with.
        variant: on CUDA, the kernel by name: "naive" (scattered writes), "shared" (32 x 32 tile in shared memory,
            32-way bank conflicts) or "padded" (32 x 33 tile, none). Each takes every input. By default "padded",
            and a plain copy where the fast dim stays the fast dim. On the CPU the name is checked and ATen runs.

    Returns:
        The swapped shape, contiguous, of ``input``'s dtype and device. Every bit is moved as it is; the result is the
        same on each run. Differentiable any number of times. Under ``torch.func`` transforms and forward-mode AD,
        ATen's operators run instead.

    Raises:
        IndexError: a dim is out of range.
        RuntimeError: the variant's name is unknown; the GPU's architecture was not built.

    Example:
        >>> import torch, cudamem_ops
        >>> cudamem_ops.transpose(torch.tensor([[1, 2, 3], [4, 5, 6]]))
        tensor([[1, 4],
                [2, 5],
                [3, 6]])

    Source: M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA Developer Blog, 2013.
    """
    if variant is None:
        return torch.ops.cudamem.transpose.default(input, dim0, dim1)
    return torch.ops.cudamem.transpose.variant(input, dim0, dim1, variant=variant)
