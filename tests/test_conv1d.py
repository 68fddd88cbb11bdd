"""conv1d: torch.nn.functional.conv1d, whose coefficients may pass through memory that a whole device shares."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    COMPLEX,
    FLOATS,
    GRAD_LAYOUTS,
    HALVES,
    OPS,
    accumulator,
    assert_fresh,
    assert_same_bits,
    assert_same_error,
    assert_within,
    capture,
    each_variant,
    epsilon,
    poisoned_memory,
    random_values,
)

import cudamem_ops

every_variant = each_variant("conv1d")
every_kernel = each_variant("conv1d", cpu=False)

BANK_BYTES = 65_536  # what "constant" takes


def reference(x, w, b=None, stride=1, padding=0, dilation=1, groups=1, keep=False):
    """The sum of products over windows, in float64 or complex128 on the CPU; no convolution is called. With keep,
    of such tensors, to be differentiated."""
    wide = torch.complex128 if x.is_complex() else torch.float64
    if not keep:
        x, w, b = (None if t is None else t.detach().cpu().to(wide) for t in (x, w, b))
    if x.dim() == 2:
        return reference(x.unsqueeze(0), w, b, stride, padding, dilation, groups).squeeze(0)
    zeros = x.new_zeros(*x.shape[:2], padding)
    windows = torch.cat([zeros, x, zeros], 2).unfold(2, dilation * (w.size(2) - 1) + 1, stride)[..., ::dilation]
    windows = windows.unflatten(1, (groups, w.size(1)))
    filters = w.unflatten(0, (groups, w.size(0) // groups))
    out = torch.einsum("ngctk,gock->ngot", windows, filters).flatten(1, 2)
    return out if b is None else out + b.unsqueeze(-1)


def bound(x, w, b, want, args, *, roundings):
    """``(products + 8) * eps * conv(|x|, |w|)`` with the accumulator's eps, and `roundings` to the result's dtype.

    The kernels here round once. ATen may also round between the products and the bias. It makes a complex convolution
    of three real ones, whose errors come to at most four times that of one.
    """
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(x.dtype, x.dtype)
    magnitudes = reference(x.abs(), w.abs(), None if b is None else b.abs(), *args)
    products = w.size(1) * w.size(2) * (4 if x.is_complex() else 1)
    once = epsilon(real) * (want.abs() if roundings == 1 else roundings * magnitudes)
    return (products + 8) * epsilon(accumulator(real)) * magnitudes + once + torch.finfo(real).tiny


def is_refused(variant, x, w, stride=1, padding=0, dilation=1, groups=1):
    """Whether "tiled" finds its tiles too large, as it may only where 640 outputs' samples, twice, come near 48 KB; or
    "flat" its numbers."""
    small_tile = 2 * w.size(1) * (640 * stride + dilation * w.size(2) + w.size(2)) * 8 <= 49_152
    takes_all = {"tiled": small_tile, "flat": w.size(2) <= 2**15 and x.size(0) * w.size(0) * x.size(-1) <= 2**30}
    if not x.is_cuda or (takes_all.get(variant, True) and x.size(-1) <= 2**30):
        return False
    why = {"tiled": "a tile and its coefficients are larger", "flat": "its sizes are beyond"}.get(variant, "none")
    try:
        cudamem_ops.conv1d(x, w, None, stride, padding, dilation, groups, variant=variant)
    except RuntimeError as error:
        return f"variant '{variant}' cannot be used here: {why}" in str(error)
    return False


def check(x, w, b=None, stride=1, padding=0, dilation=1, groups=1, variant=None):
    args = (stride, padding, dilation, groups)
    if is_refused(variant, x, w, *args):
        return
    with poisoned_memory():
        got = cudamem_ops.conv1d(x, w, b, *args, variant=variant)
    assert_fresh(got, x, w)
    assert (got.dtype, got.device) == (x.dtype, x.device)
    want = reference(x, w, b, *args)
    assert_within(got, want, bound(x, w, b, want, args, roundings=1 if variant else 2))


def random_bank(shape, dtype, device):
    """Coefficients for which an output is about as large as an input."""
    return random_values(shape, dtype, device) / (shape[1] * shape[2]) ** 0.5


# input, weight, stride, padding, dilation, groups
CONFIGS = {
    "single filter": ((3, 1, 100), (1, 1, 5), 1, 0, 1, 1),
    "depthwise": ((2, 7, 65), (7, 1, 9), 1, 4, 1, 7),
    "depthwise, two filters a channel": ((2, 5, 33), (10, 1, 3), 1, 1, 1, 5),
    "few channels": ((2, 3, 40), (4, 3, 7), 1, 0, 1, 1),
    "many channels": ((2, 24, 50), (20, 24, 3), 1, 1, 1, 1),
    "groups": ((2, 12, 31), (6, 4, 3), 1, 1, 1, 3),
    "unbatched": ((3, 32), (4, 3, 3), 1, 1, 1, 1),
    "unbatched, depthwise": ((3, 32), (3, 1, 3), 1, 1, 1, 3),
    "one tap": ((2, 3, 17), (4, 3, 1), 1, 0, 1, 1),
    "one output": ((2, 3, 7), (4, 3, 7), 1, 0, 1, 1),
    "stride": ((2, 3, 41), (4, 3, 4), 3, 2, 1, 1),
    "dilation": ((2, 3, 41), (4, 3, 4), 1, 3, 5, 1),
    "stride, dilation, groups": ((3, 4, 67), (6, 2, 5), 2, 7, 3, 2),
    "more padding than signal": ((2, 1, 3), (1, 1, 4), 1, 50, 2, 1),
    "stride beyond the kernel": ((2, 3, 40), (4, 3, 3), 7, 2, 2, 1),
    "stride beyond the signal": ((2, 3, 5), (4, 3, 1), 100, 0, 1, 1),
    "odd outputs": ((5, 1, 257), (1, 1, 2), 1, 0, 1, 1),
    "outputs fill a block": ((2, 1, 257), (3, 1, 2), 1, 0, 1, 1),
    "one output beyond a block": ((2, 1, 258), (3, 1, 2), 1, 0, 1, 1),
    "many blocks": ((2, 2, 10_007), (2, 2, 3), 1, 1, 1, 1),
    "many signals": ((66_000, 1, 3), (1, 1, 2), 1, 0, 1, 1),
    "long filter": ((2, 1, 3000), (2, 1, 2500), 1, 10, 1, 1),
    "short rows": ((37, 11, 23), (11, 1, 9), 1, 4, 1, 11),
    "many coefficients": ((3, 40, 30), (16, 20, 15), 2, 7, 1, 2),
}


def make(config, dtype, device):
    x_shape, w_shape, *args = CONFIGS[config]
    return random_values(x_shape, dtype, device), random_bank(w_shape, dtype, device), args


@every_variant
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_every_configuration(device, variant, dtype, config):
    x, w, args = make(config, dtype, device)
    check(x, w, None, *args, variant=variant)
    check(x, w, random_values(w.shape[:1], dtype, device), *args, variant=variant)


@pytest.mark.parametrize("variant", ["flat", "tiled"])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 16, 19, 20, 21, 39, 40, 41, 61, 100, 160, 197, 198, 200, 317, 320, 321])
def test_rows_shorter_than_a_tile(cuda, variant, length):
    for taps in (1, 2, 4, 5, 9, 16, 31, 32):
        for padding in {0, taps // 2, taps - 1}:
            if length + 2 * padding < taps:
                continue
            for channels, offset, gap in ((1, 0, 0), (5, 0, 0), (5, 1, 0), (3, 2, 3)):
                memory = random_values((7 * channels * (length + gap) + offset,), torch.float32, cuda)
                x = memory[offset:].view(7, channels, length + gap)[..., :length]
                w, b = (
                    random_bank((channels, 1, taps), torch.float32, cuda),
                    random_values((channels,), torch.float32, cuda),
                )
                check(x, w, b, padding=padding, groups=channels, variant=variant)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_samples_far_apart(cuda, dtype):
    for shape in ((1024, 1, 1029), (4, 300, 511), (900, 700)):
        x = random_values(shape[::-1], dtype, cuda).permute(*reversed(range(len(shape))))
        channels = shape[-2]
        assert x.stride(-1) >= 300
        check(x, random_bank((channels, 1, 5), dtype, cuda), padding=2, groups=channels)


@pytest.mark.parametrize("variant", ["parameter", "registers"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("config", [name for name, (_, w_shape, *_) in CONFIGS.items() if w_shape[1] == 1])
def test_coefficients_as_an_argument_and_in_registers(cuda, variant, dtype, config):
    x, w, args = make(config, dtype, cuda)
    if w.size(2) > 32:
        x, w = x[..., :97], w[..., :32]
    check(x, w, None, *args, variant=variant)
    check(x, w, random_values(w.shape[:1], dtype, cuda), *args, variant=variant)


def test_the_most_coefficients_as_an_argument_and_in_registers(cuda):
    def refused(variant, *w_shape):
        x, w = torch.ones(2, w_shape[1], 1000, device=cuda), torch.ones(w_shape, device=cuda)
        with pytest.raises(RuntimeError, match=f"variant '{variant}' cannot be used here: ") as error:
            cudamem_ops.conv1d(x, w, variant=variant)
        return str(error.value)

    for variant, fits in (("parameter", (2, 4, 64)), ("parameter", (1, 1, 512)), ("registers", (7, 1, 32))):
        groups = 7 if fits[0] == 7 else 1
        x = random_values((2, fits[1] * groups, 1000), torch.float32, cuda)
        check(x, random_bank(fits, torch.float32, cuda), groups=groups, variant=variant)
    assert "2048 bytes" in refused("parameter", 1, 1, 513)
    assert "up to 32 taps" in refused("registers", 1, 1, 33)
    assert "one channel's" in refused("registers", 1, 2, 3)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("config", [name for name in CONFIGS if name != "many signals"])
def test_complex_numbers(device, dtype, config):
    x, w, args = make(config, dtype, device)
    check(x, w, None, *args)
    check(x.conj(), w.conj(), random_values(w.shape[:1], dtype, device), *args)


@every_kernel
def test_a_variant_is_refused_for_complex_numbers(device, variant):
    x, w, args = make("few channels", torch.complex64, device)
    if variant is None:
        check(x, w, None, *args)
    else:
        with pytest.raises(NotImplementedError, match=f"variant '{variant}'.*ComplexFloat"):
            cudamem_ops.conv1d(x, w, None, *args, variant=variant)


@every_variant
def test_every_length_of_filter(device, variant):
    for taps in (*range(1, 40), 63, 64, 65, 127, 129, 1023, 1024, 1025):
        x, w = random_values((2, 1, taps + 37), torch.float32, device), random_bank((1, 1, taps), torch.float32, device)
        check(x, w, variant=variant)


@every_variant
@pytest.mark.parametrize("offset", [0, 1])
def test_filters_as_long_as_a_tile_can_hold(device, variant, offset):
    for taps in range(2515, 2527):
        x = random_values((1, 1, taps + 301), torch.float32, device)[..., offset:]
        check(x, random_bank((1, 1, taps), torch.float32, device), None, 1, offset, variant=variant)


def random_problem(rng, dtype, device):
    """Any bank, any arguments, lengths up to a few tiles and down to their ends, samples anywhere in memory."""
    groups, c_in, c_out = rng.choice(
        [(1, 1, 1), (rng.randint(1, 5), 1, 1), (rng.randint(1, 3),) * 3, (1, 4, 8), (2, 3, 9)]
    )
    taps = rng.choice([rng.randint(1, 12), rng.randint(1, 45), rng.randint(1, 200)])
    stride, dilation = rng.choice([(1, 1), (1, 1), (rng.randint(1, 4), rng.randint(1, 4))])
    reach = dilation * (taps - 1) + 1
    near = rng.choice([256, 384, 640, 1024, rng.randint(1, 3000)]) * stride
    length = max(near + reach - 1 + rng.randint(-9, 9), 1)
    padding = rng.choice([0, 0, reach // 2, rng.randint(0, reach + 3)])
    padding = max(padding, (reach - length + 1) // 2)
    offset, step = rng.choice([(0, 1), (0, 1), (rng.randint(1, 9), 1), (1, 2)])
    memory = random_values((rng.randint(1, 3), groups * c_in, offset + step * length), dtype, device)
    x = memory[..., offset::step][..., :length]
    w = random_bank((groups * c_out, c_in, taps), dtype, device)
    b = random_values(w.shape[:1], dtype, device) if rng.random() < 0.5 else None
    return x, w, b, (stride, padding, dilation, groups)


@every_variant
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("draw", range(4))
def test_random_problems(device, variant, dtype, draw):
    rng = random.Random(f"{draw} {dtype}")
    for _ in range(25):
        x, w, b, args = random_problem(rng, dtype, device)
        check(x, w, b, *args, variant=variant)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("draw", range(4))
def test_gradients_of_random_problems(device, dtype, draw):
    """Against the reference's own derivatives. The gradient of a coefficient is a sum over all outputs."""
    rng = random.Random(f"{draw} {dtype}")
    for _ in range(12):
        x, w, b, args = random_problem(rng, dtype, device)
        inputs = [t.detach().requires_grad_() for t in (x, w, b) if t is not None]
        out = cudamem_ops.conv1d(*inputs, *([] if b is not None else [None]), *args)
        grad = random_values(out.shape, dtype, device)
        got = torch.autograd.grad(out, inputs, grad)
        for absolute in (False, True):
            wide = [t.detach().double().cpu() for t in inputs]
            wide = [(t.abs() if absolute else t).requires_grad_() for t in wide]
            wanted = reference(*wide, *([] if b is not None else [None]), *args, keep=True)
            seed_grad = grad.double().cpu()
            of_reference = torch.autograd.grad(wanted, wide, seed_grad.abs() if absolute else seed_grad)
            if not absolute:
                want = of_reference
        own = x.is_cuda and w.size(1) == 1 and w.size(0) == x.size(1) and args[0] == args[2] == 1 and w.size(2) <= 32
        roundings = 2 if own or dtype not in HALVES else 16  # ATen may round halves on the way
        terms = out.numel() + w.size(1) * w.size(2)
        for g, exact, magnitude in zip(got, want, of_reference, strict=True):
            steps = min(terms, 64 + 8 * terms**0.5)  # rounding errors of a long sum seldom point one way
            limit = (steps * epsilon(accumulator(dtype)) + roundings * epsilon(dtype)) * magnitude
            assert_within(g, exact, limit + torch.finfo(dtype).tiny)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=str)
