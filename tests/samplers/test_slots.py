"""Conversion of TorchRL's indices to slots."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

from torchrl_vmfer.samplers.distributions import flat_slots


def storage_of_shape(*shape):
    storage = LazyTensorStorage(int(np.prod(shape)), ndim=len(shape))
    storage.set(torch.arange(shape[0]), TensorDict({"a": torch.zeros(shape)}, shape))
    return storage


@pytest.fixture(scope="module", params=[(6, 4), (1, 5), (7, 1), (3, 4, 5), (5, 1, 2)], ids=str)
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
        (torch.tensor([]), []),
        (-1, [-1]),
        (torch.tensor([2, -1, 0]), [2, -1, 0]),
    ],
)
@pytest.mark.parametrize("storage", [LazyTensorStorage(10), None])
def test_slots_of_a_storage_with_one_dimension(index, slots, storage):
    result = flat_slots(index, storage)
    assert result.dtype == np.int64
    assert result.tolist() == slots


def test_coordinates_are_flattened_in_the_order_of_the_storage(deep_storage):
    slots = torch.arange(deep_storage.shape.numel())
    index = torch.unravel_index(slots, deep_storage.shape)
    np.testing.assert_array_equal(flat_slots(index, deep_storage), slots)
    rows = torch.stack(index, -1)
    np.testing.assert_array_equal(flat_slots(rows, deep_storage), slots)
    last = tuple(rows[-1].tolist())  # one index, not two slots
    assert flat_slots(last, deep_storage).tolist() == [len(slots) - 1]
    rows[1:2] = -1  # a row that was not stored
    assert flat_slots(rows[:3], deep_storage).tolist()[:2] == [0, -1]
    assert flat_slots(rows[:0], deep_storage).tolist() == []


@pytest.mark.parametrize(
    "bad", [[0, 4], [0, 2**40], [2, -1], [9, 0], [0, 4, 0], [0, 0, 5], [2, 3, -2]], ids=str
)
def test_a_coordinate_outside_its_dimension_is_reported(bad):
    storage = storage_of_shape(*(6, 4, 5)[: len(bad)])
    rows = torch.tensor([[1] * len(bad), [-1] * len(bad), bad, [0] * (len(bad) - 1) + [9]])
    message = rf"Index \[{', '.join(map(str, bad))}\] is outside a storage of shape \[6, 4"
    for index in (rows, rows.unbind(-1)):
        with pytest.raises(IndexError, match=message):
            flat_slots(index, storage)


@pytest.mark.parametrize(
    "index", [1.0, torch.tensor([True, False]), np.array([0.5]), (torch.ones(2),) * 2], ids=str
)
def test_indices_that_are_not_integers_are_rejected(index):
    with pytest.raises(TypeError, match="must be an integer, got"):
        flat_slots(index, None)
