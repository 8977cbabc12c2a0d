"""Saving and loading every sampler, alone, inside a buffer and in a TorchRL checkpoint."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    TensorDictReplayBuffer,
)

from helpers.sampler_buffers import EVERY, CubeSampler, filled_buffer, rows, seeded, used_buffer
from torchrl_vmfer import (
    GradientNormSampler,
    InverseTDSampler,
    LAPSampler,
    MixedSampler,
    OldSampler,
    RankPrioritizedSampler,
    RecentSampler,
    VMFSampler,
)


@pytest.fixture(params=EVERY)
def make(request):
    return EVERY[request.param]


def empty_buffer(sampler):
    return TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=64)


def plain(state):
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, torch.Tensor) else state


def future(buffer):
    """The state, and the draws of further use; the buffer is left as it was."""
    buffer = deepcopy(buffer)
    buffer.set_rng(seeded(0))
    found = [plain(buffer.sampler.state_dict())]
    for step in range(3):
        found.append(buffer.sample()["index"].tolist())
        buffer.extend(rows(step, 1))
        if buffer.sampler.signal:
            buffer.update_priority(torch.tensor([len(buffer) - 1, 0]), torch.tensor([1.3, 2.6]))
    return found, buffer.sampler.default_priority


def by_file(saved, loaded, folder):
    saved.dumps(folder / "missing")
    loaded.loads(folder / "missing")


def by_state(saved, loaded, folder):
    loaded.load_state_dict(saved.state_dict())


def by_parts(saved, loaded, folder):
    """TorchRL's checkpoint loads its components in the order of their names."""
    Checkpoint(sampler=saved.sampler).save(folder / "checkpoint", format="archive")
    Checkpoint(sampler=loaded.sampler).load(folder / "checkpoint")
    loaded.storage.load_state_dict(saved.storage.state_dict())
    loaded.writer.load_state_dict(saved.writer.state_dict())


def by_checkpoint(saved, loaded, folder):
    Checkpoint(buffer=saved).save(folder / "checkpoint")
    Checkpoint(buffer=loaded).load(folder / "checkpoint")


@pytest.mark.filterwarnings("ignore:last_cursor is None:UserWarning")
@pytest.mark.parametrize("by", [by_file, by_state, by_parts, by_checkpoint])
@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
def test_a_loaded_buffer_continues_with_identical_draws(make, by, is_used, tmp_path):
    saved = used_buffer(make())
    loaded = filled_buffer(make(), 10, batch_size=64) if is_used else empty_buffer(make())
    if is_used:
        loaded.sample()
    by(saved, loaded, tmp_path)
    assert future(loaded) == future(saved)


def test_a_state_is_plain_and_independent_of_its_sampler(make):
    buffer, other = used_buffer(make()), filled_buffer(make(), 10, batch_size=64)
    state = buffer.sampler.state_dict()
    for key, value in state.items():
        assert isinstance(key, str)
        assert isinstance(value, (torch.Tensor, int, float, str, dict, type(None)))
    before, expected = deepcopy(state), future(buffer)
    other.sampler.load_state_dict(state)
    other.extend(rows(0, 3))
    if other.sampler.signal:
        other.update_priority(torch.arange(10), torch.linspace(1.1, 2.6, 10))
    assert plain(state) == plain(before), "a loaded sampler writes into the state"
    for value in state.values():
        if isinstance(value, torch.Tensor):
            value.fill_(1)
    assert future(buffer) == expected, "a state is not a copy"


def test_a_buffer_saved_with_a_uniform_sampler_starts_with_default_priorities(
    make_sampler, tmp_path
):
    filled_buffer(RandomSampler(), 6, batch_size=64).dumps(tmp_path)
    for loaded in (empty_buffer(make_sampler()), used_buffer(make_sampler())):
        loaded.loads(tmp_path)
        assert loaded.sample()["index"].max() < 6
        np.testing.assert_allclose(loaded.sampler.probabilities(), [1 / 6] * 6, rtol=1e-12)


def test_factors_may_be_loaded_into_another_mode():
    loaded, expected = VMFSampler("rank"), used_buffer(VMFSampler("rank")).sampler
    loaded.load_state_dict(used_buffer(VMFSampler()).sampler.state_dict())
    assert torch.equal(loaded.probabilities(), expected.probabilities())


