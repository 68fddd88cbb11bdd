"""What the documented functions share on their way to the operators: see docs/decisions/0008."""

from collections.abc import Sequence

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function


def only_dispatched(*tensors: Tensor | None) -> bool:
    """True unless torch.compile is tracing, or a tensor or mode has ``__torch_function__``: those must see an operator
    of ``torch.ops``."""
    return not (is_dynamo_compiling() or has_torch_function(tensors))


def as_list(value: int | Sequence[int]) -> Sequence[int]:
    """One number, as what takes several of them: a list. Sequences stay as they are."""
    # The common types first: whether something is a Sequence takes longer to tell.
    return [value] if isinstance(value, int) or not isinstance(value, (list, tuple, Sequence)) else value
