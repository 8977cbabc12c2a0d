"""The compiled parts of losses: equal to PyTorch's operations in double precision."""

from types import SimpleNamespace

import pytest
import torch
from torchrl.modules import TanhNormal

from torchrl_vmfer.fast import agreement, td_loss
from torchrl_vmfer.fast.kernels import load_kernels
from torchrl_vmfer.fast.squashed_gaussian import CompiledSquashedGaussian, SquashedGaussian
from torchrl_vmfer.fast.tqc import quantile_huber
from torchrl_vmfer.networks import LocAndScale

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def doubled(tensors):
    return [
        t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in tensors
    ]


def assert_close(found, expected):
    for values, wanted in zip(found, expected, strict=True):
        assert values.shape == wanted.shape
        torch.testing.assert_close(values, wanted.to(values.dtype), **TOLERANCE)


@pytest.fixture
def by_torch(monkeypatch):
    """A function that calls another one without compiled functions, in double precision."""

    def call(module, name, *args):
        with monkeypatch.context() as patch:
            patch.setattr(module, "load_kernels", lambda: None)
            return getattr(module, name)(*doubled(args))

    return call


# --- TD targets.


@pytest.mark.parametrize("distance", ["l2", "l1", "smooth_l1"])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("has_cost", [False, True])
@pytest.mark.parametrize(("critics", "targets", "rows"), [(2, 2, 256), (5, 1, 7), (1, 3, 1)])
def test_td_loss(by_torch, distance, is_weighted, has_cost, critics, targets, rows):
    torch.manual_seed(0)
    args = (
        3 * torch.randn(critics, rows, 1).squeeze(-1),
        3 * torch.randn(targets, rows),
        torch.randn(rows) if has_cost else None,
        torch.randn(rows, 1).squeeze(-1),
        torch.rand(rows) < 0.3,
        torch.tensor(0.99),
        torch.rand(rows) if is_weighted else torch.tensor(1 / rows),
        distance,
    )
    assert_close(td_loss.td_loss(*args), by_torch(td_loss, "td_loss", *args))


def test_td_loss_of_inputs_that_broadcast(by_torch):
    torch.manual_seed(0)
    rest = None, torch.randn(5), torch.rand(5) < 0.3, torch.tensor(0.99), torch.tensor(0.2), "l2"
    for values, next_values in (
        (torch.randn(2, 5), torch.randn(2, 1)),
        (torch.randn(2, 3, 5), torch.randn(2, 3, 5)),
    ):
        args = values, next_values, *rest
        assert_close(td_loss.td_loss(*args), by_torch(td_loss, "td_loss", *args))
    matrices = torch.randn(2, 3, 5), torch.randn(2, 3, 5), None, torch.randn(3, 5)
    args = *matrices, torch.rand(3, 5) < 0.3, torch.tensor(0.99), torch.tensor(0.2), "l2"
    assert_close(td_loss.td_loss(*args), by_torch(td_loss, "td_loss", *args))


def test_td_loss_without_target_critics_is_an_error():
    rows = torch.randn(5)
    with pytest.raises(IndexError):
        td_loss.td_loss(
            *(torch.randn(2, 5), torch.randn(0, 5), None, rows, rows > 0),
            *(torch.tensor(0.99), torch.tensor(0.2), "l2"),
        )


@pytest.mark.parametrize("place", ["values", "next_values", "reward"])
def test_td_loss_keeps_nan(place):
    given = {"values": torch.zeros(2, 3), "next_values": torch.zeros(2, 3), "reward": torch.ones(3)}
    given[place][..., 1] = torch.nan
    found = td_loss.td_loss(
        given["values"],
        given["next_values"],
        None,
        given["reward"],
        torch.zeros(3, dtype=torch.bool),
        torch.tensor(0.9),
        torch.tensor(1.0),
        "l2",
    )
    assert found.loss.isnan()
    assert found.error.isnan().any(0).tolist() == [False, True, False]


def test_terminal_states_hide_infinite_values():
    values = torch.zeros(1, 2)
    found = td_loss.td_loss(
        values,
        torch.tensor([[torch.inf, 2.0]]),
        None,
        torch.ones(2),
        torch.tensor([True, False]),
        torch.tensor(0.5),
        torch.tensor(1.0),
        "l2",
    )
    assert found.target.tolist() == [1.0, 2.0]


# --- The critic that the actor follows.


@pytest.mark.parametrize("shape", [(2, 256, 6), (5, 3, 1), (1, 4, 2)], ids=str)
def test_follow_lowest(by_torch, shape):
    torch.manual_seed(0)
    args = torch.randn(shape[:2]), torch.randn(shape)
    assert_close(agreement.follow_lowest(*args), by_torch(agreement, "follow_lowest", *args))


def test_a_value_of_nan_is_followed():
    values = torch.tensor([[0.0, torch.nan], [torch.nan, 1.0]])
    value, _, used = agreement.follow_lowest(values, torch.ones(2, 2, 3))
    assert value.isnan().all()
    assert used.tolist() == [1, 0]


# --- Squashed Gaussian policies.


