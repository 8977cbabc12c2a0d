"""Bad factors, indices, arguments and files raise a clear error and change nothing."""

import math
import os
import pickle
import re

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler

from torchrl_vmfer import (
    GradientNormSampler,
    InverseTDSampler,
    RankPrioritizedSampler,
    RecentSampler,
    VMFSampler,
)

NAN, INF = math.nan, math.inf

SAMPLERS = {
    "uncertainty": lambda: VMFSampler("uncertainty"),
    "rank": lambda: VMFSampler("rank"),
    "smoothed": lambda: VMFSampler("uncertainty", smoothing=0.9),
    "power": lambda: VMFSampler(power=8),
    "rank_prioritized": lambda: RankPrioritizedSampler(alpha=0.7, beta=0.5),
    "inverse_td": InverseTDSampler,
    "gradient_norm": GradientNormSampler,
}
VMF_SAMPLERS = ["uncertainty", "rank", "smoothed", "power"]


def make_buffer(name, shape=(10,), capacity=16):
    """Makes a buffer with ten transitions of different priorities."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity, ndim=len(shape)),
        sampler=SAMPLERS[name](),
        batch_size=64,
        generator=torch.Generator().manual_seed(0),
    )
    index = buffer.extend(TensorDict({"observation": torch.zeros(shape)}, shape))
    buffer.update_priority(index, torch.linspace(1.0, 2.5, len(index)))
    return buffer


@pytest.fixture(params=SAMPLERS)
def buffer(request):
    return make_buffer(request.param)


def observable_state(buffer):
    """Returns the full state and the next draws from a known generator, which is restored."""
    state = {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in buffer.sampler.state_dict().items()
    }
    before = buffer._rng.get_state()
    draws = buffer.sample()
    buffer._rng.set_state(before)
    return state, before.tolist(), {key: value.tolist() for key, value in draws.items()}


class Unchanged:
    """Asserts that a block does not change state, generator and next draws of a buffer."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __enter__(self):
        self.before = observable_state(self.buffer)

    def __exit__(self, error_type, *_):
        if error_type is None:
            assert observable_state(self.buffer) == self.before


def assert_rejected(buffer, index, value, error, message):
    with Unchanged(buffer), pytest.raises(error, match=message):
        buffer.update_priority(index, value)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 0.0, -0.0, -1e-30, -1.0, 2.72, 3.0, 1e30], ids=str)
