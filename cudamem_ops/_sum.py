"""The sum operator, with its documentation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cudamem_ops._call import as_list, only_dispatched
from cudamem_ops._load import _C

PYTHON_TYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def sum(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | type[complex] | None = None,
    variant: str | None = None,
) -> Tensor:
    """Adds up all elements, or those along some dims.

    ``out[...] = sum over the reduced dims of input[...]``, as ``torch.sum``; always fresh memory.

    Args:
        input: any shape and strides, of an integer, bool, floating or complex dtype, on a CPU or CUDA device, with up
            to 64 dims. The sum of no elements is 0.
        dim: a dim or several, negative from the end, none twice; None and an empty list mean all.
        keepdim: keep each reduced dim, with size 1.
        dtype: the result's dtype, or bool, int, float or complex; each element is cast to it before it is added.
        variant: on CUDA, the technique by name: "atomic" (one atomicAdd an element), "shared" (a tree in shared
            memory, one atomicAdd a block), "shuffle" (a tree in registers, by warp shuffles, in several launches),
            "two_launches" and "one_launch" (16-byte loads; blocks' sums are added by a second launch, or by the last
            block), "compensated" (keeps what additions round away: within 2 ulp of the exact sum). By default
            "one_launch". On the CPU the name is checked and ATen runs.

    Returns:
        A contiguous tensor. Its dtype is ``dtype``, or int64 for integers and bool, or ``input``'s. float16, bfloat16
        and float32 accumulate in float32 or wider and are rounded once at the end; float64 in float64; integers in
        int64, which wraps; complex numbers part by part. The error is at most about ``(256 + n / 2**18 + log2(n)) * eps
        * sum(abs(input))`` (the first factor is up to ``n`` with "atomic", ``32 + n / 4096`` with "shared"), and far
        smaller in float32, whose sums keep what additions round away. The same input gives the same bits on every run
        on the same model of GPU, but for "atomic" and "shared", whose order varies; beyond 64 streams, or some hundred
        long sums in captured graphs, "one_launch" takes two, and a last bit may differ. Differentiable any number of
        times; the gradient is an expanded view, or a copy where ``dtype`` is not that of ``input``. Under
        ``torch.func`` transforms and forward-mode AD, ATen's operator runs instead. Under CUDA autocast half types are
        summed into float32, as by ``torch.sum``.

    Raises:
        IndexError: a dim is out of range.
        RuntimeError: a dim is named twice; there are more than 64 dims; the variant's name is unknown, or it cannot run
            here (more than 8 dims that do not join); the GPU's architecture was not built.
        NotImplementedError: the dtype has no sum (float8 without ``dtype``).

    Example:
        >>> import torch, cudamem_ops
        >>> cudamem_ops.sum(torch.tensor([[1, 2, 3], [4, 5, 6]]), dim=1)
        tensor([ 6, 15])

    Source: M. Harris, "Optimizing Parallel Reduction in CUDA", NVIDIA, 2007; A. Neumaier, "Rundungsfehleranalyse
    einiger Verfahren zur Summation endlicher Summen", ZAMM 54, 1974.
    """
    dim = None if dim is None else as_list(dim)
    if isinstance(dtype, type):
        dtype = PYTHON_TYPES.get(dtype, dtype)
    if variant is not None:
        return torch.ops.cudamem.sum.variant(input, dim, keepdim, dtype=dtype, variant=variant)
    if only_dispatched(input):
        return _C.sum(input, dim, keepdim, dtype)
    return torch.ops.cudamem.sum.default(input, dim, keepdim, dtype=dtype)
