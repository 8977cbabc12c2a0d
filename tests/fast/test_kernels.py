"""The compiled functions: equal to products in double precision, and optional."""

import copy
import itertools

import pytest
import torch
from tensordict import TensorDict

from torchrl_vmfer import directional
from torchrl_vmfer.fast import kernels
from torchrl_vmfer.fast.agreement import factor_and_length
from torchrl_vmfer.fast.compiled_stack import CompiledStack, make_stack
from torchrl_vmfer.fast.kernels import load_kernels
from torchrl_vmfer.fast.linear_stack import LinearStack
from torchrl_vmfer.fast.storage import RowStorage

# Widths and batches around the sizes of the kernels' tiles: 6 or 8 rows, and panels of 16 or 32
# transitions.
STACKS = [
    ((23, 256, 256, 1), 2, 256),
    ((17, 256, 256, 6), None, 256),
    ((5, 7, 33, 3), 3, 19),
    ((4, 3), 2, 16),
    ((1, 1, 1), 1, 31),
    ((376, 64, 25), 5, 100),
    ((6, 16, 12, 13, 2), None, 17),
    ((33, 15, 32, 14), 2, 65),
]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_params(sizes, count):
    generator = torch.Generator().manual_seed(0)
    leading = () if count is None else (count,)
    params = []
    for inputs, outputs in itertools.pairwise(sizes):
        params.append(torch.randn(*leading, outputs, inputs, generator=generator) / inputs**0.5)
        params.append(torch.randn(*leading, outputs, generator=generator))
    return params


def reference(params, inputs):
    """The outputs in double precision, by one matrix product per network and layer."""
    params = [tensor.double().requires_grad_() for tensor in params]
    inputs = inputs.double().requires_grad_()
    units = inputs
    for position in range(0, len(params), 2):
        weight, bias = params[position : position + 2]
        units = units.relu() if position else units
        units = torch.einsum("...bi,...oi->...bo", units, weight) + bias.unsqueeze(-2)
    return units, inputs, params


def assert_close(found, expected):
    expected = expected.detach()
    error = (found.double() - expected).abs().max()
    assert found.shape == expected.shape
    assert error <= 1e-5 * expected.abs().max().clamp(min=1)