@pytest.mark.parametrize("name", VMF_SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bad_factor_is_reported_with_its_index(name, bad, dtype):
    value = torch.tensor([2.0, 1.5, bad, 1.2], dtype=dtype)
    named = re.escape(str(value[2].item()))
    assert_rejected(
        make_buffer(name), torch.tensor([9, 0, 5, 3]), value, ValueError, rf"Index 5 .*{named}.*e\]"
    )


@pytest.mark.parametrize("bad", [NAN, INF, -INF, -1e-30, -1.0, 1e39], ids=str)
@pytest.mark.parametrize("name", ["rank_prioritized", "inverse_td", "gradient_norm"])
def test_a_bad_priority_is_reported_with_its_index(name, bad):
    value = torch.tensor([2.0, 1.5, bad, 1.2], dtype=torch.float64)
    named = re.escape(str(bad))
    assert_rejected(
        make_buffer(name), torch.tensor([9, 0, 5, 3]), value, ValueError, rf"Index 5 .*{named}"
    )


def test_the_first_of_several_bad_values_is_reported(buffer):
    value = torch.tensor([1.0, -2.0, NAN, INF])
    assert_rejected(buffer, torch.tensor([1, 8, 0, 3]), value, ValueError, r"Index 8 .*-2\.0")


def test_a_bad_value_is_reported_even_if_a_later_one_for_the_same_slot_is_valid(buffer):
    value = torch.tensor([1.0, NAN, 2.0])
    assert_rejected(buffer, torch.tensor([4, 7, 7]), value, ValueError, "Index 7 .*nan")


def test_a_row_that_was_not_stored_does_not_shift_the_reported_index(buffer):
    value = torch.tensor([1.0, NAN, 2.0, -3.0])
    assert_rejected(buffer, torch.tensor([4, -1, 7, 6]), value, ValueError, r"Index 6 .*-3\.0")


@pytest.mark.parametrize("index", [6, torch.tensor(6), torch.tensor([6, 2, 4])], ids=str)
def test_one_bad_value_for_all_is_reported_with_the_first_index(buffer, index):
    assert_rejected(buffer, index, NAN, ValueError, "Index 6 .*nan")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", VMF_SAMPLERS)
def test_the_bound_e_is_accepted_in_every_precision(name, dtype):
    buffer = make_buffer(name)
    e = torch.exp(torch.ones(()).to(dtype))
    assert e.dtype == dtype
    for _ in range(300):  # a running average gets as close to the bound as possible
        buffer.update_priority(torch.tensor([3, 4]), e.expand(2))
    priorities = buffer.sampler.state_dict()["priorities"]
    assert priorities[3].item() == pytest.approx(math.e, rel=1e-6)
    assert priorities[3].item() <= math.e * (1 + 2**-22)
    make_buffer(name).sampler.load_state_dict(buffer.sampler.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", VMF_SAMPLERS)
def test_three_is_above_the_bound_in_every_precision(name, dtype):
    value = torch.tensor([3.0], dtype=dtype)
    assert_rejected(make_buffer(name), torch.tensor([2]), value, ValueError, r"Index 2 .*3\.0")


@pytest.mark.parametrize("name", VMF_SAMPLERS)
def test_a_factor_that_rounds_to_zero_is_rejected(name):
    """1e-50 is 0 in float32, and zeros define no probabilities and cannot be loaded."""
    value = torch.full((10,), 1e-50, dtype=torch.float64)
    assert_rejected(make_buffer(name), torch.arange(10), value, ValueError, "Index 0 .*1e-50")


def test_an_initial_factor_that_rounds_to_zero_is_rejected():
    with pytest.raises(ValueError, match=r"initial_factor must .*got 1e-50"):
        VMFSampler(initial_factor=1e-50)


@pytest.mark.parametrize(
    ("shape", "count"),
    [((2,), 2), ((4,), 4), ((0,), 0), ((3, 2), 6), ((1, 4), 4)],
    ids=str,
)
def test_a_wrong_number_of_values_is_rejected(buffer, shape, count):
    message = rf"Got {count} values of shape {re.escape(str(list(shape)))} for 3 indices"
    assert_rejected(buffer, torch.tensor([1, 2, 3]), torch.ones(shape), ValueError, message)


@pytest.mark.parametrize("bad", [10, 15, 16, -2, -11, 2**40, 2**62, -(2**62)])
def test_an_index_out_of_range_is_reported(buffer, bad):
    message = rf"Index {bad} is outside the 10 slots"
    assert_rejected(
        buffer, torch.tensor([3, 9, bad, 99]), torch.full((4,), 1.5), IndexError, message
    )
    assert_rejected(buffer, bad, 1.5, IndexError, message)


def test_a_bad_index_with_a_bad_value_is_rejected(buffer):
    assert_rejected(
        buffer, torch.tensor([3, 10]), torch.tensor([1.5, NAN]), IndexError, "Index 10 "
    )


@pytest.mark.parametrize("bad", [1.0, torch.tensor([1.0]), torch.tensor([True]), [0.5]], ids=str)
def test_a_noninteger_index_is_rejected(buffer, bad):
    assert_rejected(buffer, bad, 1.5, TypeError, "slot index must be an integer, got (float|bool)")


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("bad", [[0, 4], [1, -1], [3, 0], [-2, 0], [2**40, 1], [2**62, 0]], ids=str)
def test_a_coordinate_out_of_range_is_rejected(name, bad):
    buffer = make_buffer(name, shape=(4, 3), capacity=24)  # stored as 3 rows of 4
    value = torch.tensor([1.5, 1.5])
    assert_rejected(buffer, torch.tensor([[1, 1], bad]), value, IndexError, r"Index .* is outside")


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_bad_value_at_a_coordinate_changes_nothing(name):
    buffer = make_buffer(name, shape=(4, 3), capacity=24)
    value = torch.tensor([1.5, NAN])
    assert_rejected(buffer, torch.tensor([[1, 1], [2, 3]]), value, ValueError, "Index 11 .*nan")


def test_zero_and_large_priorities_are_valid():
    buffer = make_buffer("rank_prioritized")
    buffer.update_priority(torch.tensor([1, 2, 3]), torch.tensor([0.0, 3e38, -0.0]))
    priorities = buffer.sampler.state_dict()["priorities"]
    assert priorities[[1, 2, 3]].tolist() == [0, torch.tensor(3e38).item(), 0]
    probability = buffer.sampler.probabilities()
    assert probability.argmax() == 2
    assert probability[1] == probability[3] == probability.min()


@pytest.mark.parametrize(
    ("sampler_type", "arguments"),
    [
        *((VMFSampler, {"mode": bad}) for bad in ("", "ranks", None, 1)),
        *((VMFSampler, {"initial_factor": bad}) for bad in (0, -1.0, 2.72, NAN, INF, -INF)),
        *((VMFSampler, {"smoothing": bad}) for bad in (-0.1, 1.0, 2, NAN, INF)),
        *((VMFSampler, {"power": bad}) for bad in (-100.5, 101, NAN, INF, "8", None)),
        *((InverseTDSampler, {"exponent": bad}) for bad in (-0.1, 7.5, NAN, INF)),
        *((InverseTDSampler, {"floor": bad}) for bad in (0, -1.0, NAN, INF)),
        *((GradientNormSampler, {"power": bad}) for bad in (-1.0, 8, NAN, INF)),
        *((RecentSampler, {"decay": bad}) for bad in (0, -0.5, 1.5, NAN)),
        *((RecentSampler, {"min_size": bad}) for bad in (0, 2.5, True)),
        *((RecentSampler, {"cycle": bad}) for bad in (0, -1, 10.0)),
        *((RankPrioritizedSampler, {"alpha": bad}) for bad in (-0.1, NAN, INF)),
        *((RankPrioritizedSampler, {"beta": bad}) for bad in (-0.1, NAN, INF)),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_reported(sampler_type, arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=rf"{name} must .*got {re.escape(repr(value))}"):
        sampler_type(**arguments)


@pytest.mark.parametrize("value", [math.e, 1e-6, 1])
def test_initial_factors_within_the_bounds_are_accepted(value):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), sampler=VMFSampler(initial_factor=value), batch_size=2
    )
    buffer.extend(TensorDict({"observation": torch.zeros(4)}, [4]))
    assert buffer.sampler.state_dict()["priorities"].tolist() == pytest.approx([value] * 4)


def another(name):
    return "uncertainty" if name == "rank_prioritized" else "rank_prioritized"


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_state_of_another_sampler_is_rejected(name):
    buffer, other = make_buffer(name), make_buffer(another(name))
    own, theirs = type(buffer.sampler).__name__, type(other.sampler).__name__
    with Unchanged(buffer), pytest.raises(ValueError, match=f"not saved by {own} but by {theirs}:"):
        buffer.sampler.load_state_dict(other.sampler.state_dict())


@pytest.mark.parametrize("sampler", [RandomSampler(), PrioritizedSampler(10, 0.7, 0.5)], ids=repr)
def test_the_state_of_a_stock_sampler_is_rejected(buffer, sampler):
    own = type(buffer.sampler).__name__
    with Unchanged(buffer), pytest.raises(ValueError, match=f"not saved by {own} "):
        buffer.sampler.load_state_dict(sampler.state_dict() or {})


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_file_of_another_sampler_is_rejected(name, tmp_path):
    buffer = make_buffer(name)
    make_buffer(another(name)).sampler.dumps(tmp_path)
    with Unchanged(buffer), pytest.raises(ValueError, match="not saved by"):
        buffer.sampler.loads(tmp_path)


@pytest.mark.parametrize("bad", [NAN, INF, -1.0])
def test_a_state_with_a_bad_priority_is_rejected(buffer, bad):
    state = buffer.sampler.state_dict()
    state["priorities"][6] = bad
    state["priorities"][8] = NAN
    with Unchanged(buffer), pytest.raises(ValueError, match=f"Index 6 .*{bad}"):
        buffer.sampler.load_state_dict(state)


def test_a_file_with_a_bad_priority_is_rejected(buffer, tmp_path):
    state = buffer.sampler.state_dict()
    state["priorities"][6] = NAN
    buffer.sampler.dumps(tmp_path)
    (file,) = tmp_path.iterdir()
    torch.save(state, file)
    with Unchanged(buffer), pytest.raises(ValueError, match=r"Index 6 .*nan"):
        buffer.sampler.loads(tmp_path)


CLEAR = (ValueError, TypeError, RuntimeError)


@pytest.mark.parametrize(
    "priorities",
    [None, [1.0, 2.0], torch.ones(2, 3), torch.tensor(1.0)],
    ids=["none", "list", "matrix", "scalar"],
)
def test_priorities_that_are_not_a_vector_of_numbers_are_rejected(buffer, priorities):
    state = buffer.sampler.state_dict() | {"priorities": priorities}
    with Unchanged(buffer), pytest.raises(CLEAR, match="priorities"):
        buffer.sampler.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "entry"),
    [(name, "priorities") for name in SAMPLERS]
    + [("rank_prioritized", "max_priority"), ("rank_prioritized", "beta")],
)
def test_a_state_that_lacks_an_entry_changes_nothing(name, entry):
    buffer = make_buffer(name)
    state = SAMPLERS[name]().state_dict() | {"priorities": torch.full((4,), 1.5)}
    del state[entry]
    with Unchanged(buffer), pytest.raises((*CLEAR, KeyError), match=entry):
        buffer.sampler.load_state_dict(state)


