"""The output of a run: tables, figure, policy, and the loggers that mirror the tables."""

from __future__ import annotations

import csv
import json
import sys
import time

import pytest
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from helpers.saved_rows import rows_in
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.groups import CustomLoggerConfig
from vmfer_recipes.config.training import to_config
from vmfer_recipes.run.session import Averages
from vmfer_recipes.run.tables import Table

SHORT = ("total_frames=130", "eval_interval=50", "log_interval=20")


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def vmf_run(train, tmp_path_factory):
    return train("td3", tmp_path_factory.mktemp("vmf") / "run", "sampler=vmf_rank", *SHORT)


@pytest.fixture(scope="module")
def uniform_run(train, tmp_path_factory):
    return train("sac", tmp_path_factory.mktemp("uniform") / "run", "sampler=uniform", *SHORT)


def test_a_finished_run_has_all_its_files_with_the_documented_columns(vmf_run):
    evaluations, training = rows(vmf_run / "eval.csv"), rows(vmf_run / "train.csv")
    columns = ["step", "return_mean", "return_std", "episode_length", "success_rate"]
    assert list(evaluations[0]) == columns
    assert [int(row["step"]) for row in evaluations] == [0, 50, 100, 130]
    assert {row["success_rate"] for row in evaluations} == {""}  # the task reports no success
    assert next(iter(training[0])) == "step"
    assert [int(row["step"]) for row in training] == [80, 100, 120, 130]
    assert (vmf_run / "finished").stat().st_size == 0
    assert torch.load(vmf_run / "policy.pt", weights_only=True)
    cfg = OmegaConf.load(vmf_run / "config.yaml")
    names = (cfg.algorithm, cfg.env.name, cfg.sampler.name)
    assert names == ("td3", "InvertedPendulum-v4", "vmf_rank")
    assert cfg.run_dir == str(vmf_run)  # resolved, not an interpolation
    assert not list(vmf_run.rglob("*.unfinished"))


@pytest.mark.parametrize("run", ["vmf_run", "uniform_run"])
def test_training_rows_contain_losses_statistics_and_diagnostics_in_range(run, request):
    """A baseline also reports how much its critics agree."""
    for number, row in enumerate(rows(request.getfixturevalue(run) / "train.csv")):
        values = {key: float(value) for key, value in row.items() if value}
        assert values["critic_loss"] >= 0
        assert values.keys() >= {"actor_loss", "gradient_snr"}
        assert values["steps_per_second"] > 0
        assert 60 < values["stored_transitions"] <= values["step"]
        assert 1 <= values["effective_sample_size"] <= values["stored_transitions"] + 1e-6
        assert 0 <= values["saturated_fraction"] <= 1
        assert -1 <= values["gradient_cosine"] <= 1
        # No factor was stored before the first batch, so there is no age.
        assert ("factor_age" in values) == (run == "vmf_run" and number > 0)
        assert ("unscored_fraction" in values) == (run == "vmf_run")
        for name, low, high in (("resultant_length", 0, 1), ("factor", 0, 2.7183)):
            deciles = [values[f"{name}_q{percent}"] for percent in (10, 50, 90)]
            assert deciles == sorted(deciles)
            assert all(low <= value <= high for value in [*deciles, values[f"{name}_mean"]])


