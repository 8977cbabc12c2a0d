"""Measurements leave the random numbers of training, and other devices, alone."""

from __future__ import annotations

import pytest
import torch

from vmfer_recipes.agent.actor_batches import unchanged_random_numbers


def test_random_numbers_continue_as_if_the_context_had_drawn_none():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first = torch.rand(1)
    with unchanged_random_numbers("cpu"):
        torch.rand(100)
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)


@pytest.mark.parametrize(("device", "saved"), [("cpu", []), ("cuda:1", [1])])
def test_only_the_device_of_the_networks_is_used(device, saved, monkeypatch):
    used = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda each: used.append(each.index))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, each: None)
    with unchanged_random_numbers(device):
        pass
    assert used == saved
