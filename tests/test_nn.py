"""cudamem_ops.nn: torch.nn's layers, with the operators inside."""

import copy
import io
import itertools

import pytest
import torch
from helpers import assert_examples_hold, assert_same_bits, random_values, started_on_gpu

from cudamem_ops.nn import Conv1d, convert

PADDINGS = [0, 2, "valid", "same"]
MODES = ["zeros", "reflect", "replicate", "circular"]
BANKS = {
    "one filter": (1, 1, 1),
    "depthwise": (6, 6, 6),
    "few channels": (4, 8, 1),
    "dense": (16, 24, 1),
    "groups": (8, 12, 4),
}


def twins(device, bank, **arguments):
    """torch's layer and ours, with the same parameters."""
    c_in, c_out, groups = BANKS[bank]
    theirs = torch.nn.Conv1d(c_in, c_out, 5, groups=groups, device=device, **arguments)
    ours = Conv1d(c_in, c_out, 5, groups=groups, device=device, **arguments)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("bank", BANKS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_equals_the_layer_of_torch(device, bank, mode, padding):
    for bias, dilation, batch in itertools.product((False, True), (1, 2), ((), (3,))):
        theirs, ours = twins(device, bank, padding=padding, padding_mode=mode, bias=bias, dilation=dilation)
        x = random_values((*batch, theirs.in_channels, 40), torch.float32, device)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        want, got = theirs(a), ours(b)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        grad = random_values(want.shape, torch.float32, device)
        wanted = torch.autograd.grad(want, (a, *theirs.parameters()), grad)
        grads = torch.autograd.grad(got, (b, *ours.parameters()), grad)
        torch.testing.assert_close(grads, wanted, rtol=1e-3, atol=1e-3)


def test_a_drop_in():
    torch.manual_seed(3)
    theirs = torch.nn.Conv1d(4, 6, (3,), stride=2, padding=1, padding_mode="reflect", dtype=torch.float64)
    torch.manual_seed(3)
    ours = Conv1d(4, 6, (3,), stride=2, padding=1, padding_mode="reflect", dtype=torch.float64)
    assert isinstance(ours, torch.nn.Conv1d)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight", "bias"]
    assert_same_bits(ours.weight, theirs.weight)
    assert_same_bits(ours.bias, theirs.bias)
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("arguments", [{"padding_mode": "mirror"}, {"groups": 3}, {"padding": "full"}], ids=str)
def test_errors_are_those_of_torch(arguments):
    with pytest.raises(ValueError, match=r".") as wanted:
        torch.nn.Conv1d(4, 6, 3, **arguments)
    with pytest.raises(ValueError, match=r".") as got:
        Conv1d(4, 6, 3, **arguments)
    assert str(got.value) == str(wanted.value)


class Custom(torch.nn.Conv1d):
    pass


def make_model():
    shared = torch.nn.Conv1d(1, 4, 7)
    return torch.nn.ModuleDict(
        {
            "single": shared,
            "again": shared,
            "depthwise": torch.nn.Conv1d(32, 64, 31, groups=32),
            "few": torch.nn.Conv1d(8, 8, 16),
            "many_taps": torch.nn.Conv1d(8, 8, 17),
            "many_outputs": torch.nn.Conv1d(2, 9, 3),
            "grouped": torch.nn.Conv1d(8, 32, 3, groups=4),
            "complex": torch.nn.Conv1d(1, 1, 3, dtype=torch.complex64),
            "custom": Custom(1, 1, 3),
            "parametrized": torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(1, 1, 3)),
            "nested": torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Conv1d(3, 3, 3, groups=3)),
            "image": torch.nn.Conv2d(1, 1, 3),
        }
    )


def test_convert_changes_the_layers_that_gain_and_names_them():
    model = make_model()
    state, parameters = copy.deepcopy(model.state_dict()), [id(p) for p in model.parameters()]
    gaining = ["single", "depthwise", "few", "grouped", "nested.1"]
    assert convert(model) == gaining
    assert [name for name, layer in model.named_modules() if type(layer) is Conv1d] == gaining
    assert model["again"] is model["single"]
    assert [id(p) for p in model.parameters()] == parameters
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert convert(model) == []


def test_convert_takes_a_single_layer():
    layer = torch.nn.Conv1d(1, 1, 3)
    assert convert(layer) == [""]
    assert type(layer) is Conv1d
    assert convert(torch.nn.Linear(3, 3)) == []


def test_a_converted_model_computes_the_same_and_keeps_its_hooks(device):
    model = torch.nn.Sequential(
        torch.nn.Conv1d(6, 6, 5, groups=6, padding="same"), torch.nn.GELU(), torch.nn.Conv1d(6, 40, 9)
    ).to(device)
    seen = []
    model[0].register_forward_hook(lambda layer, inputs, output: seen.append(output.shape))
    x = random_values((2, 6, 50), torch.float32, device)
    want = model(x)
    assert convert(model) == ["0"]
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-4)
    assert seen == [(2, 6, 50)] * 2


def test_a_layer_is_saved_copied_and_compiled(device):
    layer = Conv1d(3, 3, 5, groups=3, padding=2, padding_mode="circular").to(device)
    x = random_values((2, 3, 30), torch.float32, device)
    want = layer(x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is Conv1d
    assert_same_bits(loaded(x), want)
    assert_same_bits(copy.deepcopy(layer)(x), want)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), want)


def test_the_rule_of_convert_is_the_operators_own(cuda):
    """The operator takes a kernel of its own exactly where convert swaps: its kernels' names start with conv1d_."""
    for c_in, c_out, groups, taps in [
        (1, 40, 1, 3),
        (4, 64, 4, 50),
        (8, 8, 1, 16),
        (8, 8, 1, 17),
        (2, 9, 1, 3),
        (8, 32, 4, 3),
    ]:
        layer = Conv1d(c_in, c_out, taps, groups=groups, device=cuda)
        x = torch.ones(2, c_in, 300, device=cuda)
        with torch.no_grad():
            own = any("cudamem::conv1d_" in name for name in started_on_gpu(lambda layer=layer, x=x: layer(x)))
        assert own == (convert(torch.nn.Conv1d(c_in, c_out, taps, groups=groups)) == [""]), (c_in, c_out, groups, taps)


@pytest.mark.parametrize("documented", [Conv1d, convert])
def test_docstring_example_prints_what_it_says(documented):
    assert_examples_hold(documented, documented.__name__)