def test_tensorboard_logs_the_contents_of_the_tables(train, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task = "env.name=gymnasium.envs.mujoco:InvertedPendulum-v4"
    run_dir = train("td3", tmp_path / "run", "logger=tensorboard", task, *SHORT)
    (events,) = run_dir.rglob("events.out.tfevents.*")
    log = EventAccumulator(str(events)).Reload()
    returns = {event.step: event.value for event in log.Scalars("eval/return_mean")}
    assert returns == pytest.approx(
        {int(row["step"]): float(row["return_mean"]) for row in rows(run_dir / "eval.csv")}
    )
    assert [event.step for event in log.Scalars("train/critic_loss")] == [80, 100, 120, 130]
    assert {f"train/{name}" for name in rows(run_dir / "train.csv")[0]} - {"train/step"} <= set(
        log.Tags()["scalars"]
    )
    task = "gymnasium.envs.mujoco-InvertedPendulum-v4"  # some file systems forbid colons
    assert events.parent.name == f"td3-{task}-uniform-vmf_uncertainty-seed0"
    # For the page "HPARAMS", and as a string.
    assert "_hparams_/session_start_info" in log.Tags()["tensors"] + list(log.summary_metadata), (
        log.Tags()
    )
    (text,) = log.Tensors("hyper-parameters/text_summary")
    (table,) = text.tensor_proto.string_val
    assert "| replay.buffer_size | 5000 |" in table.decode()


@pytest.fixture
def wandb_home(tmp_path, monkeypatch):
    """Sets up Weights & Biases without an account and without prompts."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return wandb


def _records(data):
    """The run and the history rows in a file of Weights & Biases, which is in LevelDB's format."""
    from wandb.proto.wandb_internal_pb2 import Record

    run, history, content = None, [], data.read_bytes()
    position, part = 7, b""
    while position < len(content):
        left = 2**15 - position % 2**15  # the size of a block
        if left >= 7:
            left = 7 + int.from_bytes(content[position + 4 : position + 6], "little")
            part += content[position + 7 : position + left]
            if content[position + 6] in (1, 4):  # complete, or the last part
                record, part = Record.FromString(part), b""
                run = record.run if record.HasField("run") else run
                rows = record.history.item
                found = [(each, each.key or "/".join(each.nested_key)) for each in rows]
                history.append({name: json.loads(each.value_json) for each, name in found})
        position += left
    return run, history


def _written(data):
    """The records, once the process of Weights & Biases has written them."""
    for _ in range(100):
        run, history = _records(data)
        if run is not None:
            break
        time.sleep(0.1)
    return run, history


def test_offline_wandb_logs_tables_hyperparameters_and_group(train, wandb_home, tmp_path):
    run_dir = train("td3", tmp_path / "run", "logger=wandb", "logger.offline=true", *SHORT)
    assert wandb_home.run is None  # closed by the recipe
    (data,) = run_dir.rglob("offline-run-*/*.wandb")
    run, history = _written(data)
    assert run.display_name == "td3-InvertedPendulum-v4-uniform-vmf_uncertainty-seed0"
    assert run.run_group == "td3-InvertedPendulum-v4-uniform-vmf_uncertainty"
    assert "vmf_uncertainty" in run.tags
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert settings["replay.buffer_size"] == 5000
    assert settings["seed"] == 0
    for table in ("eval", "train"):
        expected = rows(run_dir / f"{table}.csv")
        for column in expected[0]:
            if column == "step" or not expected[0][column]:
                continue
            logged = {
                row[f"{table}/step"]: row[f"{table}/{column}"]
                for row in history
                if f"{table}/{column}" in row
            }
            assert logged == pytest.approx(
                {int(row["step"]): float(row[column]) for row in expected}
            ), column


def test_a_resumed_run_continues_the_same_run_at_wandb(train, crash, wandb_home, tmp_path):
    arguments = ("logger=wandb", "logger.offline=true", *SHORT)
    crash("td3", tmp_path / "run", *arguments, at=90)
    train("td3", tmp_path / "run", *arguments)
    runs = [_written(data)[0] for data in (tmp_path / "run").rglob("offline-run-*/*.wandb")]
    assert len({run.run_id for run in runs}) == 1


def test_wandb_without_a_login_is_rejected_before_training(configuration, wandb_home, tmp_path):
    with pytest.raises(UserError, match=r"`wandb login`.*logger\.offline=true or logger=csv"):
        to_config(configuration("td3", tmp_path / "run", "logger=wandb"))


MY_LOGGERS = """
from torchrl.record.loggers import CSVLogger

class Failing(CSVLogger):
    def __init__(self, name, log_dir):
        raise ModuleNotFoundError('No module named my_tracker')

class Recording(CSVLogger):
    received = []
    def __init__(self, name, log_dir):
        super().__init__(name, log_dir)
        self.received.append(name)
    def log_hparams(self, cfg):
        self.received.append(cfg['env.name'])
    def log_scalar(self, name, value, step=None):
        self.received.append((name, step))
"""


def test_a_custom_logger_receives_hyperparameters_and_tables_or_is_named(
    train, tmp_path, monkeypatch
):
    (tmp_path / "my_loggers.py").write_text(MY_LOGGERS)
    monkeypatch.chdir(tmp_path)
    for name in ("Failing", "Recording"):
        chosen = CustomLoggerConfig(_target_=f"my_loggers.{name}")
        ConfigStore.instance().store(f"my_{name}", chosen, group="logger")
    with pytest.raises(
        UserError, match=r"logger=my_loggers\.Failing could not be created .*my_tracker"
    ):
        train("td3", tmp_path / "run", "logger=my_Failing", *SHORT)
    train("td3", tmp_path / "run", "logger=my_Recording", *SHORT)
    name, task, *scalars = sys.modules["my_loggers"].Recording.received
    assert name == "td3-InvertedPendulum-v4-uniform-vmf_uncertainty-seed0"
    assert task == "InvertedPendulum-v4"
    assert {("eval/return_mean", 0), ("train/critic_loss", 130)} <= {*scalars}


def test_a_table_is_cut_to_its_state_and_grows_by_columns(tmp_path):
    file = tmp_path / "table.csv"
    table = Table(file, ("step", "loss"))
    empty = table.state_dict()
    table.write({"step": 1, "loss": 0.5})
    state = table.state_dict()
    table.write({"step": 2, "loss": 0.25, "speed": 7})
    assert file.read_text() == "step,loss,speed\n1,0.5,\n2,0.25,7\n"
    table.load_state_dict(state)
    assert file.read_bytes() == b"step,loss\n1,0.5\n"
    table.write({"step": 2, "loss": 0.125})
    assert file.read_bytes() == b"step,loss\n1,0.5\n2,0.125\n"
    table.load_state_dict(empty)
    assert file.read_text() == "step,loss\n"
    table.write({"step": 2, "speed": 7})
    assert file.read_text() == "step,loss,speed\n2,,7\n"


def test_rows_are_written_to_a_table_that_was_changed_by_hand(tmp_path):
    table = Table(tmp_path / "table.csv")
    table.write({"step": 1, "loss": 0.5})
    (tmp_path / "table.csv").write_text("step,loss,note\n1,0.5,good\n2,0.25,better\n")
    table.write({"step": 3, "loss": 0.125})
    assert table.state_dict() == {"rows": 3, "columns": ["step", "loss", "note"]}
    table.write({"step": 4, "speed": 7})
    assert (tmp_path / "table.csv").read_text().endswith("3,0.125,,\n4,,,7\n")


@pytest.mark.parametrize("content", [None, b"step"], ids=["missing", "shortened"])
def test_a_table_that_lost_rows_is_not_continued(tmp_path, content):
    path = tmp_path / "table.csv"
    table = Table(path)
    table.write({"step": 1})
    state = table.state_dict()
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=r"table\.csv is shorter"):
        table.check(state)