def test_an_infinite_input_spoils_the_gradients_of_its_own_taps_alone(device, dtype, value):
    x, w = random_values((2, 3, 40), dtype, device), random_bank((3, 1, 5), dtype, device)
    x[0, 1, 39] = value  # read by the last tap alone, for the last output
    x[1, 2, 0] = value  # by the first one
    x, w = x.requires_grad_(), w.requires_grad_()
    out = cudamem_ops.conv1d(x, w, groups=3)
    grad = random_values(out.shape, dtype, device)
    of_input, of_weight = torch.autograd.grad(out, (x, w), grad)
    spoilt = torch.zeros(3, 1, 5, dtype=torch.bool)
    spoilt[1, 0, 4] = spoilt[2, 0, 0] = True
    assert of_input.isfinite().all()
    assert torch.equal(~of_weight.isfinite().cpu(), spoilt)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "channels"), [((3, 1, 70_001), 1), ((8, 64, 1000), 64)], ids=str)
def test_gradients_have_the_same_bits_each_time(cuda, dtype, shape, channels):
    x = random_values(shape, dtype, cuda).requires_grad_()
    w = random_bank((channels, 1, 9), dtype, cuda).requires_grad_()
    out = cudamem_ops.conv1d(x, w, padding=4, groups=channels)
    grad = random_values(out.shape, dtype, cuda)
    first = torch.autograd.grad(out, (x, w), grad, retain_graph=True)
    for _ in range(5):
        for a, b in zip(first, torch.autograd.grad(out, (x, w), grad, retain_graph=True), strict=True):
            assert_same_bits(a, b)