@pytest.mark.parametrize("entry", ["max_priority", "beta"])
@pytest.mark.parametrize("bad", [NAN, INF, -1.0, "1"])
def test_a_state_with_a_bad_number_changes_nothing(entry, bad):
    buffer = make_buffer("rank_prioritized")
    state = buffer.sampler.state_dict() | {"priorities": torch.full((4,), 1.5), entry: bad}
    with Unchanged(buffer), pytest.raises(CLEAR, match=entry):
        buffer.sampler.load_state_dict(state)


def saved_file(buffer, folder):
    make_buffer("uncertainty").sampler.dumps(folder)
    buffer.sampler.dumps(folder)
    (file,) = folder.iterdir()
    return file


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_reported_by_name(buffer, tmp_path, kept):
    file = saved_file(buffer, tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with Unchanged(buffer), pytest.raises(RuntimeError, match=re.escape(str(file))):
        buffer.sampler.loads(tmp_path)


@pytest.mark.parametrize(
    "content", [b"\0" * 4096, b"no tensors here", bytes(range(256)) * 9], ids=len
)
def test_a_file_in_another_format_is_reported_by_name(buffer, tmp_path, content):
    file = saved_file(buffer, tmp_path)
    file.write_bytes(content)
    with Unchanged(buffer), pytest.raises(RuntimeError, match=re.escape(str(file))):
        buffer.sampler.loads(tmp_path)


@pytest.mark.parametrize("content", [torch.ones(10), [1, 2], None, "priorities"], ids=repr)
def test_a_file_of_another_object_is_rejected(buffer, tmp_path, content):
    file = saved_file(buffer, tmp_path)
    torch.save(content, file)
    with Unchanged(buffer), pytest.raises(CLEAR, match=r"state|read"):
        buffer.sampler.loads(tmp_path)


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def save_by_pickle(state, file):
    file.write_bytes(pickle.dumps(state, protocol=2))


@pytest.mark.parametrize("save", [torch.save, save_by_pickle])
def test_code_in_a_file_is_not_executed(buffer, tmp_path, save):
    trace = tmp_path / "executed"
    pickle.loads(pickle.dumps(Malicious(trace)))
    assert trace.exists(), "the example is not a malicious one"
    trace.rmdir()
    folder = tmp_path / "sampler"
    file = saved_file(buffer, folder)
    save(buffer.sampler.state_dict() | {"extra": Malicious(trace)}, file)
    with Unchanged(buffer), pytest.raises(RuntimeError, match=re.escape(str(file))):
        buffer.sampler.loads(folder)
    assert not trace.exists()


def test_a_valid_state_is_loaded(buffer, tmp_path):
    """Guards the tests above against a sampler that rejects every state."""
    saved_file(buffer, tmp_path)
    expected = observable_state(buffer)[0]
    buffer.update_priority(torch.arange(10), 1.0)
    assert observable_state(buffer)[0] != expected
    buffer.sampler.loads(tmp_path)
    assert observable_state(buffer)[0] == expected
