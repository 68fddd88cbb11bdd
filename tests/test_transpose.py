"""transpose: x.transpose(dim0, dim1).contiguous(), bit for bit, in fresh memory."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from helpers import (
    COMPLEX,
    FLOATS,
    GRAD_LAYOUTS,
    INTEGERS,
    LAYOUTS,
    OPS,
    WIDE_UNSIGNED,
    assert_fresh,
    assert_same_bits,
    assert_same_error,
    each_variant,
    poisoned_memory,
    random_bits,
    random_values,
)

import cudamem_ops

SMALL_TYPES = [
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.bits8,
    torch.bits16,
]
ALL_TYPES = [*INTEGERS, *WIDE_UNSIGNED, *FLOATS, torch.complex32, *COMPLEX, *SMALL_TYPES]
UNPOISONED = SMALL_TYPES[1:]  # torch cannot fill them
BY_ELEMENT_BYTES = {1: torch.uint8, 2: torch.float16, 4: torch.float32, 8: torch.float64, 16: torch.complex128}
EDGES = [1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 100, 200]

every_variant = each_variant("transpose")
every_kernel = each_variant("transpose", cpu=False)


def check(x, dim0=-2, dim1=-1, variant=None):
    with nullcontext() if x.dtype in UNPOISONED else poisoned_memory():
        got = cudamem_ops.transpose(x, dim0, dim1, variant=variant)
    assert_fresh(got, x)
    want = x.cpu().transpose(dim0, dim1).contiguous()
    assert_same_bits(got.cpu(), want)
    assert got.device == x.device


@every_variant
@pytest.mark.parametrize("element_bytes", BY_ELEMENT_BYTES)
def test_every_rectangle(device, variant, element_bytes):
    for rows, cols in itertools.product(EDGES, EDGES):
        check(random_bits((rows, cols), BY_ELEMENT_BYTES[element_bytes], device), variant=variant)


@every_variant
@pytest.mark.parametrize("dtype", ALL_TYPES, ids=str)
def test_every_dtype_keeps_every_bit(device, variant, dtype):
    x = random_bits((3, 33, 41), dtype, device)
    for dim0, dim1 in ((0, 1), (1, 2), (0, 2), (1, 1)):
        check(x, dim0, dim1, variant)


@every_variant
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4, 5), (2, 3, 2, 3, 2, 3, 2, 2), (1,) * 24 + (3,)], ids=str)
def test_every_pair_of_dims(device, variant, shape):
    x = random_bits(shape, torch.int32, device)
    dims = range(-x.dim(), x.dim()) if x.dim() <= 8 else (0, 12, 23, -1)
    for dim0, dim1 in itertools.product(dims, dims):
        check(x, dim0, dim1, variant)


@every_variant
def test_a_0_dim_tensor_takes_dims_0_and_minus_1(device, variant):
    x = random_values((), torch.float32, device)
    for dim0, dim1 in itertools.product((0, -1), (0, -1)):
        check(x, dim0, dim1, variant)


@every_variant
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4), (0, 0)], ids=str)
def test_nothing_to_move(device, variant, shape):
    check(random_values(shape, torch.float32, device), 0, -1, variant)


@every_variant
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.complex128], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(device, variant, dtype, layout):
    for shape in ((5, 7, 6), (34, 9, 66)):
        x = LAYOUTS[layout](random_bits(shape, dtype, device))
        for dim0, dim1 in itertools.combinations_with_replacement(range(x.dim()), 2):
            check(x, dim0, dim1, variant)


@every_variant
@pytest.mark.parametrize("element_bytes", BY_ELEMENT_BYTES)
def test_every_alignment(device, variant, element_bytes):
    buffer = random_bits((64 * 64 + 8,), BY_ELEMENT_BYTES[element_bytes], device)
    for offset in range(8):
        check(buffer[offset : offset + 64 * 64].view(64, 64), variant=variant)


@every_variant
@pytest.mark.parametrize("shape", [(32, 32), (33, 32), (7, 5)], ids=str)
def test_conjugate_and_negative_views_are_resolved(device, variant, shape):
    z = random_values(shape, torch.complex64, device)
    conjugate, negative = z.conj(), z.conj().imag
    assert conjugate.is_conj()
    assert negative.is_neg()
    for view, want in ((conjugate, torch.complex(z.real, -z.imag)), (negative, -z.imag)):
        got = cudamem_ops.transpose(view, variant=variant)
        assert_fresh(got, z)
        assert_same_bits(got, want.t().contiguous())


@every_variant
def test_the_result_is_never_the_input(device, variant):
    for shape, dim0, dim1 in (((3, 4), 1, 1), ((3, 4), 0, -2), ((1, 4), 0, 1), ((), 0, 0), ((1, 1), 0, 1)):
        x = random_values(shape, torch.float32, device)
        before = x.clone()
        out = cudamem_ops.transpose(x, dim0, dim1, variant=variant)
        assert_fresh(out, x)
        out.add_(1)
        assert_same_bits(x, before)


@every_variant
@pytest.mark.parametrize(
    "shape", [(2_100_000, 3), (3, 2_100_000), (70_000, 33, 5), (5, 70_000, 3), (2, 3, 70_000, 2)], ids=str
)
def test_more_tiles_than_a_grid_has_rows(device, variant, shape):
    for dtype in (torch.float32, torch.float16):
        x = random_values(shape, dtype, device)
        for dim0, dim1 in itertools.combinations_with_replacement(range(x.dim()), 2):
            got = cudamem_ops.transpose(x, dim0, dim1, variant=variant)
            assert torch.equal(got, x.transpose(dim0, dim1)), (dim0, dim1)


@pytest.mark.large(gib=16)
@every_kernel
@pytest.mark.parametrize("shape", [(65_537, 32_769), (3, 2**30, 1), (2**31 + 33, 1), (9, 31_337, 7_919)], ids=str)
def test_more_than_2_to_the_31_elements(device, variant, shape):
    x = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    got = cudamem_ops.transpose(x, 0, 1, variant=variant)
    assert got.is_contiguous()
    for of_got, of_x in zip(got.split(2**27, dim=0), x.transpose(0, 1).split(2**27, dim=0), strict=True):
        assert torch.equal(of_got, of_x)


@pytest.mark.large(gib=8)
@every_kernel
def test_offsets_beyond_2_to_the_31(device, variant):
    memory = torch.randint(0, 256, (2**32 + 4096,), dtype=torch.uint8, device=device)
    for shape, strides in (((3, 33, 40), (2**31 + 7, 40, 1)), ((33, 3), (1, 2**31 + 7)), ((3, 33), (2**31 + 7, 1))):
        x = memory.as_strided(shape, strides)
        assert torch.equal(cudamem_ops.transpose(x, variant=variant), x.transpose(-2, -1))


@pytest.mark.parametrize(("shape", "dim0", "dim1"), [((2, 3), 2, 0), ((2, 3), 0, -3), ((), 1, 0), ((), 0, -2)])
@every_variant
def test_a_dim_out_of_range_is_an_index_error(device, variant, shape, dim0, dim1):
    x = torch.ones(shape, device=device)
    outside = dim0 if dim0 not in range(-max(x.dim(), 1), max(x.dim(), 1)) else dim1
    assert_same_error(
        lambda: cudamem_ops.transpose(x, dim0, dim1, variant=variant),
        lambda: x.transpose(dim0, dim1),
        rf"range of \[-?\d+, \d+\], but got {outside}",
    )


def test_variants_on_the_cpu():
    x = random_bits((33, 41), torch.float32, "cpu")
    for variant in cudamem_ops.variants()["transpose"]:
        check(x, variant=variant)


def test_an_unknown_variant_is_refused_with_those_there_are(device):
    with pytest.raises(RuntimeError, match=r"unknown variant 'tiled'; there are 'naive', 'shared', 'padded'"):
        OPS.transpose(torch.ones(2, 3, device=device), variant="tiled")


@every_variant
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_derivatives(device, variant, dtype):
    x = random_values((2, 3, 4), dtype, device).requires_grad_()

    def cubed_then_transposed(t):  # so that the second derivative is not zero
        return cudamem_ops.transpose(t.pow(3), 0, -1, variant=variant)

    assert torch.autograd.gradcheck(cubed_then_transposed, (x,))
    assert torch.autograd.gradgradcheck(cubed_then_transposed, (x,))


@every_variant
@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_gradient_of_any_layout(device, variant, dtype, layout):
    x = random_values((33, 64), dtype, device).requires_grad_()
    grad = GRAD_LAYOUTS[layout](random_values((64, 33), dtype, device))
    with poisoned_memory():
        (got,) = torch.autograd.grad(cudamem_ops.transpose(x, variant=variant), x, grad)
    assert_same_bits(got, grad.t().contiguous())
