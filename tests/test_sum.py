"""sum: torch.sum, with a stated error bound and the same bits on every run."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from helpers import (
    COMPLEX,
    FLOATS,
    GRAD_LAYOUTS,
    HALVES,
    INTEGERS,
    LAYOUTS,
    OPS,
    WIDE_UNSIGNED,
    assert_fresh,
    assert_same_bits,
    assert_same_error,
    assert_within,
    each_variant,
    numpy_sum,
    poisoned_memory,
    random_values,
    started_on_gpu,
    sum_bound,
)

import cudamem_ops

ALL_TYPES = [torch.bool, *INTEGERS, *WIDE_UNSIGNED, *FLOATS, *COMPLEX]
INEXACT = [*FLOATS, *COMPLEX]
# Where a kernel starts a further block, level or pass; and primes.
LENGTHS = [1, 2, 31, 32, 33, 127, 255, 256, 257, 1025, 4095, 4096, 4097, 8193, 65_535, 65_536, 65_537, 100_003, 131_073]

every_variant = each_variant("sum")
every_kernel = each_variant("sum", cpu=False)


def chain_of(count, variant):
    """How many additions one partial sum of `count` elements goes through one after the other."""
    return {"atomic": count, "shared": 32 + count // 4096}.get(variant, 256 + count // 2**18)


def check(x, dim=None, keepdim=False, variant=None):
    """The sum in the default dtype: exact for integers, within the bound for the others."""
    with poisoned_memory():
        got = cudamem_ops.sum(x, dim, keepdim, variant=variant)
    assert_fresh(got, x)
    assert got.device == x.device
    dims = [dim] if isinstance(dim, int) else dim
    want = numpy_sum(x, dims, keepdim)
    if x.dtype in INEXACT:
        assert got.dtype == x.dtype
        chain = chain_of(x.numel() // got.numel(), variant)
        assert_within(got, want, sum_bound(x, dims, keepdim, x.dtype, chain=chain))
    else:
        assert_same_bits(got.cpu(), want)


@every_variant
@pytest.mark.parametrize("dtype", ALL_TYPES, ids=str)
def test_every_length(device, variant, dtype):
    for length in LENGTHS:
        check(random_values((length,), dtype, device), variant=variant)


@every_variant
@pytest.mark.parametrize("dtype", [torch.int16, torch.float16, torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 10_007), (10_007, 1), (3, 70_001), (40, 9001), (9001, 37), (4097, 33), (33, 4097)], ids=str
)
def test_rows_and_columns(device, variant, dtype, shape):
    x = random_values(shape, dtype, device)
    for dim in (0, 1, None):
        check(x, dim, variant=variant)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int16, *FLOATS, torch.int64], ids=str)
@pytest.mark.parametrize("outputs", [1, 3, 33, 130, 2049])
def test_short_sums_of_any_strides(device, dtype, outputs):
    for length in (1, 2, 3, 4, 5, 31, 33, 127, 129, 257, 513):
        x = random_values((outputs, 2 * length), dtype, device)
        check(x[:, ::2], 1)
        check(x[:, 1 : 1 + length], 1)
        check(x.view(2 * length, outputs)[::2], 0)
        check(x.view(outputs, length, 2)[..., 0].t(), 0)
        check(x.view(2, length, outputs), (0, 1))
        check(x.view(2, length, outputs)[:, : (length + 1) // 2], (0, 1))


@every_variant
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32], ids=str)
def test_every_set_of_dims(device, variant, dtype):
    x = random_values((2, 3, 4, 5, 6), dtype, device)
    for count in range(x.dim() + 1):
        for dims in itertools.combinations(range(x.dim()), count):
            # In any order, counted from either end.
            mixed = [d - x.dim() if d % 2 else d for d in reversed(dims)]
            check(x, mixed, keepdim=False, variant=variant)
            check(x, mixed, keepdim=True, variant=variant)


@every_variant
def test_no_dims_means_all(device, variant):
    x = random_values((3, 4, 5), torch.int32, device)
    for keepdim in (False, True):
        for dim in (None, [], ()):
            got = cudamem_ops.sum(x, dim, keepdim, variant=variant)
            assert_same_bits(got, x.sum().reshape([1, 1, 1] if keepdim else []))


@every_variant
def test_every_way_to_write_a_call(device, variant):
    x = random_values((3, 4, 5), torch.int32, device)
    named = {} if variant is None else {"variant": variant}
    want = x.sum(1)
    for dim in (1, -2, [1], (-2,)):
        assert_same_bits(cudamem_ops.sum(x, dim, variant=variant), want)
        assert_same_bits(OPS.sum(x, dim, **named), want)
    assert_same_bits(OPS.sum(x, **named), x.sum())
    assert_same_bits(
        OPS.sum(x, dim=[0, 2], keepdim=True, dtype=torch.int8, **named), x.sum((0, 2), True).to(torch.int8)
    )
    for dtype in (bool, int, float, complex):
        assert_same_bits(cudamem_ops.sum(x, dtype=dtype, variant=variant), torch.sum(x, dtype=dtype))


@every_variant
@pytest.mark.parametrize("shape", [(2, 3, 2, 3, 2, 3, 2, 2), (1,) * 24 + (3,), (1,) * 30 + (3,) + (1,) * 33], ids=len)
def test_many_dims(device, variant, shape):
    x = torch.randint(-5, 6, shape, device=device).double()  # exact in any order
    dims = [[d] for d in range(-x.dim(), x.dim(), 1 if x.dim() < 10 else 7)]
    for dim in (*dims, [len(shape) - 1, 0, 3, -3], list(range(0, len(shape), 2))):
        for keepdim in (False, True):
            got = cudamem_ops.sum(x, dim, keepdim, variant=variant)
            assert_same_bits(got.cpu(), x.cpu().sum(dim, keepdim))


@each_variant("sum", without=("atomic", "shared"))
@pytest.mark.parametrize("dtype", [torch.int8, torch.float32], ids=str)
def test_three_passes(device, variant, dtype):
    check(random_values((4096 * 4096 + 1,), dtype, device), variant=variant)


@every_variant
def test_a_0_dim_tensor(device, variant):
    for dtype in ALL_TYPES:
        for dim in (None, [], [0], [-1]):
            check(random_values((), dtype, device), dim, variant=variant)


@every_variant
@pytest.mark.parametrize("dtype", ALL_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4), (0, 0)], ids=str)
def test_the_sum_of_nothing_is_zero(device, variant, dtype, shape):
    x = random_values(shape, dtype, device)
    for dim in (None, *range(x.dim())):
        with poisoned_memory():
            got = cudamem_ops.sum(x, dim, variant=variant)
        assert_same_bits(got, x.sum(dim=dim))


@every_variant
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(device, variant, dtype, layout):
    for shape in ((5, 7, 6), (34, 9, 66)):
        x = LAYOUTS[layout](random_values(shape, dtype, device))
        for dim in (None, *range(x.dim()), [0, -1]):
            check(x, dim, variant=variant)


@every_variant
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, *FLOATS, *COMPLEX], ids=str)
def test_every_alignment(device, variant, dtype):
    buffer = random_values((50_008,), dtype, device)
    for offset in range(8):
        x = buffer[offset : offset + 64 * 64].view(64, 64)
        for dim in (None, 0, 1):
            check(x, dim, variant=variant)
        for length in (17, 900, 50_000):
            check(buffer[offset : offset + length], None, variant=variant)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [2, 3, 5, 7, 33])
def test_narrow_columns_and_short_rows_that_end_with_their_memory(device, variant, dtype, width):
    for rows in (29, 44, 81, 1025):
        for offset in range(8):
            x = random_values((rows * width + offset,), dtype, device)[offset:]
            check(x.view(rows, width), 0, variant=variant)
            check(x.view(rows, width), 1, variant=variant)
            check(x.view(width, rows), 0, variant=variant)


@every_variant
def test_conjugate_and_negative_views_are_resolved(device, variant):
    z = random_values((33, 32), torch.complex64, device)
    conjugate, negative = z.conj(), z.conj().imag
    assert conjugate.is_conj()
    assert negative.is_neg()
    for view in (conjugate, negative):
        for dim in (None, 0, 1):
            check(view, dim, variant=variant)


@every_variant
def test_the_result_is_never_the_input(device, variant):
    for shape, dim, dtype in (((1, 4), 0, None), ((), None, None), ((1, 3, 4), [0], torch.float32)):
        x = random_values(shape, torch.float32, device)
        before = x.clone()
        out = cudamem_ops.sum(x, dim, dtype=dtype, variant=variant)
        assert_fresh(out, x)
        out.add_(1)
        assert_same_bits(x, before)


@every_variant
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS], ids=str)
def test_integers_add_up_in_int64(device, variant, dtype):
    largest = 1 if dtype == torch.bool else 2**40 if dtype == torch.int64 else torch.iinfo(dtype).max
    x = torch.full((40, 5000), largest, device=device).to(dtype)
    for dim, count in ((None, 200_000), (0, 40), (1, 5000)):
        got = cudamem_ops.sum(x, dim, variant=variant)
        assert got.dtype == torch.int64
        assert (got == count * largest).all()


@every_variant
def test_int64_wraps(device, variant):
    x = torch.full((2,), 2**62, device=device)
    assert cudamem_ops.sum(x, variant=variant).item() == -(2**63)


@every_variant
def test_half_types_are_rounded_once_at_the_end(device, variant):
    x = torch.tensor([32_000.0] * 4 + [-32_000.0] * 4, dtype=torch.float16, device=device).repeat(1000)
    rows = x.view(1000, 8)
    for data, dim in ((x, None), (x, 0), (rows, 1), (rows.t().contiguous(), 0), (rows.t(), 0)):
        assert (cudamem_ops.sum(data, dim, variant=variant) == 0).all()
    ones = torch.ones(1 << 20, dtype=torch.bfloat16, device=device)
    assert cudamem_ops.sum(ones, variant=variant).item() == 1 << 20


@every_variant
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("length", [7, 300, 5000, 70_000])
def test_nan_and_infinity(device, variant, dtype, length):
    inf, nan = float("inf"), float("nan")
    for placed, want in (
        ((inf, 1.0), inf),
        ((-inf, 1.0), -inf),
        ((inf, -inf), nan),
        ((nan, 1.0), nan),
        ((nan, inf), nan),
    ):
        x = torch.zeros(length, dtype=dtype, device=device)
        x[torch.randperm(length, device=device)[:2]] = torch.tensor(placed, dtype=dtype, device=device)
        got = cudamem_ops.sum(x, variant=variant)
        torch.testing.assert_close(got.cpu(), torch.tensor(want, dtype=dtype), equal_nan=True)
    x = torch.zeros(length, dtype=dtype, device=device)
    x.view(torch.uint8)[:] = 255  # NaNs of all ones
    assert cudamem_ops.sum(x, variant=variant).isnan()


@every_variant
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("length", [2, 300, 5000])
def test_the_largest_number_beside_one_of_the_other_sign(device, variant, dtype, length):
    largest = torch.finfo(dtype).max
    others = -largest * (0.4 + 0.2 * torch.rand(100, device=device, dtype=torch.float64)).to(dtype)
    rows = torch.zeros(100, length, dtype=dtype, device=device)
    rows[:, 0], rows[:, 1] = others, largest
    want = others + largest
    for got in (
        cudamem_ops.sum(rows, 1, variant=variant),
        cudamem_ops.sum(rows.t().contiguous(), 0, variant=variant),
        torch.stack([cudamem_ops.sum(row, variant=variant) for row in rows]),
    ):
        assert_same_bits(got, want)


@every_variant
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(1, 70_000), (2, 70_000), (2, 3, 65_536), (2, 70_001)], ids=str)
def test_one_and_two_rows_are_rounded_once(device, variant, dtype, shape):
    x = random_values(shape, dtype, device)
    wide = x if not dtype.is_floating_point else x.double()
    want = wide.sum(0) if not dtype.is_floating_point else wide.sum(0).to(dtype)
    assert_same_bits(cudamem_ops.sum(x, 0, variant=variant), want)


def values_that_every_dtype_holds(shape, dtype, device):
    x = torch.randint(0, 200, shape, device=device) / 2  # halves are lost in the cast to an integer
    return x.to(dtype) if not dtype.is_complex else torch.complex(x, x.flip(0)).to(dtype)


@every_variant
@pytest.mark.parametrize("out", ALL_TYPES, ids=str)
@pytest.mark.parametrize("dtype", ALL_TYPES, ids=str)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_dtype_casts_each_element_before_it_is_added(device, variant, dtype, out):
    x = values_that_every_dtype_holds((70, 7), dtype, device)
    try:
        twin = torch.sum(x, 0, dtype=out)
    except NotImplementedError:
        pytest.skip(f"torch.sum on {device} takes no dtype={out}")
    cast = x.to(out)
    for dim in (0, 1, None):
        with poisoned_memory():
            got = cudamem_ops.sum(x, dim, dtype=out, variant=variant)
        assert_fresh(got, x)
        assert got.dtype == out == twin.dtype
        dims = None if dim is None else [dim]
        if out in INEXACT:
            chain = chain_of(x.numel() // got.numel(), variant)
            assert_within(got, numpy_sum(cast, dims, False), sum_bound(cast, dims, False, out, chain=chain))
        elif out == torch.bool:
            assert_same_bits(got, cast.any() if dim is None else cast.any(dim))
        else:
            assert_same_bits(got.cpu(), numpy_sum(cast, dims, False).to(out))


@every_variant
def test_where_the_order_of_cast_and_sum_matters(device, variant):
    def total(values, dtype, out):
        return cudamem_ops.sum(torch.tensor(values, device=device, dtype=dtype), dtype=out, variant=variant).item()

    assert total([0.6, 0.6], torch.float32, torch.int64) == 0
    assert total([0.5, -0.5], torch.float32, torch.bool) is True
    assert total([256, -256], torch.int32, torch.bool) is True
    assert total([2**24 + 1, 1], torch.int64, torch.float32) == 2**24  # 16,777,217 is no float32
    assert total([2049.0, 2049.0, 1.0], torch.float32, torch.float16) == 4096.0  # nor is 2,049 a float16
    assert total([2.0] * 70_000, torch.float16, torch.float32) == 140_000.0
    assert total([300, 300], torch.int64, torch.uint8) == 600 % 256


@every_kernel
def test_complex_half(device, variant):
    x = random_values((70, 300), torch.complex32, device)
    for dim in (0, 1):
        got = cudamem_ops.sum(x, dim, variant=variant)
        assert got.dtype == torch.complex32
        chain = chain_of(x.size(dim), variant)
        assert_within(got, numpy_sum(x, [dim], False), sum_bound(x, [dim], False, torch.complex32, chain=chain))


@every_variant
@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.bits8], ids=str)
def test_a_dtype_without_a_sum(device, variant, dtype):
    x = torch.zeros(3, dtype=torch.uint8, device=device).view(dtype)
    assert_same_error(lambda: cudamem_ops.sum(x, variant=variant), lambda: torch.sum(x), "not implemented for")


@every_variant
@pytest.mark.parametrize(
    ("shape", "dim", "message"),
    [
        ((2, 3), [2], r"range of \[-2, 1\], but got 2"),
        ((2, 3), [0, -3], r"range of \[-2, 1\], but got -3"),
        ((), [1], r"range of \[-1, 0\], but got 1"),
        ((2, 3), [1, 1], "dim 1 appears multiple times"),
        ((2, 3), [1, -1], "dim 1 appears multiple times"),
        ((), [0, -1], "dim 0 appears multiple times"),
        ((2, 3), [-2, -2, -5], "Dimension out of range"),
        ((1,) * 65, [3], "up to 64 dims"),
    ],
    ids=str,
)
def test_bad_dims(device, variant, shape, dim, message):
    x = torch.ones(shape, device=device)
    assert_same_error(lambda: cudamem_ops.sum(x, dim, variant=variant), lambda: torch.sum(x, dim), message)


def test_variants_on_the_cpu():
    x = random_values((33, 41), torch.float32, "cpu")
    for variant in cudamem_ops.variants()["sum"]:
        assert_same_bits(cudamem_ops.sum(x, 1, variant=variant), torch.sum(x, 1))


def test_an_unknown_variant_is_refused_with_those_there_are(device):
    with pytest.raises(
        RuntimeError,
        match=r"unknown variant 'warp'; there are 'atomic', 'shared', 'shuffle', 'two_launches', 'one_launch', "
        r"'compensated'",
    ):
        OPS.sum(torch.ones(3, device=device), variant="warp")


@each_variant("sum", without=("atomic", "shared"))
@pytest.mark.parametrize("dtype", INEXACT, ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((4096, 33), [0]), ((257, 1025), [1]), ((64, 65, 66), [0, 2]), ((1 << 20,), None), ((40, 9000), [0])],
    ids=str,
)
def test_the_same_bits_on_every_run(device, variant, dtype, shape, dim):
    x = random_values(shape, dtype, device)
    first = cudamem_ops.sum(x, dim, variant=variant)
    for _ in range(30 if device == "cuda" else 3):
        assert_same_bits(cudamem_ops.sum(x, dim, variant=variant), first)


@each_variant("sum", without=("atomic", "shared"), cpu=False)
def test_the_same_bits_on_streams_that_run_at_once(device, variant):
    x = random_values((512, 4099), torch.float32, device)
    wants = {dim: cudamem_ops.sum(x, dim, variant=variant) for dim in (None, 0, 1)}
    torch.cuda.synchronize()
    results = []
    for stream in [torch.cuda.Stream() for _ in range(8)]:
        with torch.cuda.stream(stream):
            results += [(dim, cudamem_ops.sum(x, dim, variant=variant)) for dim in (None, 0, 1) for _ in range(10)]
    torch.cuda.synchronize()
    for dim, got in results:
        assert_same_bits(got, wants[dim])


def random_problem(seed, device):
    """A tensor of random dtype, rank, sizes and layout, and dims to sum."""
    rng = random.Random(seed)
    rank, left = rng.randint(1, 5), int(2 ** rng.uniform(0, 21))
    shape = []
    for _ in range(rank):
        shape.append(min(int(2 ** rng.uniform(0, math.log2(left) + 0.01)), left))
        left //= shape[-1]
    rng.shuffle(shape)
    if rng.random() < 0.3:
        shape[-1] = rng.choice([2, 4, 8, 16, 32, 64, 128])
    dtype = rng.choice([torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, *FLOATS])
    layout = rng.choice(["whole", "whole", "offset", "narrowed", "permuted", "stepped", "expanded"])
    x = random_values([n + (layout == "narrowed") * rng.choice([0, 1, 3]) for n in shape], dtype, device)
    if layout == "offset":
        x = random_values((x.numel() + 3,), dtype, device)[rng.randint(1, 3) :][: x.numel()].view(shape)
    elif layout == "narrowed":
        x = x[tuple(slice(n) for n in shape)]
    elif layout == "permuted":
        x = x.permute(rng.sample(range(rank), rank))
    elif layout == "stepped":
        x = x[tuple(slice(None, None, rng.choice([1, 1, 2, 3])) for _ in shape)]
    elif layout == "expanded":
        d = rng.randrange(rank)
        x = x.narrow(d, 0, 1).expand([rng.randint(1, 40) if e == d else n for e, n in enumerate(x.shape)])
    return x, rng.sample(range(rank), rng.randint(1, rank))


@every_variant
@pytest.mark.parametrize("draw", range(60))
def test_random_problems(device, variant, draw):
    x, dims = random_problem(draw, device)
    check(x, dims, variant=variant)


@each_variant("sum", without=("atomic", "shared", "shuffle"), cpu=False)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_an_error_no_larger_than_that_of_torch(device, variant, dtype):
    generator = torch.Generator(device).manual_seed(17)
    ours, theirs = [], []
    for index in range(20):
        shape, dims = (((1 << 22) + 77,), [0]) if index % 2 else ((2999, 1024), [index // 2 % 2])
        x = torch.randn(shape, device=device, generator=generator)
        if index % 4 == 1:
            x = torch.rand(shape, device=device, generator=generator)
        elif index % 4 == 2:  # what alternates almost cancels
            x.abs_().view(-1)[::2].neg_()
        elif index % 4 == 3:
            x.view(-1)[shape[0] // 3] = 3e4
        x = x.to(dtype)
        want = x.double().sum(dims)
        scale = x.double().abs().sum(dims)
        for errors, got in (
            (ours, cudamem_ops.sum(x, dims, variant=variant)),
            (theirs, torch.sum(x, dims)),
        ):
            errors.append(((got.double() - want) / scale).square().mean().sqrt().item())
    worse = [index for index in range(20) if ours[index] > 1.001 * theirs[index]]
    assert not worse, [(index, ours[index], theirs[index]) for index in worse]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"), [((1 << 20,), 0), ((257, 5000), 1), ((5000, 257), 0), ((999, 7, 33), 1)], ids=str
)
def test_compensated_is_within_2_ulp(cuda, dtype, shape, dim):
    # Sums of quarters are exact in float64 as in a wide integer; what alternates cancels to almost nothing.
    x = torch.randint(-(2**20), 2**20, shape, device=cuda).double() / (4 if dtype != torch.float16 else 2**7)
    x = (x - x.roll(1, dim)).to(torch.float16 if dtype == torch.float16 else torch.bfloat16).double()
    x = x.mul(4).round().div(4)
    x = (torch.complex(x, -2 * x) if dtype.is_complex else x).to(dtype)
    quarters = torch.view_as_real(x.to(torch.complex128)) if dtype.is_complex else x.double().unsqueeze(-1)
    want = (quarters * 4).to(torch.int64).sum(dim).double() / 4
    got = cudamem_ops.sum(x, dim, variant="compensated")
    got = torch.view_as_real(got) if dtype.is_complex else got.unsqueeze(-1)
    rounded = want.to(got.dtype).double()
    ulp = torch.finfo(got.dtype).eps * 2.0 ** torch.floor(torch.log2(rounded.abs().clamp_min(2.0**-20)))
    assert ((got.double() - want).abs() <= 2 * ulp).all()


@pytest.mark.without_sanitizer
@each_variant("sum", without=("atomic", "shared"), cpu=False)
def test_many_streams_graphs_and_eager_calls_at_once(device, variant):
    shapes = [((1 << 20) + 5, [0]), (5000, 64, [0]), (3, 300_001, [1]), (64, 1000, 40, [0, 1]), (1 << 18, 2, [0])]
    xs = [(torch.randint(-9, 10, shape[:-1], device=device).float(), shape[-1]) for shape in shapes]
    xs = [(x * 2**k, dims) for x, dims in xs for k in range(4)]  # exact in any order
    wants = [x.double().sum(dims).float() for x, dims in xs]
    graphs = []
    for k in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = [cudamem_ops.sum(x, dims, variant=variant) for x, dims in xs[k::2] for _ in range(3)]
        graphs.append((graph, outs, wants[k::2]))
    streams = [torch.cuda.Stream() for _ in range(8)]
    results = []
    torch.cuda.synchronize()
    for turn in range(30):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                if k < 2:
                    graphs[k][0].replay()
                else:
                    index = (turn + k) % len(xs)
                    results.append((cudamem_ops.sum(*xs[index], variant=variant), wants[index]))
    torch.cuda.synchronize()
    for _, outs, wanted in graphs:
        results += [
            (out, want)
            for want, three in zip(wanted, zip(*[iter(outs)] * 3, strict=True), strict=True)
            for out in three
        ]
    for got, want in results:
        assert_same_bits(got, want)


@pytest.mark.without_sanitizer
def test_more_streams_and_captured_calls_than_have_room_for_partials(cuda):
    x = torch.ones(1 << 20, device=cuda)
    torch.cuda.synchronize()
    sums = []
    for k in range(100):
        with torch.cuda.stream(torch.cuda.Stream(priority=-(k % 4))):
            sums.append(cudamem_ops.sum(x))
    torch.cuda.synchronize()
    assert (torch.stack(sums) == x.numel()).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [cudamem_ops.sum(x) for _ in range(6000)]
    for _ in range(2):
        x.mul_(2)
        graph.replay()
        assert (torch.stack(captured) == x.double().sum()).all()


@pytest.mark.without_sanitizer
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((1 << 22,), 0), ((300, 4096), 1), ((4096, 300), 0), ((9, 1 << 18), 1), ((40, 50, 60), (0, 2))],
    ids=str,
)
@pytest.mark.parametrize("out", [None, torch.int32, torch.float64], ids=str)
def test_one_launch_and_nothing_else(cuda, shape, dim, out):
    for dtype in (torch.int8, torch.float32):
        x = random_values(shape, dtype, cuda)
        if out is not None and dtype.is_floating_point and not out.is_floating_point:
            continue
        started = started_on_gpu(lambda x=x: cudamem_ops.sum(x, dim, dtype=out))
        assert len(started) == 1, started


@every_kernel
def test_no_copy_of_the_input(device, variant):
    x = torch.ones((1 << 26) + 5, dtype=torch.bool, device=device)
    for dtype in (None, torch.int32, torch.uint8):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        got = cudamem_ops.sum(x, dtype=dtype, variant=variant)
        assert torch.cuda.max_memory_allocated() - before < x.numel() / 8
        assert got.item() == (5 if dtype == torch.uint8 else x.numel())


@pytest.mark.large(gib=16)
@every_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_columns_beyond_2_to_the_31_bytes(device, variant, dtype):
    cols = 2**31 // dtype.itemsize // 64 + 1
    x = torch.zeros(64, cols, dtype=dtype, device=device)
    x[32] = 1
    x[40, -1] = 2
    got = cudamem_ops.sum(x, 0, variant=variant)
    assert got[-1] == 3
    assert (got[:-1] == 1).all()


@pytest.mark.large(gib=16)
@every_kernel
def test_more_than_2_to_the_31_elements(device, variant):
    x = torch.ones(2**31 + 4099, dtype=torch.bool, device=device)
    assert cudamem_ops.sum(x, variant=variant).item() == x.numel()
    rows = x[: 3 * (2**30 // 3 * 2)].view(3, -1)
    assert (cudamem_ops.sum(rows, 0, variant=variant) == 3).all()
    assert (cudamem_ops.sum(rows, 1, variant=variant) == rows.size(1)).all()


@every_variant
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [None, [], 0, -1, [0, -1], [1, 2, 0]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_derivatives(device, variant, dtype, dim, keepdim):
    x = random_values((2, 3, 4), dtype, device).requires_grad_()

    def cubed_then_summed(t):  # so that the second derivative is not zero
        return cudamem_ops.sum(t.pow(3), dim, keepdim, variant=variant)

    # In no fixed order two runs of "atomic" or "shared" differ in their last bits.
    assert torch.autograd.gradcheck(cubed_then_summed, (x,), nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(cubed_then_summed, (x,), nondet_tol=1e-12)


@pytest.mark.parametrize("out", [None, *INEXACT], ids=str)
@pytest.mark.parametrize("dtype", INEXACT, ids=str)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_gradients_equal_those_of_torch(device, dtype, out):
    x = random_values((3, 5, 4), dtype, device).requires_grad_()
    for dim, keepdim in itertools.product((None, [], 0, [-1, 0]), (False, True)):
        ours = cudamem_ops.sum(x, dim, keepdim, dtype=out)
        # torch.sum(x, dtype=complex) of a real x has no gradient; the cast by itself has.
        twin = torch.sum(x.to(out or dtype), dim, keepdim)
        grad = random_values(twin.shape, twin.dtype, device)
        (got,) = torch.autograd.grad(ours, x, grad)
        (want,) = torch.autograd.grad(twin, x, grad)
        assert_same_bits(got, want)


@pytest.mark.parametrize("out", [torch.int64, torch.bool], ids=str)
def test_an_integer_sum_of_floats_has_no_gradient(device, out):
    assert not cudamem_ops.sum(torch.ones(3, device=device, requires_grad=True), dtype=out).requires_grad


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_gradient_of_any_layout(device, dtype, layout):
    x = random_values((5, 33, 8), dtype, device).requires_grad_()
    grad = GRAD_LAYOUTS[layout](random_values((5, 8), dtype, device))
    (got,) = torch.autograd.grad(cudamem_ops.sum(x, 1), x, grad)
    assert_same_bits(got, grad.unsqueeze(1).expand(5, 33, 8).contiguous())


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0,), ()], ids=str)
def test_gradient_of_an_empty_or_0_dim_input(device, shape):
    x = random_values(shape, torch.float32, device).requires_grad_()
    cudamem_ops.sum(x, -1).sum().backward()
    assert_same_bits(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_64_dims(device, dtype):
    x = random_values((1,) * 61 + (2, 3, 4), dtype, device)
    torch.testing.assert_close(cudamem_ops.sum(x).cpu(), x.cpu().sum())
    torch.testing.assert_close(cudamem_ops.sum(x, [0, 62, -1], True).cpu(), x.cpu().sum([0, 62, -1], True))


def test_a_dim_may_be_any_integer(device):
    x = random_values((3, 4), torch.float32, device)
    for dim in (np.int64(1), torch.tensor(-1)):
        torch.testing.assert_close(cudamem_ops.sum(x, dim), x.sum(1))


def test_atomic_floats_are_refused_where_determinism_is_asked_for(cuda):
    x = torch.ones(10, device=cuda)
    torch.use_deterministic_algorithms(True)
    try:
        assert cudamem_ops.sum(x) == 10
        assert cudamem_ops.sum(x.int(), variant="atomic") == 10  # integers add up alike in any order
        for variant in ("atomic", "shared"):
            with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
                cudamem_ops.sum(x, variant=variant)
    finally:
        torch.use_deterministic_algorithms(False)