def test_averages_cover_the_values_since_the_last_read_use_little_memory_and_resume_exactly():
    averages, resumed = Averages(), Averages()
    averages.add(a=torch.tensor(1.0), b=torch.tensor(5.0))
    averages.add(a=torch.tensor(2.0))
    assert averages.pop() == {"a": 1.5, "b": 5.0}
    values = torch.randn(2500, generator=torch.Generator().manual_seed(0))
    for value in values[:2100]:
        averages.add(a=value, b=value + 1)
    state = averages.state_dict()
    assert state["values"]["a"].numel() <= 1000
    resumed.load_state_dict(state)
    for value in values[2100:]:
        averages.add(a=value, b=value + 1)
        resumed.add(a=value, b=value + 1)
    means = averages.pop()
    assert means == resumed.pop()
    assert means["a"] == pytest.approx(values.double().mean().item(), rel=1e-12)
    assert averages.pop() == {}


LOGGED = "log_info=[reward_ctrl,observation.3]"


WORKER = "collector=processes collector.sync=true collector.num_workers=1"


@pytest.mark.parametrize("collector", ["num_envs=2", pytest.param(WORKER, marks=pytest.mark.slow)])
def test_info_and_observations_are_logged_as_means_over_the_steps_of_a_row(
    collector, train, table, checkpoint, tmp_path
):
    short = ("env.name=HalfCheetah-v4", "init_random_frames=20", "total_frames=120", LOGGED)
    chunks = ("collector.chunk=20", "collector.max_lead=0") if "processes" in collector else ()
    run = train("td3", tmp_path, *short, *collector.split(), *chunks, "log_interval=40")
    stored = rows_in(checkpoint(run)["parts"]["replay"])
    cost = -0.1 * stored["action"].square().sum(-1)  # HalfCheetah's, from its documentation
    seen = stored["next"]["observation"][:, 3]
    found = table(run / "train.csv")
    for row, steps in zip(found, (slice(0, 40), slice(40, 80), slice(80, 120)), strict=True):
        expected = [values[steps].mean().item() for values in (cost, seen)]
        assert [float(row[key]) for key in ("info.reward_ctrl", "observation.3")] == pytest.approx(
            expected, rel=1e-4
        )


def test_logged_info_resumes_exactly(assert_crashed_run_resumes_exactly):
    assert_crashed_run_resumes_exactly("td3", "sampler=fresh", LOGGED)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("reward_control", "log_info=reward_control.*reward_ctrl"),
        ("observation.17", "log_info=observation.17.*observation.16"),
    ],
)
def test_info_that_does_not_exist_is_named(name, named, train, tmp_path):
    with pytest.raises(UserError, match=named):
        train("td3", tmp_path, "env.name=ShortCheetah-v0", f"log_info=[{name}]")