@every_variant
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("beyond", [-1, 0, 1, 3617])
def test_filters_around_the_size_of_constant_memory(device, variant, dtype, beyond):
    taps = BANK_BYTES // dtype.itemsize + beyond
    x, w = random_values((2, 1, taps + 7), dtype, device), random_bank((1, 1, taps), dtype, device)
    if variant == "constant" and beyond > 0:
        with pytest.raises(RuntimeError, match=r"variant 'constant' cannot be used here: .* 65,536 bytes"):
            cudamem_ops.conv1d(x, w, variant=variant)
    else:
        check(x, w, variant=variant)


BANKS = [((255, 4, 16), 1), ((256, 4, 16), 1), ((257, 4, 16), 1), ((64, 65, 4), 1), ((128, 128, 3), 1)]
BANKS += [((4096, 1, 4), 4096), ((4097, 1, 4), 4097)]


@every_variant
@pytest.mark.parametrize(("shape", "groups"), BANKS, ids=str)
def test_banks_around_the_size_of_constant_memory(device, variant, shape, groups):
    x = random_values((2, shape[1] * groups, shape[2] + 5), torch.float32, device)
    w = random_bank(shape, torch.float32, device)
    if variant == "constant" and w.nbytes > BANK_BYTES:
        with pytest.raises(RuntimeError, match="65,536 bytes"):
            cudamem_ops.conv1d(x, w, groups=groups, variant=variant)
    else:
        check(x, w, groups=groups, variant=variant)


VIEWS = {
    "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "batch last": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "every other element": lambda t: torch.stack([t, t + 1], -1).select(-1, 0),
    "expanded": lambda t: t[:, :, :1].expand(t.shape),
    "expanded batch": lambda t: t[:1].expand(t.shape),
    "overlapping": lambda t: t.flatten().as_strided(t.shape, (2, 1, 1)),
    "odd strides of size-1 dims": lambda t: t[:, :1].as_strided((len(t), 1, t.size(2)), (t.stride(0), 99_999, 1)),
    "negative": lambda t: torch.complex(t, -t).conj().imag,
}


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_every_layout(device, variant, dtype, view):
    view_of = VIEWS[view]
    bias = random_values((6, 2), dtype, device)[:, 1]
    for channels, per_group in ((3, 1), (12, 12), (1, 1)):
        groups = channels // per_group
        x = random_values((4, channels, 40), dtype, device)
        w = random_bank((6, per_group, 5), dtype, device)
        if view != "odd strides of size-1 dims" or channels == 1:
            check(view_of(x), w, bias, 1, 1, 1, groups, variant)
        if view != "odd strides of size-1 dims" or per_group == 1:
            check(x, view_of(w), bias, 1, 1, 1, groups, variant)


