"""Runs with and without compiled code."""

from __future__ import annotations

import torch


def policy_of(run_dir):
    weights = torch.load(run_dir / "policy.pt", weights_only=True)["weights"]
    return torch.cat([tensor.flatten() for tensor in weights.values()])


def test_a_run_without_compiled_code_says_so_and_learns_the_same(
    train, tmp_path, use_kernels, capfd
):
    options = ("total_frames=120", "init_random_frames=100", "sampler=vmf_rank")
    compiled = train("td3", tmp_path / "compiled", *options)
    assert "C compiler" not in capfd.readouterr().err
    use_kernels(False)
    plain = train("td3", tmp_path / "plain", *options)
    assert "where there is a C compiler" in capfd.readouterr().err
    torch.testing.assert_close(policy_of(compiled), policy_of(plain), rtol=1e-3, atol=1e-4)
