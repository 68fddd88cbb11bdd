"""transpose: x.transpose(dim0, dim1).contiguous(), bit for bit, in fresh memory."""

import itertools
import math
import random
import re
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
    capture,
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


# Shapes and dims by what they ask for: each kernel has its own.
SITUATIONS = {
    "multiples of 16 bytes": [((64, 64), 0, 1), ((208, 400), 0, 1), ((3, 272, 48), 1, 2), ((1000, 16, 32), 1, 2)],
    "one row of blocks": [((16, 4096), 0, 1), ((4096, 16), 0, 1), ((5, 32, 1040), 1, 2), ((1040, 32), 0, 1)],
    "swizzled, planes in two dims": [((3, 64, 5, 32), 1, 3), ((2, 32, 3, 2, 64), 1, 4), ((64, 3, 5, 32), 0, 3)],
    "any size": [((199, 301), 0, 1), ((301, 199), 0, 1), ((3, 129, 257), 1, 2), ((35, 1000), 0, 1), ((1001, 37), 0, 1)],
    "larger than one chunk": [((190, 260), 0, 1), ((4, 163, 241), 1, 2), ((3, 97, 5, 131), 1, 3)],
    "2 to 4 lines, split": [((4096, n), 0, 1) for n in (2, 3, 4)] + [((3, 1040, 3), 1, 2)],
    "2 to 4 lines, joined": [((n, 4096), 0, 1) for n in (2, 3, 4)] + [((3, 3, 1040), 1, 2)],
    "2 to 4 lines, odd": [((4099, 3), 0, 1), ((3, 4099), 0, 1), ((5, 1027, 2), 1, 2), ((5, 2, 1027), 1, 2)],
    "a few lines, split": [((10_000, n), 0, 1) for n in (5, 8, 9, 16)] + [((7, 3000, 13), 1, 2)],
    "a few lines, joined": [((n, 10_000), 0, 1) for n in (5, 8, 9, 16, 31)] + [((7, 13, 3000), 1, 2)],
    "small matrices": [((500, 7, 5), 1, 2), ((33, 31, 33), 1, 2), ((1, 100, 70), 1, 2), ((70, 3, 5), 1, 2)],
    "small matrices in many dims": [((50, 7, 11, 5), 1, 3), ((9, 7, 65, 12, 9), 0, 4), ((9, 7, 65, 12, 9), 2, 4)],
    "folded dims": [
        ((17, 33, 5, 129), 0, 3),
        ((17, 33, 5, 129), 1, 3),
        ((40, 9, 50, 9), 0, 3),
        ((9, 200, 9, 90), 0, 2),
    ],
    "rows that change places": [
        ((6, 50, 40, 64), 1, 2),
        ((5, 90, 301), 0, 1),
        ((6, 50, 64, 8), 1, 2),
        ((9, 8, 7), 0, 1),
    ],
    "nothing that moves": [((5, 1003), 0, 0), ((1, 70_001), 0, 1), ((3, 1, 64), 0, 1)],
}
# Small tensors are gathered, mid-sized ones take small tiles: what comes after those asks for more elements.
LARGE_SITUATIONS = {
    "multiples of 16 bytes": [((1040, 2064), 0, 1), ((33, 64, 5, 208), 1, 3)],
    "any size": [((4099, 4097), 0, 1), ((3, 4001, 1399), 1, 2)],
    "2 to 4 lines": [((70_000, 3), 0, 1), ((4, 70_000), 0, 1), ((70_001, 3), 0, 1), ((3, 70_001), 0, 1)],
    "a few lines": [((60_001, 9), 0, 1), ((120_001, 5), 0, 1), ((9, 70_001), 0, 1), ((13, 70_003), 0, 1)],
    "small matrices": [((6001, 12, 9), 1, 2), ((3001, 15, 13), 1, 2)],
    "folded dims": [
        ((40, 9, 203, 9), 0, 3),
        ((12, 33, 41, 129), 0, 3),
        ((9, 2000, 9, 9), 0, 2),
        ((9, 201, 13, 41), 1, 3),
    ],
    "rows that change places": [((6, 50, 200, 64), 1, 2), ((90, 50, 1001), 0, 1), ((60, 50, 320, 8), 1, 2)],
}
VIEWS = {
    "whole": lambda memory, shape: memory[: math.prod(shape)].view(shape),
    "one element off": lambda memory, shape: memory[1 : 1 + math.prod(shape)].view(shape),
    "every other plane": lambda memory, shape: memory[: 2 * math.prod(shape)].view(2 * shape[0], *shape[1:])[::2],
    "part of each row": lambda memory, shape: memory[: 2 * math.prod(shape)].view(*shape[:-1], -1)[..., : shape[-1]],
    "every other element": lambda memory, shape: memory[: 2 * math.prod(shape)].view(*shape[:-1], -1)[..., ::2],
}