@every_variant
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_every_alignment(device, variant, dtype):
    for offset in range(8):
        x = random_values((4 * 3 * 40 + 8,), dtype, device)[offset : offset + 480].view(4, 3, 40)
        w = random_values((3 * 5 + 8,), dtype, device)[offset : offset + 15].view(3, 1, 5)
        b = random_values((3 + 8,), dtype, device)[offset : offset + 3]
        check(x, w, b, groups=3, variant=variant)


@every_variant
def test_integers_and_zeros_are_exact(device, variant):
    x = torch.randint(-4, 5, (3, 2, 500), device=device).float()
    w = torch.randint(-4, 5, (2, 1, 9), device=device).float()
    got = cudamem_ops.conv1d(x, w, None, 2, 4, 1, 2, variant=variant)
    assert torch.equal(got.cpu().double(), reference(x, w, None, 2, 4, 1, 2))


@every_variant
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("taps", [3, 40, 100])
def test_nan_and_infinity_stay_in_their_windows(device, variant, dtype, taps):
    if device == "cpu" and dtype.itemsize == 2:
        pytest.skip("ATen's kernels multiply their padding by zero on some CPUs")
    x, w = torch.zeros(1, 1, 300, dtype=dtype, device=device), torch.ones(1, 1, taps, dtype=dtype, device=device)
    for value in (float("nan"), float("inf"), -float("inf")):
        x[0, 0, 150] = value
        got = cudamem_ops.conv1d(x, w, variant=variant)[0, 0].cpu()
        want = torch.zeros(301 - taps, dtype=dtype)
        want[151 - taps : 151] = value
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@every_variant
@pytest.mark.parametrize(
    ("scale", "of_weight"),
    [(1e-17, 1e-17), (1e-36, 1e8), (1e-36, 1e32), (1e30, 1e-36), (1e-25, 1.0), (3.4028e38, 1e-3), (1e-3, 1e38)],
)
def test_the_whole_range_of_float32(device, variant, scale, of_weight):
    """Numbers whose last bits lie below float32's range, or that a rounding would carry beyond it, and silence."""
    x = torch.rand(2, 1, 3000, device=device) * scale
    x[0, :, 500:2000], x[1, :, 1500] = 0, scale
    for taps in (3, 100):
        w = random_values((1, 1, taps), torch.float32, device) / (4 * taps) * of_weight
        check(x, w, None, 1, taps // 2, variant=variant)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_padding_in_words(device, dtype, padding):
    for taps, dilation, groups in ((1, 1, 1), (2, 1, 1), (3, 1, 3), (4, 1, 3), (4, 3, 1), (5, 2, 3)):
        x = random_values((2, 3, 20), dtype, device)
        w = random_bank((6, 3 // groups, taps), dtype, device)
        b = random_values((6,), dtype, device)
        total = dilation * (taps - 1) if padding == "same" else 0
        want = reference(F.pad(x, (total // 2, total - total // 2)), w, b, 1, 0, dilation, groups)
        for got in (
            cudamem_ops.conv1d(x, w, b, 1, padding, dilation, groups),
            OPS.conv1d(x, w, b, [1], padding, [dilation], groups),
            OPS.conv1d(x[0], w, b, 1, padding, dilation, groups).unsqueeze(0).expand(2, -1, -1),
        ):
            assert got.shape == F.conv1d(x, w, b, 1, padding, dilation, groups).shape
            allowed = bound(F.pad(x, (total, total)), w, b, want, (1, 0, dilation, groups), roundings=2).amax()
            assert_within(got[:1], want[:1], allowed)
        assert_fresh(cudamem_ops.conv1d(x, w, b, 1, padding, dilation, groups), x, w)


def test_every_way_to_write_a_call(device):
    x, w, _ = make("few channels", torch.float32, device)
    want = cudamem_ops.conv1d(x, w, None, 2, 1, 3)
    for got in (
        cudamem_ops.conv1d(x, w, stride=[2], padding=(1,), dilation=[3]),
        OPS.conv1d(x, w, None, 2, 1, 3, 1),
        OPS.conv1d(x, w, stride=2, padding=1, dilation=3),
        OPS.conv1d(x, w, None, [2], [1], [3], 1),
        OPS.conv1d.default(x, w, None, [2], [1], [3]),
    ):
        assert_same_bits(got, want)
    for variant in (name for name in cudamem_ops.variants()["conv1d"] if name != "registers"):
        want = cudamem_ops.conv1d(x, w, None, 2, 1, 3, variant=variant)
        assert_same_bits(OPS.conv1d(x, w, None, 2, 1, 3, variant=variant), want)
        assert_same_bits(OPS.conv1d(x, w, None, [2], [1], [3], variant=variant), want)


@every_variant
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups", "out_shape"),
    [
        ((0, 3, 8), (4, 3, 3), 1, (0, 4, 6)),
        ((2, 0, 8), (4, 0, 3), 1, (2, 4, 6)),
        ((2, 0, 8), (4, 0, 3), 2, (2, 4, 6)),
        ((0, 8), (4, 0, 3), 1, (4, 6)),
        ((0, 0, 8), (4, 0, 3), 1, (0, 4, 6)),
    ],
    ids=str,
)
def test_zero_batch_and_zero_channels(device, variant, x_shape, w_shape, groups, out_shape):
    x, w, b = (torch.ones(s, device=device, requires_grad=True) for s in (x_shape, w_shape, w_shape[:1]))
    with poisoned_memory():
        out = cudamem_ops.conv1d(x, w, b, groups=groups, variant=variant)
        plain = cudamem_ops.conv1d(x, w, groups=groups, variant=variant)
        grads = torch.autograd.grad(out, (x, w, b), torch.ones_like(out))
    assert_fresh(out.detach(), x, w, b)
    assert_same_bits(out, torch.ones(out_shape, device=device))
    assert_same_bits(plain, torch.zeros(out_shape, device=device))
    assert_same_bits(grads[0], torch.zeros_like(x))
    assert_same_bits(grads[1], torch.zeros_like(w))
    assert_same_bits(grads[2], torch.full_like(b, out.numel() / len(b)))


@every_variant
def test_an_empty_signal_with_padding(device, variant):
    x, w, b = torch.ones(2, 3, 0, device=device), torch.ones(4, 3, 3, device=device), torch.ones(4, device=device)
    want = torch.ones(2, 4, 2, device=device)
    assert_same_bits(cudamem_ops.conv1d(x, w, b, padding=2, variant=variant), want)


def ones(*shape, dtype=torch.float32):
    return lambda device: torch.ones(shape, dtype=dtype, device=device)


X, W = ones(1, 6, 8), ones(6, 3, 3)  # groups=2 fits
BAD = {
    "groups 0": (X, W, None, 1, 0, 1, 0, "groups=0"),
    "groups -1": (X, W, None, 1, 0, 1, -1, "groups=-1"),
    "groups -2^63": (X, W, None, 1, 0, 1, -(2**63), f"groups={-(2**63)}"),
    "groups 1": (
        X,
        W,
        None,
        1,
        0,
        1,
        1,
        r"groups=1 and weight of size \[6, 3, 3\].*to have 3 \* 1 channels, but got 6",
    ),
    "groups 4": (X, W, None, 1, 0, 1, 4, "groups=4"),
    "groups 5": (X, W, None, 1, 0, 1, 5, "groups=5"),
    "groups 12": (X, W, None, 1, 0, 1, 12, "groups=12"),
    "groups 2^31": (X, W, None, 1, 0, 1, 2**31, f"groups={2**31}"),
    "C_out and groups": (X, ones(5, 3, 3), None, 1, 0, 1, 2, r"groups=2.*weight of size \[5, 3, 3\]"),
    "stride 0": (X, W, None, 0, 0, 1, 2, "stride=0"),
    "stride -1": (X, W, None, -1, 0, 1, 2, "stride=-1"),
    "padding -1": (X, W, None, 1, -1, 1, 2, "padding=-1"),
    "dilation 0": (X, W, None, 1, 0, 0, 2, "dilation=0"),
    "dilation -1": (X, W, None, 1, 0, -1, 2, "dilation=-1"),
    "two strides": (X, W, None, [1, 1], [0], [1], 2, r"stride=\[1, 1\]"),
    "two paddings": (X, W, None, [1], [0, 0], [1], 2, r"padding=\[0, 0\]"),
    "no dilation": (X, W, None, [1], [0], [], 2, r"dilation=\[\]"),
    "kernel beyond the signal": (X, ones(6, 3, 9), None, 1, 0, 1, 2, r"\(8\). Kernel size: \(9\)"),
    "dilated beyond the signal": (X, W, None, 1, 1, 5, 2, r"\(10\). Kernel size: \(11\)"),
    "empty signal": (ones(1, 6, 0), W, None, 1, 0, 1, 2, r"\(0\). Kernel size: \(3\)"),
    "no taps": (X, ones(6, 3, 0), None, 1, 0, 1, 2, r"weight of size \[6, 3, 0\]"),
    "no filters": (X, ones(0, 3, 3), None, 1, 0, 1, 2, r"weight of size \[0, 3, 3\]"),
    "1-D input": (ones(8), W, None, 1, 0, 1, 2, r"input of size \[8\]"),
    "4-D input": (ones(1, 1, 6, 8), W, None, 1, 0, 1, 2, r"input of size \[1, 1, 6, 8\]"),
    "2-D weight": (X, ones(6, 3), None, 1, 0, 1, 2, r"weight of size \[6, 3\]"),
    "bias of 1": (X, W, ones(1), 1, 0, 1, 2, r"bias of size \[1\]"),
    "bias of 5": (X, W, ones(5), 1, 0, 1, 2, r"6 elements.*bias of size \[5\]"),
    "bias of 7": (X, W, ones(7), 1, 0, 1, 2, r"bias of size \[7\]"),
    "2-D bias": (X, W, ones(6, 1), 1, 0, 1, 2, r"bias of size \[6, 1\]"),
    "0-D bias": (X, W, ones(), 1, 0, 1, 2, r"bias of size \[\]"),
    "half bias": (X, W, ones(6, dtype=torch.float16), 1, 0, 1, 2, r"\(Float\) and bias type \(Half\)"),
    "double bias": (X, W, ones(6, dtype=torch.float64), 1, 0, 1, 2, r"\(Float\) and bias type \(Double\)"),
    "int bias": (X, W, ones(6, dtype=torch.int32), 1, 0, 1, 2, r"\(Float\) and bias type \(Int\)"),
    "double weight": (X, ones(6, 3, 3, dtype=torch.float64), None, 1, 0, 1, 2, r"\(Float\) and weight type \(Double\)"),
    "odd word": (X, W, None, 1, "full", 1, 2, "'full'"),
    "strided same": (X, W, None, 2, "same", 1, 2, "stride=2"),
}


@every_variant
@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments_are_refused_with_what_was_received(device, variant, bad):
    x, w, b, stride, padding, dilation, groups, message = BAD[bad]
    if isinstance(padding, str) and variant is not None:
        message = f"variant '{variant}' needs padding in numbers"
    x, w, b = x(device), w(device), b and b(device)
    with pytest.raises(RuntimeError, match=message) as error:
        cudamem_ops.conv1d(x, w, b, stride, padding, dilation, groups, variant=variant)
    assert error.type is RuntimeError
    if device == "cuda":
        torch.cuda.synchronize()
        assert torch.ones(3, device=device).sum().item() == 3


# On some of the others F.conv1d ends the process.
@pytest.mark.parametrize(
    "bad", ["groups 0", "groups 5", "stride 0", "padding -1", "bias of 5", "double weight", "1-D input"]
)
def test_the_class_of_error_is_that_of_torch(device, bad):
    x, w, b, stride, padding, dilation, groups, message = BAD[bad]
    args = (x(device), w(device), b and b(device), stride, padding, dilation, groups)
    assert_same_error(lambda: cudamem_ops.conv1d(*args), lambda: F.conv1d(*args), message)


def test_an_unknown_variant_is_refused_with_those_there_are(device):
    known = "'global', 'readonly', 'shared', 'constant'"
    with pytest.raises(RuntimeError, match=f"unknown variant 'texture'; there are {known}"):
        OPS.conv1d(torch.ones(1, 1, 3, device=device), torch.ones(1, 1, 1, device=device), variant="texture")


@pytest.mark.parametrize("variant", cudamem_ops.variants()["conv1d"])
def test_variants_on_the_cpu(variant):
    x, w, args = make("stride, dilation, groups", torch.float32, "cpu")
    check(x, w, None, *args, variant=variant)


DERIVED = ["depthwise, two filters a channel", "few channels", "stride, dilation, groups", "unbatched"]
DERIVED += ["stride beyond the kernel", "stride beyond the signal", "more padding than signal"]


def make_for_derivatives(config, device, dtype=torch.float64):
    """A small relative of a configuration: what matters stays, batch and length shrink."""
    x_shape, w_shape, stride, padding, dilation, groups = CONFIGS[config]
    length = min(x_shape[-1], dilation * (w_shape[2] - 1) + 1 + 6)
    x = random_values((*[2] * (len(x_shape) - 2), x_shape[-2], length), dtype, device).requires_grad_()
    w, b = (random_values(s, dtype, device).requires_grad_() for s in (w_shape, w_shape[:1]))
    return x, w, b, (stride, min(padding, 5), dilation, groups)


@every_variant
@pytest.mark.parametrize("config", DERIVED)
def test_derivatives(device, variant, config):
    x, w, b, args = make_for_derivatives(config, device)
    if is_refused(variant, x, w, *args):
        variant = None

    def convolve(x, w, b=None):
        return cudamem_ops.conv1d(x, w, b, *args, variant=variant)

    fast = {"fast_mode": True, "nondet_tol": 1e-10}  # ATen's backward adds in no fixed order on CUDA
    assert torch.autograd.gradcheck(convolve, (x, w, b), **fast)
    assert torch.autograd.gradgradcheck(convolve, (x, w, b), **fast)
    assert torch.autograd.gradgradcheck(convolve, (x, w), **fast)
    assert torch.autograd.gradgradcheck(lambda x: convolve(x, w.detach(), b), (x,), **fast)


def test_derivatives_without_shortcuts(device):
    x, w, b = (random_values(s, torch.float64, device).requires_grad_() for s in ((2, 4, 7), (4, 2, 3), (4,)))
    for function in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert function(lambda *t: cudamem_ops.conv1d(*t, 2, 1, 1, 2), (x, w, b), nondet_tol=1e-10)


def test_derivatives_of_complex_numbers(device):
    x, w, b = (random_values(s, torch.complex128, device).requires_grad_() for s in ((2, 4, 7), (4, 2, 3), (4,)))
    for function in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert function(lambda *t: cudamem_ops.conv1d(*t, 2, 1, 1, 2), (x, w, b), fast_mode=True, nondet_tol=1e-10)


@pytest.mark.parametrize("mask", [m for m in itertools.product((True, False), repeat=3) if any(m)], ids=str)
@pytest.mark.parametrize("config", ["stride, dilation, groups", "unbatched"])
def test_conv1d_backward_is_an_operator_with_derivatives(device, config, mask):
    x, w, _, args = make_for_derivatives(config, device)
    lists = ([args[0]], [args[1]], [args[2]], args[3])
    grad = random_values(F.conv1d(x, w, None, *args).shape, torch.float64, device).requires_grad_()

    def backward(grad, x, w):
        gradients = OPS.conv1d_backward(grad, x, w, *lists, list(mask))
        assert [g is not None for g in gradients] == list(mask)
        return tuple(g for g in gradients if g is not None)

    b = torch.zeros(len(w), dtype=torch.float64, device=device, requires_grad=True)
    wanted = [t for t, asked in zip((x, w, b), mask, strict=True) if asked]
    with poisoned_memory():
        got = backward(grad, x, w)
    for ours, theirs in zip(got, torch.autograd.grad(F.conv1d(x, w, b, *args), wanted, grad), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(backward, (grad, x, w), fast_mode=True, nondet_tol=1e-10)
    assert torch.autograd.gradgradcheck(backward, (grad, x, w), fast_mode=True, nondet_tol=1e-10)


@pytest.mark.parametrize(
    ("grad_shape", "grad_dtype", "message"),
    [
        ((2, 4, 5), torch.float32, r"grad_output of size \[2, 4, 6\], but got \[2, 4, 5\]"),
        ((4, 6), torch.float32, r"but got \[4, 6\]"),
        ((2, 4, 6), torch.float64, r"grad_output type \(Double\) and input type \(Float\)"),
    ],
)
def test_conv1d_backward_refuses_a_gradient_that_does_not_fit(device, grad_shape, grad_dtype, message):
    x, w = torch.ones(2, 3, 8, device=device), torch.ones(4, 3, 3, device=device)
    with pytest.raises(RuntimeError, match=message):
        OPS.conv1d_backward(
            torch.ones(grad_shape, dtype=grad_dtype, device=device), x, w, [1], [0], [1], 1, [True, True, True]
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
@pytest.mark.parametrize("config", ["depthwise", "many channels", "stride beyond the kernel"])
def test_gradient_of_any_layout(device, config, layout, dtype):
    x, w, args = make(config, dtype, device)
    b = random_values(w.shape[:1], dtype, device)
    ours = [t.clone().requires_grad_() for t in (x, w, b)]
    exact = [t.double().cpu().requires_grad_() for t in (x, w, b)]
    out = cudamem_ops.conv1d(*ours, *args)
    grad = GRAD_LAYOUTS[layout](random_values(out.shape, dtype, device))
    with poisoned_memory():
        got = torch.autograd.grad(out, ours, grad)
    want = torch.autograd.grad(F.conv1d(*exact, *args), exact, grad.double().cpu())
    for ours_grad, exact_grad in zip(got, want, strict=True):
        # A gradient sums up to batch * positions products; the scale is that of the largest one.
        scale = exact_grad.abs().max().clamp(min=1)
        assert_within(ours_grad, exact_grad, 64 * epsilon(dtype) * scale * torch.ones_like(exact_grad))


def test_gradients_through_a_graph_of_views(device):
    def gradients(conv, x, w, b):
        y = conv(x, w, b, 1, 1)
        loss = y.sum() + torch.cat([conv(x, w, b, 1, 1), 2 * y], 1)[:, ::3].pow(2).sum()
        loss = loss + conv(x, w, b, 1, 1).transpose(0, 2)[1].sin().sum()
        return torch.autograd.grad(loss, (x, w, b))

    tensors = [random_values(s, torch.float64, device).requires_grad_() for s in ((3, 4, 20), (4, 4, 3), (4,))]
    for got, want in zip(gradients(cudamem_ops.conv1d, *tensors), gradients(F.conv1d, *tensors), strict=True):
        torch.testing.assert_close(got, want)


TRANSFORMED = {
    "vmap": lambda f, *t: torch.vmap(f)(*(x.unsqueeze(0) for x in t)).squeeze(0),
    "vjp": lambda f, *t: torch.func.vjp(f, *t)[0],
    "jvp": lambda f, *t: torch.func.jvp(f, t, t)[0],
}
every_transform = pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED.keys())


@every_transform
@pytest.mark.parametrize("shapes", [((1, 0, 8), (3, 0, 3)), ((0, 2, 8), (3, 2, 3)), ((1, 2, 0), (3, 2, 3))], ids=str)
def test_nothing_to_convolve_under_transforms(device, transform, shapes):
    x, w = (torch.ones(s, device=device) for s in shapes)
    b = torch.arange(3.0, device=device)
    call = lambda *t: cudamem_ops.conv1d(*t, padding=2)  # noqa: E731
    got, want = transform(call, x, w, b), call(x, w, b)
    assert torch.equal(got, want)
    assert torch.equal(want, b.view(3, 1).expand_as(want))
    assert torch.equal(torch.func.grad(lambda b: call(x, w, b).sum())(b), torch.full_like(b, want[:, 0].numel()))


@every_transform
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 1, 0, 1, 0), "groups=0"),
        ((None, 1, 0, 2**63 - 1, 2), "dilation="),
        ((torch.ones(1), 1, 0, 1, 2), r"bias of size \[1\]"),
        ((None, 1, "valid", 1, 0), "groups=0"),
    ],
)
def test_bad_input_is_refused_under_transforms(device, transform, arguments, message):
    bias, *rest = arguments
    x, w = torch.ones(2, 4, 12, device=device), torch.ones(6, 2, 3, device=device)
    b = None if bias is None else bias.to(device)
    with pytest.raises(RuntimeError, match=message):
        transform(lambda *t: cudamem_ops.conv1d(*t, b, *rest), x, w)


@pytest.mark.parametrize(
    ("dilation", "message"),
    [(-4, "dilation is not supported, got dilation=-4"), (2**62, f"dilation=(?={2**62})")],
)
def test_same_padding_names_the_dilation_that_it_refuses(device, dilation, message):
    x, w = torch.ones(2, 4, 12, device=device), torch.ones(6, 2, 3, device=device)
    with pytest.raises(RuntimeError, match=message):
        cudamem_ops.conv1d(x, w, None, 1, "same", dilation, 2)


def odd_strides(shape, device):
    """Contiguous as torch sees it, with another stride on each dim of size 1."""
    x = torch.randn(shape, device=device)
    strides = [stride if size > 1 else stride + 5 for size, stride in zip(shape, x.stride(), strict=True)]
    return x.as_strided(shape, strides)


@pytest.mark.parametrize("shapes", [((2, 1, 9), (1, 1, 4)), ((12, 9), (1, 12, 3)), ((1, 12, 9), (10, 12, 1))], ids=str)
def test_strides_are_those_of_a_new_tensor(device, shapes):
    layouts = [lambda s: odd_strides(s, device), lambda s: torch.randn(*s, 2, device=device)[..., 0]]
    layouts.append(lambda s: torch.randn(*s[:-2], s[-1], s[-2], device=device).transpose(-1, -2))
    for of_x, of_w in itertools.product(layouts, repeat=2):
        x, w = of_x(shapes[0]).requires_grad_(), of_w(shapes[1]).requires_grad_()
        out = cudamem_ops.conv1d(x, w)
        gradients = OPS.conv1d_backward(out.detach(), x.detach(), w.detach(), [1], [0], [1], 1, [True] * 3)
        for t in (out, *gradients):
            assert t.stride() == torch.empty(t.shape).stride()


def test_backward_operator_is_differentiable_in_every_mode(device):
    x, w = (
        torch.randn(2, 4, 12, dtype=torch.float64, device=device),
        torch.randn(6, 2, 3, dtype=torch.float64, device=device),
    )
    g = torch.randn(2, 6, 10, dtype=torch.float64, device=device)
    arguments = ([1], [0], [1], 2)
    ours = lambda *t: OPS.conv1d_backward(*t, *arguments, [True] * 3)  # noqa: E731
    aten = lambda *t: torch.ops.aten.convolution_backward(*t, [6], *arguments[:3], False, [0], 2, [True] * 3)  # noqa: E731
    tangents = tuple(torch.randn_like(t) for t in (g, x, w))
    torch.testing.assert_close(torch.func.jvp(ours, (g, x, w), tangents), torch.func.jvp(aten, (g, x, w), tangents))
    loss = lambda f: lambda *t: sum((o**2).sum() for o in f(*t))  # noqa: E731
    for got, want in zip(*(torch.func.grad(loss(f), (0, 1, 2))(g, x, w) for f in (ours, aten)), strict=True):
        torch.testing.assert_close(got, want)


def test_second_derivatives_keep_their_precision_under_autocast(device):
    tensors = [torch.randn(s, device=device) for s in ((2, 4, 12), (6, 2, 3), (6,))]

    def second(conv, dtype, autocast):
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        y = conv(*leaves, 1, 0, 1, 2)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            first = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True)
            return torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)

    exact = second(F.conv1d, torch.float64, False)
    for got, want in zip(second(cudamem_ops.conv1d, torch.float32, True), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4 * want.abs().max().item())


