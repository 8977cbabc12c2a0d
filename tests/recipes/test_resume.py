"""An interrupted run ends like an uninterrupted one."""

from __future__ import annotations

import pytest
import torch

from vmfer_recipes.config.errors import UserError

# One of each kind of sampler and replay in `make test`, the others in `make test-all`.
QUICK = [
    "td3 sampler=vmf_rank",
    "sac sampler=uniform replay=per",
    "td3 sampler=vmf_power sampler.power=8 sampler.share=0.5",
    "sac sampler=fresh weighting=4",
    "td3 sampler=signal sampler.signal=advantage",
    "td3 sampler=vmf_rank replay=per n_step=3 num_envs=2",
    "sac sampler=fresh lr_schedule=linear max_grad_norm=0.1 weight_decay=0.01",
    "td3 sampler=fresh critic_layer_norm=true critic_dropout=0.1 normalize_rewards=true",
    "td3 sampler=recent sampler.min_size=20 sampler.cycle=7",
    "td3 sampler=uniform replay=lap",
]
SAMPLERS = ("uniform", "vmf_uncertainty", "anti_vmf", "vmf_rank", "inverse_td")
SAMPLERS += ("gradient_norm", "old", "on_policy")
SLOW = [f"{recipe} sampler={sampler}" for recipe in ("td3", "sac") for sampler in SAMPLERS]
SLOW += [
    "sac sampler=signal sampler.signal=target_agreement sampler.power=-1",
    "td3 sampler=signal sampler.signal=return",
    "sac sampler=vmf_power sampler.power=8 sampler.share=0.5",
    "sac sampler=recent sampler.min_size=20 sampler.cycle=7",
    "sac sampler=uniform replay=lap",
    "sac sampler=vmf_uncertainty replay=per_rank",
    "td3 sampler=vmf_uncertainty directions=pre_tanh",
    "sac sampler=vmf_uncertainty directions=pre_tanh",
    "td3 sampler=vmf_uncertainty actor_objective=mean",
    # Requires a C++ compiler, which takes a minute.
    "td3 sampler=vmf_uncertainty compile=true",
    "sac sampler=vmf_uncertainty compile=true",
]


@pytest.mark.parametrize(
    "words", [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)]
)
def test_crashed_run_ends_like_an_uninterrupted_one(words, assert_crashed_run_resumes_exactly):
    assert_crashed_run_resumes_exactly(*words.split())


def test_crashed_run_has_an_unfinished_episode_and_rows_after_its_checkpoint(
    crashed_run, checkpoint, table
):
    # Otherwise the tests of resuming would not detect whether these are restored.
    run_dir = crashed_run("td3", "sampler=vmf_rank")
    parts = checkpoint(run_dir)["parts"]
    assert "['_elapsed_steps', 20]" in str(parts["collector"]["environments"][0])
    assert len(table(run_dir / "eval.csv")) > parts["evaluations"]["rows"]
    assert len(table(run_dir / "train.csv")) > parts["training"]["rows"]


@pytest.mark.parametrize("seed", [0, 1])
def test_run_that_crashed_before_its_first_checkpoint_starts_again(
    seed, straight_run, finish, assert_same_run, tmp_path
):
    straight = straight_run("td3", "sampler=vmf_rank")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    config = (straight / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(config.replace("seed: 0", f"seed: {seed}"))
    (run_dir / "eval.csv").write_text("step,return_mean\n0,1.0\n")
    (run_dir / "train.csv").write_text("step,critic_loss\n50,1.0\n")
    finish("td3", run_dir, "sampler=vmf_rank")
    # This also tests that the same command gives the same run twice.
    assert_same_run(straight, run_dir)


def test_finished_run_is_reported_and_left_unchanged(straight_run, finish, contents, capsys):
    run_dir = straight_run("td3", "sampler=vmf_rank")
    before = contents(run_dir)
    capsys.readouterr()
    finish("td3", run_dir, "sampler=vmf_rank")
    assert f"{run_dir} is finished" in capsys.readouterr().out
    assert contents(run_dir) == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("seed=7", "sampler.smoothing=0.5"),
            r"\(sampler.smoothing=0.0 there, 0.5 here; seed=0 there, 7 here\)",
        ),
        (("resume=false",), "resume=false"),
    ],
)
def test_directory_of_another_run_is_rejected_with_the_reason(
    overrides, message, crashed_run, finish, contents
):
    run_dir = crashed_run("td3", "sampler=vmf_rank")
    before = contents(run_dir)
    with pytest.raises(UserError, match=message):
        finish("td3", run_dir, "sampler=vmf_rank", *overrides)
    assert contents(run_dir) == before


def test_seeds_give_different_runs(train, tmp_path):
    policies = []
    for seed in (0, 1):
        run_dir = train("td3", tmp_path / f"{seed}", "total_frames=66", f"seed={seed}")
        policies.append(torch.load(run_dir / "policy.pt", weights_only=True)["weights"])
    assert any(not torch.equal(policies[0][key], policies[1][key]) for key in policies[0])


def test_rows_without_an_actor_update_have_the_same_columns(train, tmp_path):
    # The last step of TD3 is odd here and has a separate row: only the critics are updated.
    train("td3", tmp_path, "total_frames=101", "log_interval=50")
    header, *rows = (line.split(",") for line in (tmp_path / "train.csv").read_text().splitlines())
    assert [row[0] for row in rows] == ["100", "101"]
    assert [len(row) for row in rows] == [len(header)] * 2
    assert rows[1][header.index("actor_loss")] == ""
    assert float(rows[1][header.index("steps_per_second")]) > 0


@pytest.mark.parametrize("fast", ["true", "false"])
def test_a_buffer_in_files_gives_the_same_run_and_leaves_no_file(
    fast, straight_run, failing_at, finish, assert_equal, tmp_path
):
    options = ("sampler=vmf_rank", f"fast={fast}")
    run_dir = tmp_path / "run"
    mapped = (*options, "replay.storage=memmap")
    with failing_at(150):
        finish("td3", run_dir, *mapped)
    files = [file for file in run_dir.iterdir() if file.is_file()]
    assert all(file.stat().st_size < 60_000 for file in files)  # 5000 rows are 830 kB
    finish("td3", run_dir, *mapped)
    other = straight_run("td3", *options)
    assert (run_dir / "eval.csv").read_bytes() == (other / "eval.csv").read_bytes()
    policies = [torch.load(each / "policy.pt", weights_only=True) for each in (run_dir, other)]
    assert_equal(*(policy["weights"] for policy in policies))


def test_a_buffer_larger_than_memory_or_disk_is_refused_with_the_cure(agent_of, tmp_path):
    huge = ("env=Humanoid-v4", f"replay.buffer_size={10**9}")  # 3 TB
    with pytest.raises(UserError, match=r"GB of memory: lower it, or use replay.storage=memmap"):
        agent_of("td3", tmp_path, *huge)
    with pytest.raises(UserError, match=r"GB of free disk space in .*: lower it, or choose anothe"):
        agent_of("td3", tmp_path / "runs" / "new", *huge, "replay.storage=memmap")
    assert not (tmp_path / "runs").exists()
