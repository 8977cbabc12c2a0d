"""Conversion of TorchRL's indices to slots, and the array that grows with the storage."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from torchrl_vmfer.samplers.base import SlotArray, flat_slots


def storage_of_shape(*shape):
    storage = LazyTensorStorage(int(np.prod(shape)), ndim=len(shape))
    storage.set(torch.arange(shape[0]), TensorDict({"a": torch.zeros(shape)}, shape))
    assert storage.shape == torch.Size(shape)
    return storage


SHAPES = [(6, 4), (1, 5), (7, 1), (3, 4, 5), (5, 1, 2)]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def deep_storage(request):
    return storage_of_shape(*request.param)


@pytest.mark.parametrize(
    ("index", "slots"),
    [
        (3, [3]),
        (np.int64(3), [3]),
        (torch.tensor(3), [3]),
        (torch.tensor([3, 0, 3]), [3, 0, 3]),
        (torch.tensor([3, 0], dtype=torch.int32), [3, 0]),
        (torch.tensor([3, 0], dtype=torch.uint8), [3, 0]),
        ([3, 0], [3, 0]),
        (np.array([3, 0]), [3, 0]),
        (range(3), [0, 1, 2]),
        (torch.tensor([[3], [0]]), [3, 0]),
        ((torch.tensor([3, 0]),), [3, 0]),
        (None, []),
        (torch.empty(0, dtype=torch.long), []),
        (torch.tensor([]), []),
        (-1, [-1]),
        (torch.tensor([2, -1, 0]), [2, -1, 0]),
    ],
)
@pytest.mark.parametrize("with_storage", [True, False])
def test_slots_of_a_storage_with_one_dimension(index, slots, with_storage):
    storage = LazyTensorStorage(10) if with_storage else None
    result = flat_slots(index, storage)
    assert result.dtype == np.int64
    assert result.tolist() == slots


def test_coordinates_are_flattened_like_ravel_multi_index(deep_storage):
    shape = tuple(deep_storage.shape)
    rng = np.random.default_rng(0)
    coordinates = np.stack([rng.integers(size, size=50) for size in shape], -1)
    expected = np.ravel_multi_index(tuple(coordinates.T), shape)
    rows = torch.from_numpy(coordinates)
    np.testing.assert_array_equal(flat_slots(rows, deep_storage), expected)
    np.testing.assert_array_equal(flat_slots(rows.unbind(-1), deep_storage), expected)
    np.testing.assert_array_equal(flat_slots(rows[:1], deep_storage), expected[:1])


def test_unravel_index_is_inverted_for_every_slot(deep_storage):
    slots = torch.arange(deep_storage.shape.numel())
    index = torch.unravel_index(slots, deep_storage.shape)
    np.testing.assert_array_equal(flat_slots(index, deep_storage), slots)
    np.testing.assert_array_equal(flat_slots(torch.stack(index, -1), deep_storage), slots)


def test_a_tuple_of_numbers_is_one_index(deep_storage):
    shape = tuple(deep_storage.shape)
    last = tuple(size - 1 for size in shape)
    expected = [np.ravel_multi_index(last, shape)]
    assert flat_slots(last, deep_storage).tolist() == expected
    assert flat_slots(tuple(map(torch.tensor, last)), deep_storage).tolist() == expected


def test_rows_that_were_not_stored_stay_negative(deep_storage):
    ndim = deep_storage.ndim
    rows = torch.tensor([[0] * ndim, [-1] * ndim, [0] * (ndim - 1) + [0]])
    assert flat_slots(rows, deep_storage).tolist() == [0, -1, 0]
    assert flat_slots(rows[1:2], deep_storage).tolist() == [-1]


def test_an_empty_array_of_coordinates_gives_no_slots(deep_storage):
    empty = torch.empty(0, deep_storage.ndim, dtype=torch.long)
    assert flat_slots(empty, deep_storage).tolist() == []
    assert flat_slots(None, deep_storage).tolist() == []


@pytest.mark.parametrize(
    "bad", [[0, 4], [0, 2**40], [2, -1], [5, 4]], ids=lambda coordinate: str(coordinate)
)
def test_a_coordinate_outside_its_dimension_is_reported(bad):
    storage = storage_of_shape(6, 4)
    rows = torch.tensor([[1, 3], bad, [0, 9]])
    message = rf"Index \[{bad[0]}, {bad[1]}\] is outside a storage of shape \[6, 4\]"
    with pytest.raises(IndexError, match=message):
        flat_slots(rows, storage)
    with pytest.raises(IndexError, match=message):
        flat_slots(rows.unbind(-1), storage)


@pytest.mark.parametrize("bad", [[0, 4, 0], [0, 0, 5], [2, -1, 0], [2, 3, -2]], ids=str)
def test_a_coordinate_outside_its_dimension_is_reported_in_three_dimensions(bad):
    storage = storage_of_shape(3, 4, 5)
    named = ", ".join(map(str, bad))
    with pytest.raises(IndexError, match=rf"Index \[{named}\] is outside"):
        flat_slots(torch.tensor([[0, 0, 0], bad]), storage)


def test_a_row_that_was_not_stored_is_not_reported_instead_of_a_bad_one():
    rows = torch.tensor([[-1, -1], [0, 9]])
    with pytest.raises(IndexError, match=r"Index \[0, 9\]"):
        flat_slots(rows, storage_of_shape(6, 4))


@pytest.mark.parametrize(
    "index",
    [1.0, torch.tensor([1.0]), torch.tensor([True, False]), np.array([0.5]), (torch.ones(2),) * 2],
    ids=str,
)
def test_indices_that_are_not_integers_are_rejected(index):
    with pytest.raises(TypeError, match="must be an integer, got"):
        flat_slots(index, None)


def test_priorities_start_at_the_fill_value_and_keep_assigned_values():
    priorities = SlotArray()
    assert len(priorities) == 0
    priorities.resize(3, fill=1.5)
    priorities.array[1] = 2
    priorities.resize(5, fill=0.25)
    assert priorities.array.tolist() == [1.5, 2, 1.5, 0.25, 0.25]
    assert priorities.array.dtype == np.float32


def test_removed_slots_return_with_the_fill_value():
    priorities = SlotArray()
    priorities.resize(4, fill=1)
    priorities.array[:] = 9
    priorities.resize(2, fill=1)
    assert priorities.array.tolist() == [9, 9]
    priorities.resize(4, fill=3)
    assert priorities.array.tolist() == [9, 9, 3, 3]


def test_growth_by_single_slots_rarely_copies():
    priorities = SlotArray()
    addresses = set()
    for length in range(1, 5001):
        priorities.resize(length, fill=1)
        addresses.add(priorities.array.ctypes.data)
    assert len(priorities) == 5000
    assert len(addresses) <= 14  # a doubling each, 2**13 > 5000


def test_loading_copies_and_replaces_all_priorities():
    priorities = SlotArray()
    priorities.resize(10, fill=4)
    source = np.array([1.0, 2.0, 3.0])
    priorities.load(source)
    source[:] = 0
    assert priorities.array.tolist() == [1, 2, 3]
    assert priorities.array.dtype == np.float32
    priorities.resize(5, fill=8)
    assert priorities.array.tolist() == [1, 2, 3, 8, 8]


operations = st.lists(
    st.tuples(st.just("resize"), st.integers(0, 40), st.integers(1, 9))
    | st.tuples(st.just("set"), st.integers(0, 39), st.integers(1, 9)),
    max_size=30,
)


@settings(max_examples=200)
@given(operations)
def test_any_order_of_resizes_and_writes_behaves_like_a_list(history):
    priorities, model = SlotArray(), []
    for kind, at, value in history:
        if kind == "resize":
            priorities.resize(at, fill=value)
            model = model[:at] + [value] * (at - len(model))
        elif at < len(model):
            priorities.array[at] = value
            model[at] = value
        assert priorities.array.tolist() == model