@pytest.mark.parametrize(
    ("grad_shape", "groups", "message"),
    [((2, 6, 9), 2, r"grad_output of size \[2, 6, 10\]"), ((2, 6), 2, "but got"), ((2, 6, 10), 0, "groups=0")],
)
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_backward_is_refused_on_meta_as_elsewhere(where, grad_shape, groups, message):
    g, x, w = (torch.ones(s, device=where) for s in (grad_shape, (2, 4, 12), (6, 2, 3)))
    with pytest.raises(RuntimeError, match=message):
        OPS.conv1d_backward(g, x, w, [1], [0], [1], groups, [True] * 3)


@pytest.mark.large(gib=24)
@every_kernel
@pytest.mark.parametrize("shape", [(1, 1, 2**31 + 77), (3, 1, 2**30), (2**25 + 3, 1, 64)], ids=str)
def test_more_than_2_to_the_31_elements(device, variant, shape):
    x = torch.empty(shape, dtype=torch.float16, device=device).normal_()
    w = random_bank((1, 1, 5), torch.float16, device)
    if is_refused(variant, x, w):
        assert variant == "flat" or shape[2] > 2**30
        return
    got = cudamem_ops.conv1d(x, w, variant=variant)
    assert got.shape == (shape[0], 1, shape[2] - 4)
    for signal in (0, shape[0] // 2, shape[0] - 1):
        for start in (0, got.size(2) // 2, got.size(2) - 30):
            window = x[signal, :, start : start + 34]
            want = reference(window, w)
            assert_within(got[signal, :, start : start + 30], want, bound(window, w, None, want, (), roundings=1))


@pytest.mark.large(gib=24)
@pytest.mark.parametrize("variant", [None, "tiled", "global"])
def test_more_than_2_to_the_32_signals(cuda, variant):
    x, w = torch.zeros(2**29 + 1, 1, 1, device=cuda), torch.arange(1.0, 9.0, device=cuda).view(8, 1, 1)
    x[-1] = 3
    got = cudamem_ops.conv1d(x, w, variant=variant)
    assert (got[-1] == 3 * w[:, :, 0]).all()
    assert (got[0] == 0).all()


@pytest.mark.large(gib=16)
@every_kernel
def test_offsets_beyond_2_to_the_31(device, variant):
    memory = torch.empty(2**32 + 4096, dtype=torch.float16, device=device).normal_()
    w = random_bank((2, 1, 5), torch.float16, device)
    for strides in ((2**31 + 7, 40, 1), (40, 2**31 + 7, 1), (40, 100, 2**26)):
        x = memory.as_strided((2, 2, 40), strides)
        check(x, w, None, 1, 2, 1, 2, variant)


# Constant memory is one for a whole device. What follows would fail if two calls that run at once shared a place in it.


@pytest.mark.without_sanitizer
@every_kernel
def test_threads_and_streams_with_different_filters(device, variant):
    """10,000 calls by 16 threads, and the host waits for none of them."""
    x = torch.ones(8, 1, 4096, device=device)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()

    def count_wrong(i):
        with torch.cuda.stream(streams[i % 4]):
            w = torch.full((1, 1, 5), float(i), device=device)
            return sum((cudamem_ops.conv1d(x, w, variant=variant) != 5.0 * i).sum() for _ in range(625))

    torch.cuda.set_sync_debug_mode("error")
    try:
        with ThreadPoolExecutor(16) as pool:
            wrong = list(pool.map(count_wrong, range(1, 17)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert [count.item() for count in wrong] == [0] * 16


@every_kernel
def test_filters_of_many_sizes_at_once(device, variant):
    """More bytes than constant memory has are in flight, on streams of which some are late."""
    streams = [torch.cuda.Stream() for _ in range(6)]
    x = torch.ones(1, 1, 40_000, device=device)
    sizes = [5, 1000, 1024, 1025, 4096, 5000, 16_384, 3, 12_000, 8192, 16_383, 1]
    filters = [torch.full((1, 1, taps), (i + 1) / 16, device=device) for i, taps in enumerate(sizes * 4)]
    torch.cuda.synchronize()
    results = []
    for i, w in enumerate(filters):
        with torch.cuda.stream(streams[i % len(streams)]):
            if i % 7 == 0:
                torch.cuda._sleep(2_000_000)
            chosen = None if is_refused(variant, x, w, 64) else variant
            results.append(cudamem_ops.conv1d(x, w, stride=64, variant=chosen))
    torch.cuda.synchronize()
    for w, result in zip(filters, results, strict=True):
        assert (result == w.sum()).all()  # sixteenths add up exactly


captured_kernels = pytest.mark.parametrize("variant", [None, "global", "readonly", "shared", "flat", "tiled"])


@pytest.mark.without_sanitizer
@captured_kernels
@pytest.mark.parametrize("taps", [3, 20_000])
def test_a_replay_uses_the_weights_of_its_time(cuda, variant, taps):
    x, w = torch.ones(4, 1, taps + 61, device=cuda), torch.ones(1, 1, taps, device=cuda)
    if is_refused(variant, x, w):
        return
    graph, out = capture(lambda: cudamem_ops.conv1d(x, w, variant=variant))
    for value in (2.0, 5.0):
        w.fill_(value)
        cudamem_ops.conv1d(x, torch.full_like(w, 99.0))
        graph.replay()
        torch.cuda.synchronize()
        assert (out == taps * value).all()


@pytest.mark.without_sanitizer
@captured_kernels
def test_two_graphs_and_an_eager_call_at_once(cuda, variant):
    x = torch.ones(64, 1, 4096, device=cuda)
    weights = [torch.full((1, 1, 5), value, device=cuda) for value in (1.0, 2.0, 3.0)]

    def several(w):  # long enough to overlap
        return [cudamem_ops.conv1d(x, w, variant=variant) for _ in range(20)]

    graphs = [capture(lambda w=w: several(w)) for w in weights[:2]]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(20):
        for (graph, outs), stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                for out in outs:
                    out.zero_()
                graph.replay()
        with torch.cuda.stream(streams[2]):
            eager = several(weights[2])
        torch.cuda.synchronize()
        for outs, w in zip((graphs[0][1], graphs[1][1], eager), weights, strict=True):
            assert all((out == w.sum()).all() for out in outs)


@pytest.mark.without_sanitizer
@pytest.mark.parametrize("variant", ["constant", "parameter"])
def test_constant_memory_is_refused_during_capture(cuda, variant):
    x, w = torch.ones(1, 1, 64, device=cuda), torch.ones(1, 1, 3, device=cuda)
    refused = []

    def attempt():
        try:
            cudamem_ops.conv1d(x, w, variant=variant)
        except RuntimeError as error:
            refused.append(str(error))
        return cudamem_ops.conv1d(x, w)  # the capture goes on

    graph, out = capture(attempt)
    assert len(refused) == 1  # not in the warm-up
    assert f"variant '{variant}' cannot be used here" in refused[0]
    assert "captured" in refused[0]
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 3).all()


@every_kernel
def test_two_gpus_at_once(two_gpus, device, variant):
    jobs = []
    for i in range(40):
        for gpu in two_gpus:
            x = torch.ones(8, 1, 4096, device=gpu)
            w = torch.full((1, 1, 5), float(i + 1), device=gpu)
            jobs.append((cudamem_ops.conv1d(x, w, variant=variant), 5.0 * (i + 1), gpu))
    for out, want, gpu in jobs:
        assert str(out.device) == gpu
        assert (out == want).all()