@pytest.fixture(scope="module")
def narrow_kernels():
    """Compiled for a processor without AVX-512, whose vectors are twice as wide as AVX2's."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX512", "AVX2"):
        pytest.skip("this is not an x86 processor, so there is only one width of vectors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_instruction_sets", lambda: ("avx2",))
        kernels.reload()
        compiled = load_kernels()
    kernels.reload()
    return compiled


@pytest.fixture(params=["this processor", "AVX2"])
def compiled(request):
    narrow = request.param == "AVX2"
    return request.getfixturevalue("narrow_kernels") if narrow else load_kernels()


@pytest.fixture(params=STACKS, ids=str)
def case(request, compiled):
    sizes, count, rows = request.param
    params = random_params(sizes, count)
    shape = (rows, sizes[0]) if count is None else (count, rows, sizes[0])
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return CompiledStack(params, compiled), params, inputs


def test_outputs_equal_a_reference_in_double_precision(case):
    stack, params, inputs = case
    expected = reference(params, inputs)[0]
    assert_close(stack(inputs), expected)
    assert_close(stack.with_units(inputs)[0], expected)


def test_gradients_of_parameters_equal_a_reference_in_double_precision(case):
    stack, params, inputs = case
    expected, _, doubled = reference(params, inputs)
    slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    _, units = stack.with_units(inputs)
    found = stack.parameter_gradients(slope, units)
    for gradient, wanted in zip(
        found, torch.autograd.grad(expected, doubled, slope.double()), strict=True
    ):
        assert_close(gradient, wanted)


@pytest.mark.parametrize("columns", [slice(None), slice(-1, None), slice(0, 1)])
def test_gradients_of_some_inputs_equal_a_reference_in_double_precision(case, columns):
    stack, params, inputs = case
    expected, points, _ = reference(params, inputs)
    outputs, found = stack.with_gradients(inputs, columns)
    assert_close(outputs, expected)
    wanted = torch.autograd.grad(expected.mean(-1).sum(), points)[0][..., columns]
    assert_close(found, wanted)


def test_expanded_and_copied_inputs_give_the_same_bits():
    stack = make_stack(random_params((5, 20, 3), 4))
    inputs = torch.randn(30, 5)
    shared = stack(inputs.expand(4, 30, 5))
    assert torch.equal(shared, stack(inputs.expand(4, 30, 5).contiguous()))
    assert torch.equal(shared, stack(inputs.T.contiguous().T.expand(4, 30, 5)))


def test_a_row_does_not_depend_on_the_other_rows_of_its_batch():
    stack = make_stack(random_params((5, 20, 3), None))
    inputs = torch.randn(37, 5)
    assert torch.equal(stack(inputs)[:19], stack(inputs[:19]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_input_gives_outputs_of_nan(compiled, bad):
    params, inputs = random_params((5, 20, 20, 3), None), torch.randn(37, 5)
    inputs[4, 2] = bad
    stack = CompiledStack(params, compiled)
    assert stack(inputs).isnan().any(-1).nonzero().tolist() == [[4]]
    outputs, units = stack.with_units(inputs)
    assert stack.parameter_gradients(torch.ones_like(outputs), units)[0].isnan().any()
    _, gradients = stack.with_gradients(inputs, slice(None))
    torch.testing.assert_close(
        gradients, LinearStack(params).with_gradients(inputs, slice(None))[1]
    )


@pytest.mark.parametrize("change", ["threads", "double", "strides", "autograd", "rows"])
def test_other_cases_use_the_products_of_torch(monkeypatch, change):
    params, inputs = random_params((5, 20, 3), None), torch.randn(30, 5)
    if change == "threads":
        torch.set_num_threads(2)
    elif change == "double":
        params, inputs = [tensor.double() for tensor in params], inputs.double()
    elif change == "strides":
        params[0] = params[0].T.contiguous().T
    elif change == "autograd":
        inputs.requires_grad_()
    elif change == "rows":
        inputs = inputs[:15]
    stack = make_stack(params)
    calls = []
    monkeypatch.setattr(LinearStack, "__call__", lambda self, given: calls.append(given) or given)
    stack(inputs)
    assert len(calls) == 1


def test_parameters_may_require_gradients_later():
    params = random_params((5, 20, 3), None)
    stack = make_stack(params)
    assert not stack(torch.ones(32, 5)).requires_grad
    params[0].requires_grad_()
    assert stack(torch.ones(32, 5)).requires_grad


def test_the_default_precision_and_device_do_not_matter(other_defaults):
    params, inputs = random_params((5, 20, 3), None), torch.randn(37, 5)
    stack, slope = make_stack(params), torch.randn(37, 3)

    def computed():
        outputs, units = stack.with_units(inputs)
        gradients = stack.parameter_gradients(slope, units)
        return [stack(inputs), outputs, *gradients, *stack.with_gradients(inputs, slice(2, 4))]

    expected = computed()
    with other_defaults():
        found = computed()
    assert all(map(torch.equal, found, expected))


def test_wrong_numbers_of_features_are_errors_of_torch():
    stack = make_stack(random_params((5, 20, 3), 2))
    with pytest.raises(RuntimeError):
        stack(torch.randn(2, 30, 4))
    with pytest.raises(RuntimeError):
        stack(torch.randn(3, 30, 5))


def test_a_copy_has_its_own_parameters():
    params = random_params((5, 20, 3), None)
    stack, inputs = make_stack(params), torch.randn(20, 5)
    copied, expected = copy.deepcopy(stack), stack(inputs)
    for tensor in params:
        tensor.zero_()
    assert torch.equal(copied(inputs), expected)
    assert not stack(inputs).any()


def test_parameters_that_moved_to_shared_memory_are_found():
    params, inputs = random_params((5, 20, 3), None), torch.randn(20, 5)
    stack = make_stack(params)
    stack(inputs)
    for tensor in params:
        tensor.share_memory_()
        tensor.zero_()
    assert not stack(inputs).any()


# --- Loading.


@pytest.fixture
def fresh(monkeypatch):
    """Loads the functions again."""
    monkeypatch.delenv("VMFER_KERNELS", raising=False)
    kernels.reload()
    yield
    monkeypatch.undo()
    kernels.reload()


def test_they_are_compiled_at_installation_for_every_instruction_set(fresh, monkeypatch):
    names = kernels._instruction_sets()
    for name in names:
        monkeypatch.setattr(kernels, "_instruction_sets", lambda name=name: (name,))
        kernels.reload()
        assert load_kernels() is not None, name


def test_nothing_is_compiled_or_read_elsewhere_at_run_time(fresh, monkeypatch, tmp_path):
    cache = tmp_path / "torchrl_vmfer"
    cache.mkdir()
    (cache / "kernels-0.so").write_bytes(b"truncated")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", str(tmp_path / "no compiler"))
    assert load_kernels() is not None
    assert [file.name for file in cache.iterdir()] == ["kernels-0.so"]


def test_without_a_library_for_this_processor_torch_is_used(fresh, monkeypatch):
    monkeypatch.setattr(kernels, "_instruction_sets", lambda: ("unknown",))
    assert load_kernels() is None
    assert "without a C compiler" in kernels.why_unavailable()
    assert type(make_stack(random_params((5, 20, 3), None))) is LinearStack


def test_the_switch_turns_them_off(fresh, monkeypatch):
    monkeypatch.setenv("VMFER_KERNELS", "0")
    assert load_kernels() is None
    assert kernels.why_unavailable() == "VMFER_KERNELS=0"


# --- Agreement.


@pytest.mark.parametrize("used", ["first", "mean", "critic", "gradient"])
@pytest.mark.parametrize("shape", [(2, 256, 6), (5, 17, 1), (10, 1, 3)], ids=str)
def test_agreement_equals_that_of_double_precision(shape, used):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(
        -30, 30, shape[:2], generator=generator
    ).unsqueeze(-1)
    gradients[0, 0] = 0
    gradients[1, -1, 0] = torch.inf
    gradients[1, shape[1] // 2, -1] = torch.nan
    if used == "critic":
        used = torch.randint(shape[0], shape[1:2], generator=generator)
    elif used == "gradient":
        used = gradients[1].clone()
    in_double = used.double() if isinstance(used, torch.Tensor) and used.ndim > 1 else used
    found = factor_and_length(gradients, used)
    wanted = directional.factor_and_length(gradients.double(), in_double)
    for values, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(values, expected.float(), rtol=1e-6, atol=1e-6)


def test_agreement_with_another_default_precision_or_device(other_defaults):
    gradients = torch.randn(3, 9, 4)
    expected = factor_and_length(gradients, "first")
    with other_defaults():
        found = factor_and_length(gradients, "first")
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    "used",
    [torch.randn(9, 4).double(), torch.randn(4), torch.randn(1, 4), torch.arange(9).int() % 3, 1],
    ids=["double precision", "one gradient", "one row", "int32", "number"],
)
def test_agreement_with_other_inputs_equals_the_general_one(used):
    gradients = torch.randn(3, 9, 4)
    found = factor_and_length(gradients, used)
    for values, expected in zip(found, directional.factor_and_length(gradients, used), strict=True):
        torch.testing.assert_close(values, expected)


@pytest.mark.parametrize(
    "used",
    [torch.full((9,), 3), torch.full((9,), -1), torch.ones(20).long()],
    ids=["too large", "negative", "too many"],
)
def test_agreement_with_wrong_critics_is_an_error(used):
    with pytest.raises((RuntimeError, IndexError)):
        factor_and_length(torch.randn(3, 9, 4), used)


def test_agreement_of_expanded_gradients():
    gradients = torch.randn(3, 1, 4).expand(3, 9, 4)
    torch.testing.assert_close(
        factor_and_length(gradients, "first"), directional.factor_and_length(gradients, "first")
    )


# --- Rows.


@pytest.fixture
def storage():
    rows = {
        "observation": torch.randn(50, 3),
        "flag": torch.arange(50) % 2 == 0,
        "next": {"reward": torch.randn(50, 1, dtype=torch.float64)},
    }
    storage = RowStorage(50)
    storage.set(torch.arange(50), TensorDict(rows, [50]))
    return storage, rows


@pytest.mark.parametrize("count", [0, 1, 13, 400])
def test_rows_are_copied(storage, count):
    storage, rows = storage
    index = torch.randint(50, (count,))
    found = storage.get(index)
    assert found.batch_size == (count,)
    for key in ("observation", "flag"):
        assert torch.equal(found[key], rows[key][index])
    assert torch.equal(found["next", "reward"], rows["next"]["reward"][index])


def test_rows_without_elements_are_copied():
    rows = {"observation": torch.randn(50, 3), "empty": torch.zeros(50, 0)}
    storage = RowStorage(50)
    storage.set(torch.arange(50), TensorDict(rows, [50]))
    # As after loading: a new tensor without elements has strides as if it had one column.
    storage.get(slice(None))["empty"] = torch.zeros(50, 0)
    found = storage.get(torch.tensor([3, 49]))
    assert found["empty"].shape == (2, 0)
    assert torch.equal(found["observation"], rows["observation"][[3, 49]])


@pytest.mark.parametrize("bad", [-1, 50])
def test_rows_outside_the_storage_are_errors(storage, bad):
    with pytest.raises(IndexError, match="outside"):
        storage[0].get(torch.tensor([3, bad]))


def test_rows_that_moved_to_shared_memory_are_found(storage):
    storage, _ = storage
    storage.get(torch.tensor([3]))
    stored = storage.get(slice(None))
    for entry in stored.values(True, True):
        entry.share_memory_()
    stored["observation"][3] = 7.0
    assert storage.get(torch.tensor([3]))["observation"].eq(7).all()