@pytest.mark.parametrize("element_bytes", BY_ELEMENT_BYTES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_situation(device, situation, view, element_bytes):
    for shape, dim0, dim1 in SITUATIONS[situation]:
        memory = random_bits((2 * math.prod(shape) + 1,), BY_ELEMENT_BYTES[element_bytes], device)
        check(VIEWS[view](memory, shape), dim0, dim1)


@pytest.mark.parametrize("element_bytes", BY_ELEMENT_BYTES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("situation", LARGE_SITUATIONS)
def test_every_large_situation(cuda, situation, view, element_bytes):
    for shape, dim0, dim1 in LARGE_SITUATIONS[situation]:
        memory = random_bits((2 * math.prod(shape) + 1,), BY_ELEMENT_BYTES[element_bytes], cuda)
        check(VIEWS[view](memory, shape), dim0, dim1)


@pytest.mark.parametrize("element_bytes", BY_ELEMENT_BYTES)
@pytest.mark.parametrize("variant", ["swizzled", "aligned"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_variants_in_every_situation(cuda, situation, variant, element_bytes):
    for (shape, dim0, dim1), view in itertools.product(SITUATIONS[situation], VIEWS.values()):
        memory = random_bits((2 * math.prod(shape) + 1,), BY_ELEMENT_BYTES[element_bytes], cuda)
        try:
            check(view(memory, shape), dim0, dim1, variant)
        except RuntimeError as error:
            if f"variant '{variant}' needs" not in str(error):
                raise


@pytest.mark.parametrize("draw", range(100))
def test_any_shape_dims_and_strides(device, draw, seed):
    rng = random.Random(seed)
    rank = rng.randint(2, 5)
    shape = [rng.choice((1, 2, 3, 5, 8, 16, 30, 33, 64, 100, 257, 1024)) for _ in range(rank)]
    while math.prod(shape) > 1 << 20:
        shape[rng.randrange(rank)] = rng.randint(1, 4)
    dtype = BY_ELEMENT_BYTES[rng.choice(list(BY_ELEMENT_BYTES))]
    steps = [rng.choice((1, 1, 1, 2)) for _ in shape]
    x = random_bits([size * step for size, step in zip(shape, steps, strict=True)], dtype, device)
    x = x[tuple(slice(None, None, step) for step in steps)]
    if rng.random() < 0.3:
        x = x.permute(rng.sample(range(rank), rank))
    check(x, rng.randrange(rank), rng.randrange(rank))


@pytest.mark.parametrize("element_bytes", BY_ELEMENT_BYTES)
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_windows_whose_rows_overlap(device, order, element_bytes):
    x = random_bits((4, 11, 16), BY_ELEMENT_BYTES[element_bytes], device).unfold(1, 4, 1).permute(order)
    for dim0, dim1 in itertools.combinations(range(4), 2):
        check(x, dim0, dim1)


@pytest.mark.parametrize("element_bytes", BY_ELEMENT_BYTES)
@pytest.mark.parametrize(
    ("variant", "shapes"),
    [
        ("swizzled", [(16, 16), (64, 4096), (48, 80), (17, 32, 16), (3, 5, 160, 32)]),
        ("aligned", [(1, 1), (31, 33), (64, 64), (65, 129), (500, 3), (3, 500), (2, 3, 191, 77)]),
    ],
)
def test_variants_where_they_are_legal(cuda, variant, shapes, element_bytes):
    for shape in shapes:
        check(random_bits(shape, BY_ELEMENT_BYTES[element_bytes], cuda), variant=variant)


@pytest.mark.parametrize(
    ("variant", "shape", "strides"),
    [
        ("swizzled", (16, 17), (17, 1)),
        ("swizzled", (18, 16), (16, 1)),
        ("swizzled", (16, 16), (18, 1)),
        ("swizzled", (16, 16), (32, 2)),
        ("aligned", (16, 16), (32, 2)),
        ("aligned", (2, 2, 2, 2, 2, 16, 16), (32768, 15000, 7000, 3000, 1000, 32, 1)),
    ],
)
def test_variants_where_they_are_not(cuda, variant, shape, strides):
    x = random_values((70_000,), torch.float32, cuda).as_strided(shape, strides)
    sizes = re.escape(str(list(shape)))
    with pytest.raises(RuntimeError, match=rf"variant '{variant}' needs .*; got sizes {sizes}, strides"):
        cudamem_ops.transpose(x, variant=variant)
    check(x)


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


IN_PLACE_SHAPES = [(1, 1), (2, 2), (31, 31), (32, 32), (33, 33), (100, 100), (3, 65, 65), (7, 5, 7), (40, 2, 40, 3)]


@pytest.mark.parametrize("element_bytes", BY_ELEMENT_BYTES)
def test_in_place(device, element_bytes):
    for shape in IN_PLACE_SHAPES:
        x = random_bits(shape, BY_ELEMENT_BYTES[element_bytes], device)
        for dim0, dim1 in itertools.product(range(-x.dim(), x.dim()), repeat=2):
            if shape[dim0] == shape[dim1]:
                want, version = x.transpose(dim0, dim1).contiguous(), x._version
                assert cudamem_ops.transpose_(x, dim0, dim1) is x
                assert_same_bits(x, want)
                assert x._version > version


def test_in_place_through_strides_leaves_the_rest_alone(device):
    whole = random_values((70, 71, 6), torch.float32, device)
    for view in (
        whole[:64, 3:67],
        whole[::2, ::2][:35, :35],
        whole.permute(1, 0, 2)[:70],
        whole[5:38, 5:38, ::3],
        whole[:0, :0],
    ):
        want = whole.clone()
        want.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(view.transpose(0, 1).clone())
        cudamem_ops.transpose_(view, 0, 1)
        assert_same_bits(whole, want)


def test_in_place_of_nothing(device):
    for shape in ((), (0, 0), (3, 0, 0)):
        x = random_values(shape, torch.float32, device)
        assert cudamem_ops.transpose_(x, 0, -1 if shape != (3, 0, 0) else 0).shape == shape


@pytest.mark.large(gib=9)
def test_in_place_beyond_2_to_the_31(cuda):
    x = torch.randint(0, 256, (46_400, 46_400), dtype=torch.uint8, device=cuda)
    want = cudamem_ops.transpose(x)
    assert torch.equal(cudamem_ops.transpose_(x), want)


def test_in_place_refuses(device):
    x = torch.ones(3, 4, device=device)
    with pytest.raises(RuntimeError, match="dim 0 has 3, dim 1 has 4"):
        cudamem_ops.transpose_(x)
    with pytest.raises(IndexError, match="got 2"):
        cudamem_ops.transpose_(x, 0, 2)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        cudamem_ops.transpose_(torch.ones(3, device=device).expand(3, 3))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        cudamem_ops.transpose_(torch.ones(3, 3, device=device, requires_grad=True))


def test_in_place_derivatives(device):
    x = random_values((2, 3, 3), torch.float64, device).requires_grad_()

    def in_place(t):
        return cudamem_ops.transpose_(t.pow(3), 1, 2)

    assert torch.autograd.gradcheck(in_place, (x,))
    assert torch.autograd.gradgradcheck(in_place, (x,))
    whole = x * 1
    cudamem_ops.transpose_(whole[0, :2, :2])  # a view: its base learns of it
    grad = random_values((2, 3, 3), torch.float64, device)
    (got,) = torch.autograd.grad(whole, x, grad)
    grad[0, :2, :2] = grad[0, :2, :2].t().clone()
    assert_same_bits(got, grad)


def test_in_place_under_compile_vmap_and_forward_mode(device):
    x = random_values((2, 5, 5), torch.float32, device)

    def moved(t):
        t = t.clone()
        torch.ops.cudamem.transpose_(t)
        return t

    want = x.transpose(-2, -1)
    assert torch.equal(torch.compile(moved, fullgraph=True, backend="aot_eager")(x), want)
    assert torch.equal(torch.func.vmap(moved)(x), want)
    tangent = random_values((2, 5, 5), torch.float32, device)
    assert torch.equal(torch.func.jvp(moved, (x,), (tangent,))[1], tangent.transpose(-2, -1))
    torch.library.opcheck(OPS.transpose_.default, (x.clone(), 1, 2))


def test_in_place_behind_a_late_producer(cuda):
    source, stream = random_values((3, 97, 97), torch.float32, cuda), torch.cuda.Stream()
    x = torch.zeros_like(source)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.copy_(source)
        cudamem_ops.transpose_(x)
    stream.synchronize()
    assert torch.equal(x, source.mT)


@pytest.mark.without_sanitizer
def test_in_place_in_a_graph(cuda):
    x = random_values((3, 97, 97), torch.float32, cuda)
    graph, _ = capture(lambda: cudamem_ops.transpose_(x))
    before = x.clone()
    for want in (before.mT, before):
        graph.replay()
        assert torch.equal(x, want)


def test_in_place_on_a_device_that_is_not_the_current_one(two_gpus):
    torch.cuda.set_device(two_gpus[0])
    x = random_values((97, 97), torch.float32, two_gpus[1])
    want = x.mT.clone()
    assert torch.equal(cudamem_ops.transpose_(x), want)
    assert torch.cuda.current_device() == 0
