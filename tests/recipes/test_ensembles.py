"""REDQ, TQC and CrossQ as recipes: exact resume, every sampler, defaults and errors."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from torchrl_vmfer import load_policy
from vmfer_recipes import redq
from vmfer_recipes.config.training import to_config

# Small enough for a test; the published sizes are checked below.
SIZES = {
    "redq": ("num_critics=4", "utd_ratio=2"),
    "tqc": ("num_critics=3", "num_quantiles=7", "critic_hidden=[24,24]"),
    "crossq": ("critic_hidden=[24,24]", "batch_renorm_warmup=20"),
}
SAMPLERS = [
    "uniform",
    "fresh",
    "vmf_uncertainty",
    "vmf_rank",
    "vmf_pool",
    "vmf_direct",
]
# One of each kind of sampler in `make test`, the others in `make test-all`.
QUICK = {("redq", "vmf_pool"), ("tqc", "vmf_direct"), ("crossq", "fresh"), ("crossq", "uniform")}
RESUMED = [
    ("redq", "sampler=vmf_rank"),
    pytest.param(("tqc", "sampler=vmf_uncertainty", "replay=per"), marks=pytest.mark.slow),
    pytest.param(("crossq", "sampler=vmf_uncertainty"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("combination", RESUMED, ids="-".join)
def test_crashed_run_ends_like_an_uninterrupted_one(
    combination, straight_run, assert_crashed_run_resumes_exactly
):
    algorithm, *overrides = combination
    overrides += SIZES[algorithm]
    assert_crashed_run_resumes_exactly(algorithm, *overrides)
    policy = load_policy(straight_run(algorithm, *overrides))
    assert policy.act(torch.zeros(17).numpy()).shape == (6,)


@pytest.mark.parametrize(
    ("algorithm", "sampler"),
    [
        pytest.param(algorithm, sampler, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(SIZES, SAMPLERS)
        for algorithm, sampler in [pair]
    ],
)
def test_every_sampler_trains(algorithm, sampler, train, table, tmp_path):
    small = ("total_frames=90", "init_random_frames=60", "log_interval=30", "eval_interval=90")
    run_dir = train(algorithm, tmp_path, *SIZES[algorithm], *small, f"sampler={sampler}")
    last = table(run_dir / "train.csv")[-1]
    assert float(last["critic_loss"]) > 0
    assert 1 / 3 < float(last["factor_mean"]) <= 2.72
    assert (run_dir / "finished").exists()


class TestPublishedSettings:
    """Of the papers, or of the authors' code where the paper leaves something out."""

    def test_of_redq(self, configuration, tmp_path):
        cfg = to_config(configuration("redq", tmp_path))
        default = redq.REDQConfig
        assert (default.num_critics, default.subset_size, default.utd_ratio) == (10, 2, 20)
        assert (cfg.critic_lr, cfg.actor_lr, cfg.alpha_lr, cfg.tau) == (3e-4, 3e-4, 3e-4, 0.005)

    @pytest.mark.parametrize(
        ("env", "entropy"), [("Hopper-v4", -1), ("HalfCheetah-v4", -3), ("Swimmer-v4", -2)]
    )
    def test_of_redqs_target_entropy(self, agent_of, tmp_path, env, entropy):
        loss = agent_of("redq", tmp_path, f"env={env}").loss
        assert float(loss.target_entropy) == entropy

    @pytest.mark.parametrize(
        ("env", "dropped"), [("Hopper-v4", 5), ("HalfCheetah-v4", 0), ("Walker2d-v4", 2)]
    )
    def test_of_tqc(self, agent_of, tmp_path, env, dropped):
        loss = agent_of("tqc", tmp_path, f"env={env}").loss
        assert loss.num_qvalue_nets == 5
        assert loss.top_quantiles_to_drop_per_net == dropped
        shapes = [tuple(p.shape) for p in loss.qvalue_network_params.values(True, True)]
        assert shapes[-1] == (5, 25)
        assert (5, 512, 512) in shapes

    def test_of_crossq(self, agent_of, tmp_path):
        agent = agent_of("crossq", tmp_path)
        assert agent.targets is None
        shapes = [tuple(p.shape) for p in agent.loss.qvalue_network_params.values(True, True)]
        assert (2, 2048, 2048) in shapes
        for optimizer in (agent.critic_optimizer, agent.actor_optimizer):
            (group,) = optimizer.param_groups
            assert (group["lr"], group["betas"]) == (1e-3, (0.5, 0.999))
            assert all(isinstance(parameter, nn.Parameter) for parameter in group["params"])


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("crossq", {"critic": {36}, "actor": {12}, "alpha": {12}}),
        ("redq", {"critic": {72}, "actor": {36}}),
    ],
)
def test_critics_and_actor_are_updated_as_often_as_stated(
    algorithm, expected, train, checkpoint, tmp_path
):
    small = ("total_frames=96", "init_random_frames=60", "checkpoint_interval=96")
    parts = checkpoint(train(algorithm, tmp_path, *SIZES[algorithm], *small))["parts"]
    steps = {
        name: {int(state["step"]) for state in parts[f"{name}_optimizer"]["state"].values()}
        for name in expected
    }
    assert steps == expected


@pytest.mark.slow
def test_priorities_without_importance_weights_are_accepted(train, tmp_path):
    small = ("total_frames=70", "init_random_frames=60", "replay=per", "replay.beta=0")
    for algorithm in ("redq", "crossq"):
        run_dir = train(algorithm, tmp_path / algorithm, *SIZES[algorithm], *small)
        assert (run_dir / "finished").exists()
