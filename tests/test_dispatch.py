"""What every operator and overload promises torch: tracing, compiling, transforms, streams, devices."""

import copy
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from helpers import (
    GRAD_LAYOUTS,
    HALVES,
    OPS,
    assert_fresh,
    assert_same_bits,
    capture,
    each_variant,
    random_values,
    total_variants,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import cudamem_ops


def transpose_twin(x, dim0, dim1):
    return x.transpose(dim0, dim1).contiguous()


def backward_twin(grad, x, w, stride, padding, dilation, groups, mask):
    return torch.ops.aten.convolution_backward(
        grad, x, w, [len(w)], stride, padding, dilation, False, [0], groups, mask
    )


pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel lengths", "ignore:`torch.jit:DeprecationWarning"
)


class Call(NamedTuple):
    """One way to call an operator: with tensors of these shapes, then these arguments."""

    op: Callable[..., object]
    twin: Callable[..., object]
    shapes: tuple[tuple[int, ...], ...]
    rest: tuple[object, ...]

    def tensors(self, device, dtype=torch.float32, *, grown=0, requires_grad=False):
        """`grown` makes the first tensor's first dim longer."""
        shapes = [(self.shapes[0][0] + grown, *self.shapes[0][1:]), *self.shapes[1:]]
        if grown and self.name == "conv1d_backward":
            shapes[1] = (shapes[1][0] + grown, *shapes[1][1:])
        return tuple(random_values(s, dtype, device).requires_grad_(requires_grad) for s in shapes)

    @property
    def name(self):
        op = self.op.func if isinstance(self.op, partial) else self.op
        return op._schema.name.removeprefix("cudamem::")

    def __call__(self, *tensors):
        return self.op(*tensors, *self.rest)

    def expected(self, *tensors):
        return self.twin(*tensors, *self.rest)


BANK = ((2, 4, 33), (4, 1, 5), (4,))  # a depthwise bank: the project's own kernels
DENSE = ((2, 12, 33), (10, 12, 3), (10,))  # at::conv1d
CALLS = {
    "transpose": Call(OPS.transpose.default, transpose_twin, ((3, 5, 7),), (0, -1)),
    "transpose of nothing": Call(OPS.transpose.default, transpose_twin, ((3, 5, 7),), (1, 1)),
    "sum": Call(OPS.sum.default, torch.sum, ((3, 5, 7),), ([0, -1], True)),
    "sum of all": Call(OPS.sum.default, torch.sum, ((3, 5, 7),), ()),
    "conv1d": Call(OPS.conv1d.default, F.conv1d, BANK, ([2], [3], [1], 4)),
    "conv1d, dense": Call(OPS.conv1d.default, F.conv1d, DENSE, ([1], [1], [1], 1)),
    "conv1d, no bias": Call(OPS.conv1d.default, F.conv1d, BANK[:2], (None, [1], [0], [2], 4)),
    "conv1d.int": Call(OPS.conv1d.int, F.conv1d, BANK, (2, 3, 1, 4)),
    "conv1d.padding": Call(OPS.conv1d.padding, F.conv1d, BANK, ([1], "same", [3], 4)),
    "conv1d.padding, odd": Call(OPS.conv1d.padding, F.conv1d, (BANK[0], (4, 1, 4), (4,)), ([1], "same", [1], 4)),
    "conv1d.padding_int": Call(OPS.conv1d.padding_int, F.conv1d, BANK, (2, "valid", 1, 4)),
    "conv1d_backward": Call(
        OPS.conv1d_backward.default,
        backward_twin,
        ((2, 4, 18), (2, 4, 33), (4, 1, 5)),
        ([2], [3], [1], 4, [True, True, True]),
    ),
}
for overload, base in {
    "transpose.variant": CALLS["transpose"],
    "sum.variant": CALLS["sum"],
    "conv1d.variant": CALLS["conv1d"],
    "conv1d.variant_int": CALLS["conv1d.int"],
}.items():
    op, name = overload.split(".")
    for variant in total_variants(op):
        bound_op = partial(getattr(getattr(OPS, op), name), variant=variant)
        CALLS[f"{overload} {variant}"] = base._replace(op=bound_op)

every_call = pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in CALLS.items()])
FORWARD = {name: call for name, call in CALLS.items() if call.name != "conv1d_backward"}
every_forward_call = pytest.mark.parametrize("call", [pytest.param(c, id=name) for name, c in FORWARD.items()])


def close(got, want):
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5)


def test_every_overload_is_tried_here():
    tried = {c.op.func if isinstance(c.op, partial) else c.op for c in CALLS.values()}
    names = [name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("cudamem::")]
    packets = [getattr(OPS, name) for name in {name.split(".")[0] for name in names} - {"transpose_"}]
    assert tried == {getattr(packet, overload) for packet in packets for overload in packet.overloads()}


@every_call
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(device, call, requires_grad):
    tensors = call.tensors(device, requires_grad=requires_grad)
    op, kwargs = (call.op.func, call.op.keywords) if isinstance(call.op, partial) else (call.op, {})
    torch.library.opcheck(op, (*tensors, *call.rest), kwargs, rtol=2e-4, atol=2e-5)


@every_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equals_the_twin(device, call, dtype):
    tensors = call.tensors(device, dtype)
    got, want = call(*tensors), call.expected(*tensors)
    close(got, want)
    for out in pytree.tree_leaves(got):
        assert_fresh(out, *tensors)


@every_call
@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_fake_tensors_foretell_shape_strides_and_dtype(device, call, layout):
    tensors = [GRAD_LAYOUTS[layout](t) for t in call.tensors(device, torch.float64)]
    real = pytree.tree_leaves(call(*tensors))
    with FakeTensorMode() as mode:
        fake = pytree.tree_leaves(call(*(mode.from_tensor(t) for t in tensors)))
    meta = pytree.tree_leaves(call(*(t.to("meta") for t in tensors)))
    for r, f, m in zip(real, fake, meta, strict=True):
        assert (f.shape, f.stride(), f.dtype, f.device) == (r.shape, r.stride(), r.dtype, r.device)
        assert (m.shape, m.stride(), m.dtype) == (r.shape, r.stride(), r.dtype)


def test_the_meta_device_needs_no_memory():
    x = torch.empty(2**20, 2**20, 2**10, device="meta")
    assert OPS.transpose(x, 0, 2).shape == (2**10, 2**20, 2**20)
    assert OPS.sum(x, [0]).shape == (2**20, 2**10)
    assert OPS.conv1d(x, torch.empty(3, 2**20, 5, device="meta")).shape == (2**20, 3, 2**10 - 4)


def outputs_and_gradients(function, tensors):
    out = function(*tensors)
    leaves = pytree.tree_leaves(out)
    weights = [torch.linspace(1, 2, t.numel(), device=t.device, dtype=t.dtype).view(t.shape) for t in leaves]
    loss = sum((t * w).sum() for t, w in zip(leaves, weights, strict=True))
    return leaves, torch.autograd.grad(loss, tensors)


@every_call
def test_compiled_once_for_all_sizes_equals_eager(device, call):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *t: call(*t), backend=counter, fullgraph=True, dynamic=True)
    for grown in (0, 1, 6):
        tensors = call.tensors(device, grown=grown, requires_grad=True)
        close(outputs_and_gradients(compiled, tensors), outputs_and_gradients(call.expected, tensors))
    assert counter.frame_count == 1


VIEWED = {
    "transpose": lambda x, w: OPS.transpose(x.permute(2, 0, 1), 0, 2),
    "transpose, odd strides": lambda x, w: OPS.transpose(x[:, :1].as_strided((4, 1, 8), (56, 1, 1)), 1, 2),
    "sum": lambda x, w: OPS.sum(x.permute(2, 0, 1), [1]),
    "conv1d": lambda x, w: OPS.conv1d(x.transpose(1, 2), w, None, 1, 2, 1, 8),
}


@pytest.mark.parametrize("viewed", VIEWED)
def test_compiled_equals_eager_on_views(device, viewed):
    torch._dynamo.reset()
    tensors = tuple(random_values(s, torch.float32, device).requires_grad_() for s in ((4, 7, 8), (8, 1, 3)))
    tensors = tensors if "conv" in viewed else (tensors[0], tensors[1].detach())
    compiled = torch.compile(VIEWED[viewed], backend="aot_eager", fullgraph=True)
    got, want = compiled(*tensors), VIEWED[viewed](*tensors)
    assert got.stride() == want.stride()
    close(got, want)
    wanted = [t for t in tensors if t.requires_grad]
    close(torch.autograd.grad(got.sum(), wanted), torch.autograd.grad(want.sum(), wanted))


def test_the_documented_functions_compile(device):
    def model(x, w):
        y = cudamem_ops.conv1d(x, w, padding="same") + cudamem_ops.conv1d(x, w, None, 1, 1, variant="shared")
        y = cudamem_ops.transpose(y, 0, -1) * cudamem_ops.transpose(x[:, :1], 0, 2, variant="naive")
        return cudamem_ops.sum(y, 0) - cudamem_ops.sum(y, [1], dtype=torch.float64, variant="two_launches").sum()

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    tensors = [random_values(s, torch.float32, device).requires_grad_() for s in ((2, 3, 20), (4, 3, 3))]
    close(outputs_and_gradients(compiled, tensors), outputs_and_gradients(model, tensors))


class Model(torch.nn.Module):
    """Input (batch, length, 3): each operator once."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3, 3))

    def forward(self, x):
        return cudamem_ops.sum(cudamem_ops.conv1d(cudamem_ops.transpose(x, 1, 2), self.weight), 2)


@pytest.mark.slow
def test_inductor(device):
    torch._dynamo.reset()
    model = Model().to(device)
    x = random_values((4, 40, 3), torch.float32, device).requires_grad_()
    compiled = torch.compile(model, fullgraph=True)
    got, want = compiled(x), model(x)
    close(got, want)
    wanted = (x, model.weight)
    close(torch.autograd.grad(got.sin().sum(), wanted), torch.autograd.grad(want.sin().sum(), wanted))


DEFAULTS = {OPS.transpose.default, OPS.conv1d.default, OPS.sum.default}


def test_the_documented_functions_are_traced(device):
    model = Model().to(device)
    traced = torch.jit.trace(model, torch.ones(2, 30, 3, device=device))
    assert {op._schema.name for op in DEFAULTS} <= {node.kind() for node in traced.graph.nodes()}
    x = random_values((4, 20, 3), torch.float32, device)
    close(traced(x), model(x))


def test_torch_function_sees_the_documented_functions(device):
    seen = []

    class Record(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Tagged(torch.Tensor):
        pass

    model, x = Model().to(device), random_values((4, 20, 3), torch.float32, device)
    with Record():
        close(model(x), model(x))
    assert set(seen) >= DEFAULTS
    assert type(model(x.as_subclass(Tagged))) is Tagged
    assert type(model(x)) is torch.Tensor


@pytest.mark.parametrize("wrong", ["x", [1.0], None])
def test_what_is_no_tensor_is_a_type_error(wrong):
    weight = torch.ones(1, 1, 3)
    for call in (cudamem_ops.transpose, cudamem_ops.sum, lambda x: cudamem_ops.conv1d(x, weight)):
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            call(wrong)


def test_warnings_are_python_s(request):
    request.addfinalizer(partial(torch.set_warn_always, torch.is_warn_always_enabled()))
    torch.set_warn_always(True)  # also one that torch gives only once
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        cudamem_ops.sum(torch.ones(2, dtype=torch.complex64), dtype=torch.float32)


@pytest.mark.parametrize("number", [np.int64, torch.tensor], ids=["NumPy", "torch"])
def test_integers_of_any_kind(number):
    x, w = random_values((2, 4, 20), torch.float32, "cpu"), random_values((4, 1, 3), torch.float32, "cpu")
    one, two, four = number(1), number(2), number(4)
    want = F.conv1d(x, w, None, 2, 1, 2, 4)
    close(cudamem_ops.conv1d(x, w, None, two, one, two, four), want)
    close(cudamem_ops.conv1d(x, w, None, [two], [one], (two,), four), want)
    close(cudamem_ops.conv1d(x, w, None, range(2, 3), deque([1]), 2, 4), want)
    close(cudamem_ops.sum(x, one), x.sum(1))
    close(cudamem_ops.sum(x, [one, two]), x.sum([1, 2]))
    close(cudamem_ops.transpose(x, one, two), x.transpose(1, 2))


@pytest.mark.parametrize("number", [1.5, np.float32(1.5), torch.tensor(1.5)], ids=["Python", "NumPy", "torch"])
def test_what_is_no_integer_is_a_type_error(number):
    x, w = torch.ones(2, 4, 20), torch.ones(4, 4, 3)
    for call in (
        lambda: cudamem_ops.sum(x, number),
        lambda: cudamem_ops.sum(x, [number]),
        lambda: cudamem_ops.transpose(x, number, 0),
        lambda: cudamem_ops.conv1d(x, w, None, number),
        lambda: cudamem_ops.conv1d(x, w, None, [number]),
    ):
        with pytest.raises(TypeError):
            call()


@every_call
def test_traced_with_symbolic_sizes(device, call):
    graph = make_fx(lambda *t: call(*t), tracing_mode="symbolic")(*call.tensors(device))
    for grown in (0, 5):
        tensors = call.tensors(device, grown=grown)
        close(graph(*tensors), call(*tensors))


RUN_EXPORTED = """
import sys, torch, cudamem_ops
model = torch.export.load(sys.argv[1]).module()
print(model(torch.ones(2, 30, 3, device=sys.argv[2])).flatten().tolist())
"""


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_exported_with_dynamic_sizes_and_run_by_a_fresh_process(device, tmp_path, decomposed):
    x = torch.ones(4, 9, 3, device=device)
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", min=4, max=4096)
    program = torch.export.export(Model().to(device), (x,), dynamic_shapes=({0: batch, 1: length},))
    if decomposed:
        program = program.run_decompositions()
    file = tmp_path / "model.pt2"
    torch.export.save(program, file)
    printed = subprocess.run(
        [sys.executable, "-c", RUN_EXPORTED, str(file), device],
        cwd=Path(cudamem_ops.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(printed) == [9.0 * 28] * 4  # 9 products for each of 30 - 2 outputs


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_autocast_casts_as_it_does_for_torch(device, dtype):
    x = random_values((2, 4, 32), torch.float32, device).requires_grad_()
    w = random_values((6, 4, 3), torch.float32, device).requires_grad_()
    b = random_values((6,), torch.float32, device)
    names = [None, *total_variants("conv1d"), "parameter"]
    with torch.autocast(device, dtype):
        for given in (x, x.to(dtype)):
            want = F.conv1d(given, w, b)
            for variant in names:
                got = cudamem_ops.conv1d(given, w, b, variant=variant)
                assert got.dtype == want.dtype == dtype
                torch.testing.assert_close(got, want, rtol=2e-2, atol=5e-2)
        for given in (x, x.to(dtype), x.double(), x.to(torch.int32)):
            for out in (None, dtype, torch.float64):
                got, want = cudamem_ops.sum(given, 0, dtype=out), torch.sum(given, 0, dtype=out)
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want, rtol=2e-2, atol=5e-2)
            assert OPS.transpose(given).dtype == given.dtype
        loss = cudamem_ops.conv1d(x, w, b).float().sum()
    loss.backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32


def stacked(tensors):
    return tuple(torch.stack([t, t.flip(0), 2 * t]) for t in tensors)


@every_forward_call
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap(device, call):
    batches = stacked(call.tensors(device))
    got = torch.vmap(call)(*batches)
    want = torch.stack([call.expected(*one) for one in zip(*batches, strict=True)])
    close(got, want)
    # The first tensor alone, along another dim.
    in_dims = (1, *[None] * (len(batches) - 1))
    moved = (batches[0].movedim(0, 1), *(t[0] for t in batches[1:]))
    want = torch.stack([call.expected(one, *moved[1:]) for one in batches[0]])
    close(torch.vmap(call, in_dims)(*moved), want)


@every_forward_call
def test_forward_mode(device, call):
    primals, tangents = call.tensors(device, torch.float64), call.tensors(device, torch.float64)
    close(torch.func.jvp(call, primals, tangents), torch.func.jvp(call.expected, primals, tangents))
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(p, t) for p, t in zip(primals, tangents, strict=True)]
        got, want = (torch.autograd.forward_ad.unpack_dual(f(*duals)) for f in (call, call.expected))
        close(got.primal, want.primal)
        close(got.tangent, want.tangent)


@every_forward_call
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_func_transforms(device, call):
    tensors = call.tensors(device, torch.float64)
    everything = tuple(range(len(tensors)))

    def loss(function):
        return lambda *t: function(*t).pow(3).sum()

    close(*(torch.func.grad(loss(f), everything)(*tensors) for f in (call, call.expected)))
    close(*(torch.vmap(torch.func.grad(loss(f), everything))(*stacked(tensors)) for f in (call, call.expected)))
    # With respect to the last and smallest tensor.
    last = len(tensors) - 1
    close(*(torch.func.hessian(loss(f), last)(*tensors) for f in (call, call.expected)))
    close(*(torch.func.jacrev(f, last)(*tensors) for f in (call, call.expected)))


@every_call
def test_second_derivatives(device, call):
    tensors = call.tensors(device, torch.float64, requires_grad=True)

    def twice(function):
        loss = sum(t.pow(3).sum() for t in pytree.tree_leaves(function(*tensors)))
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), tensors)

    close(twice(call), twice(call.expected))


@every_call
def test_grad_modes(device, call):
    tensors = call.tensors(device, requires_grad=True)
    want = [t.detach() for t in pytree.tree_leaves(call(*tensors))]
    assert all(t.requires_grad for t in pytree.tree_leaves(call(*tensors)))
    with torch.no_grad():
        quiet = pytree.tree_leaves(call(*tensors))
    with torch.inference_mode():
        inference = pytree.tree_leaves(call(*tensors))
    assert not any(t.requires_grad for t in (*quiet, *inference))
    assert all(t.is_inference() for t in inference)
    close(quiet, want)
    close([t.clone() for t in inference], want)


def test_a_deep_copy_of_a_module_is_independent(device):
    model = Model().to(device)
    twin = copy.deepcopy(model)
    x = torch.ones(2, 30, 3, device=device)
    before = model(x)
    with torch.no_grad():
        twin.weight.mul_(2)
    assert_same_bits(model(x), before)
    assert_same_bits(twin(x), 2 * before)


# Streams, graphs and devices.


@every_call
def test_on_the_current_stream_behind_a_late_producer(cuda, call):
    sources = call.tensors(cuda)
    want = call(*sources)
    tensors = [torch.zeros_like(t) for t in sources]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for t, source in zip(tensors, sources, strict=True):
            t.copy_(source)
        got = call(*tensors)
    stream.synchronize()
    close(got, want)


@every_call
def test_the_host_never_waits(cuda, call):
    tensors = call.tensors(cuda, requires_grad=True)
    outputs_and_gradients(call, tensors)  # what is set up once may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs_and_gradients(call, tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "call", [pytest.param(call, id=name) for name, call in CALLS.items() if not name.endswith("constant")]
)
def test_captured_in_a_graph(cuda, call):
    tensors = call.tensors(cuda)
    graph, got = capture(lambda: call(*tensors))
    for _ in range(2):
        for t in tensors:
            t.normal_()
        graph.replay()
        close(got, call.expected(*tensors))


@every_call
def test_on_a_device_that_is_not_the_current_one(two_gpus, call):
    first, second = two_gpus
    torch.cuda.set_device(first)
    tensors = call.tensors(second, torch.float64, requires_grad=True)
    got, want = (outputs_and_gradients(f, tensors) for f in (call, call.expected))
    close(got, want)
    assert all(str(t.device) == second for t in (*got[0], *got[1]))
    assert torch.cuda.current_device() == 0


@each_variant("conv1d")
@pytest.mark.parametrize("moved", ["input", "weight", "bias"])
@pytest.mark.parametrize("to", ["meta", "the other device"])
def test_mixed_devices_are_refused_by_name(device, variant, moved, to):
    if to == "the other device":
        if device == "cpu":
            pytest.skip("tried the other way around, on CUDA")
        to = "cpu"
    tensors = {"input": torch.ones(1, 2, 8), "weight": torch.ones(3, 2, 3), "bias": torch.ones(3)}
    tensors = {name: t.to(to if name == moved else device) for name, t in tensors.items()}
    with pytest.raises(RuntimeError, match=f"{moved} on {to}"):
        cudamem_ops.conv1d(**tensors, variant=variant)
    if device == "cuda":
        torch.cuda.synchronize()
        assert torch.ones(3, device=device).sum().item() == 3


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_mixed_devices_are_refused_by_conv1d_backward(device, moved):
    tensors = [torch.ones(1, 3, 6), torch.ones(1, 2, 8), torch.ones(3, 2, 3)]
    tensors = [t.to("meta" if i == moved else device) for i, t in enumerate(tensors)]
    with pytest.raises(RuntimeError, match=f"{('grad_output', 'input', 'weight')[moved]} on meta"):
        OPS.conv1d_backward(*tensors, [1], [0], [1], 1, [True, True, True])
