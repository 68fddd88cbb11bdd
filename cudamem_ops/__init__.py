"""The GPU memory hierarchy's classic techniques as PyTorch operators.

Importing it registers ``torch.ops.cudamem.transpose``, ``.transpose_``, ``.sum`` and ``.conv1d``; the functions here
are the same operators with documentation, and ``nn`` has layers that use them. Importing never initialises CUDA.
"""

from cudamem_ops import nn
from cudamem_ops._conv1d import conv1d
from cudamem_ops._load import build_info, kernels, variants
from cudamem_ops._sum import sum
from cudamem_ops._transpose import transpose, transpose_

__all__ = ["build_info", "conv1d", "kernels", "nn", "sum", "transpose", "transpose_", "variants"]
