"""What the tests share: data of every dtype and layout, exact comparison, and error bounds."""

import doctest
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

import cudamem_ops

OPS = torch.ops.cudamem

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
WIDE_UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]


# Variants that take few kinds of inputs; those have tests of their own.
PARTIAL = {"transpose": ("swizzled", "aligned"), "conv1d": ("parameter", "registers")}


def total_variants(op: str) -> list[str]:
    """The variants that take every input of a test, or are skipped there by ``is_refused``."""
    return [name for name in cudamem_ops.variants()[op] if name not in PARTIAL.get(op, ())]


def each_variant(op: str, *, without: tuple[str, ...] = (), cpu: bool = True) -> pytest.MarkDecorator:
    """Parametrises a test over (device, variant): None, the operator's own choice, and on CUDA each that takes every
    input.

    On the CPU a name changes nothing: each room has a test of that.
    """
    names = [None, *(name for name in total_variants(op) if name not in without)]
    places = [("cpu", None)] * cpu + [("cuda", name) for name in names]
    return pytest.mark.parametrize(("device", "variant"), places, indirect=["device"])


def unavailable_cuda() -> str | None:
    """Why nothing can run on CUDA here, or None."""
    if not torch.cuda.is_available():
        return "needs a GPU"
    if cudamem_ops.build_info()["cuda"] is None:
        return "this build of cudamem_ops has no CUDA kernels"
    return None


def random_values(shape: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """Integers over the dtype's whole range, normally distributed floats."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype, device=device)
    return random_bits(shape, dtype, device)


def random_bits(shape: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """Every bit pattern that the dtype has, NaNs with any payload included."""
    high = 2 if dtype == torch.bool else 256
    count = math.prod(shape)
    raw = torch.randint(0, high, (count * dtype.itemsize,), dtype=torch.uint8, device=device)
    return raw.view(dtype).view(shape)


def started_on_gpu(call: Callable[[], object]) -> list[str]:
    """The names of the kernels, copies and memsets that a call starts."""
    call()
    torch.cuda.synchronize()
    for _ in range(5):  # the profiler may lose the first events of a session
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        if names:
            break
    return names


def capture(function: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, object]:
    """A CUDA graph of a call, and the result that its replays write."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's elements, in the order of its indices."""
    # One element is contiguous at any stride, and view needs a last dim of stride 1.
    return tensor.resolve_conj().resolve_neg().contiguous().unsqueeze(-1).view(torch.uint8)


def assert_same_bits(got: Tensor, want: Tensor) -> None:
    """Like torch.equal, but NaNs are equal to themselves alone, 0 is not -0, and shape and dtype count."""
    assert (got.shape, got.dtype, got.device) == (want.shape, want.dtype, want.device)
    assert torch.equal(bits(got), bits(want))


def assert_fresh(out: Tensor, *inputs: Tensor) -> None:
    """The result is contiguous and all of its own memory."""
    assert out.is_contiguous()
    assert out._base is None
    assert out.storage_offset() == 0
    assert not out.is_conj()
    assert not out.is_neg()
    for x in inputs:
        assert out.numel() == 0 or out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def assert_within(got: Tensor, want: Tensor, bound: Tensor) -> None:
    """|got - want| <= bound, element by element, in float64 or complex128 on the CPU."""
    assert got.shape == want.shape
    wide = torch.complex128 if want.is_complex() else torch.float64
    error = (got.detach().cpu().to(wide) - want).abs()
    excess = error - bound
    worst = excess.max().item() if excess.numel() else 0.0
    assert worst <= 0, f"the error exceeds its bound by {worst}; the largest error is {error.max().item()}"


def assert_same_error(ours: Callable[[], object], twin: Callable[[], object], match: str) -> None:
    """torch's twin refuses the call, and ours raises the same class, with a message of its own."""
    with pytest.raises(Exception) as expected:  # noqa: PT011
        twin()
    with pytest.raises(type(expected.value), match=match) as got:
        ours()
    assert type(got.value) is type(expected.value)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Whatever torch allocates, inside the operators too, is full of NaN or the largest integer until it is written."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = before[2]


# Views of a tensor with at least 5 x 7 x 6 elements.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda a: a,
    "offset": lambda a: a[1:],
    "last dim sliced": lambda a: a[:, :, 1],
    "steps": lambda a: a[::2, 1::3],
    "permuted": lambda a: a.permute(2, 0, 1),
    "narrowed": lambda a: a[1:4, :, 2:5],
    "expanded": lambda a: a[:, :1].expand(-1, 9, -1),
    "one value": lambda a: a[:1, :1, :1].expand(4, 3, 2),
    "windows": lambda a: a.unfold(1, 3, 1),
    "overlapping": lambda a: a.as_strided((4, 5), (7, 2), 3),
    "odd strides of size-1 dims": lambda a: a.as_strided((4, 1, 8, 1), (50, 1, 3, 999)),
    "broadcast rows": lambda a: a[0, 0].expand(5, -1),
}

# A layout for the gradient that arrives from above, given one of the right values.
GRAD_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda g: g.clone(),
    "zero strides": lambda g: g.flatten()[0].expand(g.shape),
    "reversed strides": lambda g: g.permute(*reversed(range(g.dim()))).contiguous().permute(*reversed(range(g.dim()))),
    "misaligned": lambda g: torch.cat([g.new_zeros(1), g.flatten()])[1:].view(g.shape),
    "every other element": lambda g: torch.stack([g, g], -1).select(-1, 1),
}


def epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """float16 and bfloat16 are added up in float32, everything else in itself."""
    return torch.float32 if dtype in HALVES else dtype


def numpy_sum(x: Tensor, dims: Sequence[int] | None, keepdim: bool) -> Tensor:
    """The sum in float64, complex128 or (wrapping) int64, by numpy."""
    if x.dtype.is_complex:
        x = x.to(torch.complex128)
    elif x.dtype.is_floating_point:
        x = x.double()
    else:
        x = x.to(torch.int64)
    array = x.detach().cpu().resolve_conj().resolve_neg().numpy()
    axes = tuple(dims) if dims and array.ndim else None  # numpy's 0-dim arrays have no axis 0
    return torch.as_tensor(np.asarray(array.sum(axis=axes, keepdims=keepdim)))


def sum_bound(x: Tensor, dims: Sequence[int] | None, keepdim: bool, out: torch.dtype, *, chain: int = 256) -> Tensor:
    """How far a sum may be off: ``(chain + log2 n) * eps * sum|x|``, and one rounding to the result's dtype.

    ``chain`` is how many additions a partial sum goes through one after the other, and eps the accumulator's. A complex
    sum is two real ones.
    """
    magnitudes = torch.view_as_real(x.to(torch.complex128).resolve_conj()).abs().sum(-1) if x.is_complex() else x.abs()
    total = numpy_sum(x, dims, keepdim).abs()
    of_parts = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
    real = of_parts.get(out, out)
    adding = (chain + math.log2(max(x.numel(), 2))) * epsilon(accumulator(real)) * numpy_sum(magnitudes, dims, keepdim)
    return adding + epsilon(real) * total + torch.finfo(real).tiny


def assert_examples_hold(documented: object, name: str) -> None:
    """The examples in a docstring, of which there is one at least, print what it says."""
    examples = doctest.DocTestFinder().find(documented, name, globs={})
    assert any(test.examples for test in examples)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert sum(runner.run(test).failed for test in examples) == 0