@pytest.mark.parametrize("beta", [np.linspace(0.4, 1, 10)[3], torch.tensor(0.7)])
def test_a_beta_that_came_from_an_array_is_saved(beta, tmp_path):
    sampler, loaded = RankPrioritizedSampler(), RankPrioritizedSampler()
    sampler.beta = beta
    sampler.dumps(tmp_path)
    loaded.loads(tmp_path)
    assert loaded.beta == float(beta)


# --- States that are rejected, and change nothing.


@pytest.fixture
def buffer(make):
    """A buffer that a test must leave as it was."""
    buffer = used_buffer(make())
    before = future(buffer)
    yield buffer
    assert future(buffer) == before


def test_the_state_of_another_sampler_is_rejected(buffer, tmp_path):
    name = type(buffer.sampler).__name__
    other = InverseTDSampler() if name != "InverseTDSampler" else LAPSampler()
    message = f"not saved by {name} but by {type(other).__name__}:"
    with pytest.raises(ValueError, match=message):
        buffer.sampler.load_state_dict(other.state_dict())
    other.dumps(tmp_path)
    with pytest.raises(ValueError, match=message):
        buffer.sampler.loads(tmp_path)
    for stock in (RandomSampler(), PrioritizedSampler(10, 0.7, 0.5)):
        with pytest.raises(ValueError, match=f"not saved by {name} "):
            buffer.sampler.load_state_dict(stock.state_dict() or {})


def test_a_state_that_lacks_an_entry_is_rejected(buffer):
    for name in buffer.sampler.state_dict():
        state = type(buffer.sampler).state_dict(buffer.sampler)
        del state[name]
        with pytest.raises(ValueError, match=name if name != "sampler" else "not saved by"):
            buffer.sampler.load_state_dict(state)


def mixture(share, alpha=0.7):
    return MixedSampler(LAPSampler(), RankPrioritizedSampler(alpha), share)


SETTINGS = [
    (RankPrioritizedSampler(0.6), RankPrioritizedSampler(0.7), r"alpha=0\.6, .* has alpha=0\.7"),
    (VMFSampler(power=8), VMFSampler(power=4), r"power=8\.0, but this sampler has power=4\.0"),
    (VMFSampler(pool_size=4), VMFSampler(), "pool_size=4, .* has pool_size=None"),
    (InverseTDSampler(0.4), InverseTDSampler(0.5), "exponent"),
    (LAPSampler(floor=1), LAPSampler(floor=2), "floor"),
    (GradientNormSampler(1), GradientNormSampler(2), "power"),
    (CubeSampler(3.0), CubeSampler(2.0), "power"),
    (RecentSampler(0.9), RecentSampler(0.5), "decay"),
    (RecentSampler(cycle=11), RecentSampler(), "cycle"),
    (OldSampler(2), OldSampler(3), "exponent"),
    (mixture(0.4), mixture(0.5), r"share=0\.4"),
    (mixture(0.5, alpha=0.6), mixture(0.5), r"alpha=0\.6"),  # after its first sampler was loaded
]


@pytest.mark.parametrize(("saved", "loaded", "message"), SETTINGS, ids=lambda value: str(value))
def test_a_state_with_other_arguments_is_rejected(saved, loaded, message):
    before = plain(filled_buffer(loaded).sampler.state_dict())
    if saved.signal:
        filled_buffer(saved).update_priority(torch.arange(10), 1.5)
    with pytest.raises(ValueError, match=f"saved with {message}"):
        loaded.load_state_dict(saved.state_dict())
    assert plain(loaded.state_dict()) == before


@pytest.mark.parametrize("entry", ["priorities", "max_priority", "beta"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, "1", None])
def test_bad_numbers_in_a_state_are_rejected(entry, bad):
    sampler = used_buffer(RankPrioritizedSampler()).sampler
    before = plain(sampler.state_dict())
    state = sampler.state_dict() | {"priorities": torch.full((4,), 1.5)}
    if entry == "priorities" and isinstance(bad, float):
        state[entry][2] = bad
    else:
        state[entry] = bad
    with pytest.raises(ValueError, match=f"Index 2 was given {bad}|{entry}"):
        sampler.load_state_dict(state)
    assert plain(sampler.state_dict()) == before