@pytest.fixture(params=["unit bounds", "other bounds", "one bound for all"])
def heads(request):
    low, high = {
        "unit bounds": (-1.0, 1.0),
        "other bounds": (torch.tensor([-1.0, -2.0, 0.5]), torch.tensor([1.0, 3.0, 4.0])),
        "one bound for all": (-2.0, 4.0),
    }[request.param]
    head = SimpleNamespace(
        distribution_class=TanhNormal,
        distribution_kwargs={"low": low, "high": high},
        num_samples=None,
    )
    return CompiledSquashedGaussian(head, load_kernels()), SquashedGaussian(head)


def outputs_and_noise(rows, width=3):
    torch.manual_seed(rows)
    outputs = torch.cat([3 * torch.randn(rows, width), torch.randn(rows, width) - 1], -1)
    # Saturated actions, and logarithms of deviations on, within and outside their bounds.
    outputs[: rows // 4, :width] *= 4
    outputs[rows // 2 :, width] = torch.linspace(-30, 5, rows - rows // 2)
    outputs[0, width:] = torch.tensor(LocAndScale.bounds[1])
    return outputs, torch.randn(rows, width)


@pytest.mark.parametrize("rows", [1, 85, 86, 256])
def test_draw(heads, rows):
    compiled, general = heads
    outputs, noise = outputs_and_noise(rows)
    expected = general.draw(LocAndScale()(outputs.double()), noise.double())
    assert_close(compiled.draw(outputs, noise), expected)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("rows", [1, 85, 86, 256])
def test_actor_loss(heads, rows, is_weighted):
    compiled, general = heads
    outputs, noise = outputs_and_noise(rows)
    value, gradient = torch.randn(rows), torch.randn(rows, 3)
    weights = torch.rand(rows) if is_weighted else torch.tensor(1 / rows)
    rest = value, gradient, torch.tensor(0.2), weights
    loss, slopes = compiled.actor_loss(outputs, noise, *compiled.draw(outputs, noise), *rest)
    inputs = outputs.double().requires_grad_()
    split = LocAndScale()(inputs)
    drawn = general.draw(split, noise.double())
    expected, of_both = general.actor_loss(
        tuple(part.detach() for part in split),
        noise.double(),
        *(part.detach() for part in drawn),
        *doubled(rest),
    )
    assert_close([loss, *slopes], [expected, *torch.autograd.grad(split, inputs, of_both)])


def test_draw_with_transposed_tensors(heads):
    compiled, _ = heads
    outputs, noise = outputs_and_noise(8)
    expected = compiled.draw(outputs, noise)
    found = compiled.draw(*(tensor.T.contiguous().T for tensor in (outputs, noise)))
    assert all(torch.equal(values, wanted) for values, wanted in zip(found, expected, strict=True))


def test_an_odd_number_of_outputs_is_an_error(heads):
    compiled, _ = heads
    with pytest.raises(RuntimeError):
        compiled.draw(torch.randn(8, 7), torch.randn(8, 3))


def test_nan_gives_actions_and_densities_of_nan(heads):
    compiled, _ = heads
    outputs, noise = outputs_and_noise(8)
    outputs[1, 0] = outputs[3, 5] = torch.nan
    squashed, log_prob = compiled.draw(outputs, noise)
    assert squashed.isnan().nonzero().tolist() == [[1, 0], [3, 2]]
    assert log_prob.isnan().nonzero().tolist() == [[1], [3]]


def test_large_actions_and_double_precision_use_the_operations_of_torch(heads):
    compiled, general = heads
    outputs, noise = outputs_and_noise(8)
    expected = general.draw(LocAndScale()(outputs.double()), noise.double())
    found = compiled.draw(outputs.double(), noise.double())
    assert all(torch.equal(values, wanted) for values, wanted in zip(found, expected, strict=True))
    if compiled.stretch(torch.zeros(1)).shape == (1,):  # bounds for any number of components
        outputs, noise = outputs_and_noise(2, width=300)
        assert_close(compiled.draw(outputs, noise), general.draw(LocAndScale()(outputs), noise))


# --- Defaults of PyTorch.


def test_the_default_precision_and_device_do_not_matter(heads, other_defaults):
    compiled, _ = heads
    outputs, noise = outputs_and_noise(8)
    values, gradients, rows = torch.randn(2, 8), torch.randn(2, 8, 3), torch.randn(8)
    terminated, quantiles, number = torch.rand(8) < 0.3, torch.randn(2, 8, 5), torch.tensor(0.5)

    def computed():
        drawn = compiled.draw(outputs, noise)
        loss, slopes = compiled.actor_loss(
            outputs, noise, *drawn, rows, gradients[0], number, number
        )
        of_critics = td_loss.td_loss(values, values, None, rows, terminated, number, number, "l2")
        return [
            *(*drawn, loss, *slopes, *of_critics),
            *agreement.follow_lowest(values, gradients),
            *quantile_huber(quantiles, gradients[0]),
        ]

    expected = computed()
    with other_defaults():
        found = computed()
    assert all(map(torch.equal, found, expected))
