"""Workers in Ray actors, on one node and on two nodes in network namespaces."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vmfer_recipes.config.errors import UserError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
ROOT = Path(__file__).parents[2]
HEAD, OTHER = "10.87.0.1", "10.87.0.2"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-of-this-test-only"}
OPTIONS = (
    "env.name=my_point:Point-v0",
    "total_frames=300",
    "collector.num_workers=3",
    "collector.chunk=8",
    "collector.sync=true",
)


def netns(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def user_folder(tmp_path):
    """A folder with a module of the user, which only the learner can import."""
    folder = tmp_path / "user"
    folder.mkdir()
    shutil.copy(ROOT / "examples/own_environment/my_tasks.py", folder / "my_point.py")
    return folder


class Cluster:
    """Ray nodes in two network namespaces. The second cannot see this project.

    Their object stores have the smallest size that Ray accepts.
    """

    def __init__(self):
        self.spaces = [f"vmfer{os.getpid()}{end}" for end in "ab"]
        self.temporary = Path("/tmp") / f"ray{os.getpid()}"  # Ray's sockets need short paths
        self._nodes = []
        for space in self.spaces:
            netns("netns", "add", space)
            netns("-n", space, "link", "set", "lo", "up")
        pair = ("link", "add", "eth1", "netns", self.spaces[0], "type", "veth")
        netns(*pair, "peer", "name", "eth1", "netns", self.spaces[1])
        for space, address in zip(self.spaces, (HEAD, OTHER), strict=True):
            netns("-n", space, "addr", "add", f"{address}/24", "dev", "eth1")
            netns("-n", space, "link", "set", "eth1", "up")

    def start(self, number: int, cpus: int) -> None:
        """Starts the head (number 0) or the other node, and waits until it runs."""
        ray = [str(Path(sys.executable).parent / "ray"), "start", "--disable-usage-stats"]
        words = [*ray, "--block", f"--num-cpus={cpus}", "--object-store-memory=80000000"]
        if number == 0:
            words += ["--head", "--port=6379", "--include-dashboard=false"]
            words += [f"--node-ip-address={HEAD}", f"--temp-dir={self.temporary}"]
        else:
            hide = "mount --make-rprivate / && "
            for folder in ("recipes", "torchrl_vmfer"):
                hide += f"mount -t tmpfs none {ROOT / folder} && "
            words += [f"--address={HEAD}:6379", f"--node-ip-address={OTHER}"]
            words = ["unshare", "-m", "sh", "-c", f'{hide} exec "$@"', "sh", *words]
        options = {"env": {**os.environ, **TOKEN}, "stdout": subprocess.PIPE, "text": True}
        self._nodes.append(self.popen(number, words, cwd="/", **options))
        assert any("Ray runtime started" in line for line in self._nodes[-1].stdout)

    def popen(self, number: int, words: list[str], **options) -> subprocess.Popen:
        """Starts a process in a namespace."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.spaces[number], *words], **(quiet | options)
        )

    def received(self) -> int:
        """The bytes that the head has received from the other node."""
        file = "/sys/class/net/eth1/statistics/rx_bytes"
        with self.popen(0, ["cat", file], stdout=subprocess.PIPE) as process:
            return int(process.stdout.read())

    def kill(self, number: int, words: str = "") -> None:
        """Kills the processes of a node whose command lines contain some words."""
        pids = ["ip", "netns", "pids", self.spaces[number]]
        for pid in subprocess.run(pids, capture_output=True, text=True).stdout.split():
            with contextlib.suppress(OSError):
                if words in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(int(pid), signal.SIGKILL)

    def close(self) -> None:
        """Kills all nodes and deletes the namespaces."""
        for number, space in enumerate(self.spaces):
            self.kill(number)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        for node in self._nodes:
            node.communicate(timeout=30)
        shutil.rmtree(self.temporary, ignore_errors=True)


@pytest.fixture
def cluster():
    cluster = Cluster.__new__(Cluster)
    try:
        cluster.__init__()
    except (OSError, subprocess.CalledProcessError) as error:
        cluster.close()
        pytest.skip(f"this machine does not permit network namespaces: {error}")
    yield cluster
    cluster.close()


@pytest.fixture
def run_on(cluster, command):
    """Starts a run on the head of a cluster."""

    def start(run_dir, *overrides, path=""):
        environment = {**os.environ, **TOKEN, "RAY_ADDRESS": f"{HEAD}:6379", "PYTHONPATH": path}
        words = command("td3", run_dir, *overrides, "collector=ray")
        return cluster.popen(0, words, env=environment, stderr=subprocess.PIPE, text=True)

    return start


@pytest.mark.slow
def test_two_nodes_give_the_results_of_processes_on_one_machine(
    cluster, run_on, user_folder, run_command, tmp_path
):
    cluster.start(0, cpus=1)
    cluster.start(1, cpus=2)
    two = run_on(tmp_path / "two", *OPTIONS, path=str(user_folder))
    _, error = two.communicate(timeout=600)
    assert two.returncode == 0, error
    options = (*OPTIONS, "collector=processes")
    environment = {**os.environ, "PYTHONPATH": str(user_folder)}
    one = run_command("td3", tmp_path / "one", *options, env=environment)
    assert one.returncode == 0, one.stderr
    for name in ("eval.csv", "policy.pt"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
def test_each_transition_crosses_the_network_about_once(cluster, run_on, tmp_path):
    cluster.start(0, cpus=0)  # all workers are on the other node
    cluster.start(1, cpus=2)
    before = cluster.received()
    options = ("env=Humanoid-v4", "total_frames=6000", "utd_ratio=1/16", "eval_interval=6000")
    run = run_on(tmp_path, *options, "collector.chunk=32", "checkpoint_interval=6000")
    _, error = run.communicate(timeout=600)
    assert run.returncode == 0, error
    size = 4 * (2 * 376 + 17 + 1) + 2  # two observations, action, reward and two flags
    assert 1 <= (cluster.received() - before) / (6000 * size) <= 2


@pytest.mark.slow
def test_run_uses_a_node_that_joins_late_and_survives_its_loss(
    cluster, run_on, user_folder, table, tmp_path
):
    def wait_for(words):
        lines = []
        while not any(words in line for line in lines):
            lines.append(run.stderr.readline())
            assert lines[-1], "".join(lines)

    cluster.start(0, cpus=1)
    options = ("total_frames=1000000", "collector.sync=false", "checkpoint_interval=200")
    run = run_on(tmp_path, *OPTIONS, *options, path=str(user_folder))
    wait_for("2 of 3 workers are waiting for CPUs, of which the cluster has 1.")
    cluster.start(1, cpus=2)
    before = cluster.received()
    end = time.monotonic() + 200
    while cluster.received() - before < 500_000:  # more than a node without workers sends
        assert time.monotonic() < end
        time.sleep(1)
    cluster.kill(1)
    wait_for("was lost")
    reached = table(tmp_path / "train.csv")[-1]["step"]
    while table(tmp_path / "train.csv")[-1]["step"] == reached:
        assert run.poll() is None
        time.sleep(1)
    cluster.kill(0)  # the learner is on this node, too
    run.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize("process", ["gcs_server", ""])
def test_run_without_the_head_of_its_cluster_ends_in_one_line_and_resumes(
    process, cluster, run_on, run_command, tmp_path
):
    """Killed are the head's server, after which Ray waits for a minute, or all its processes."""
    cluster.start(0, cpus=2)
    options = ("checkpoint_interval=200", "total_frames=1000000")
    run = run_on(tmp_path, *options)
    end = time.monotonic() + 500
    while not list((tmp_path / "checkpoint").glob("step_*.pt")):
        assert run.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    cluster.kill(0, process or str(cluster.temporary))
    _, error = run.communicate(timeout=120)
    assert run.returncode == 1
    (line,) = (line for line in error.splitlines() if line.startswith("error: "))
    assert line.startswith(f"error: The run in {tmp_path} has ended, as Ray ends it if the ")
    saved = max(int(file.stem[5:]) for file in (tmp_path / "checkpoint").glob("step_*.pt"))
    assert saved
    options = ("collector=ray", "checkpoint_interval=200", f"total_frames={saved + 100}")
    resumed = run_command("td3", tmp_path, *options)
    assert resumed.returncode == 0, resumed.stderr
    assert f"at step {saved}." in resumed.stderr


def test_an_address_where_no_cluster_is_is_an_error_without_waiting_for_ray(
    train, monkeypatch, tmp_path
):
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray tries to connect"))
    with socket.create_server(("127.0.0.1", 0)) as server:  # a port that is free afterwards
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match="check RAY_ADDRESS"):
        train("td3", tmp_path, "collector=ray")


@pytest.mark.slow
def test_run_with_fewer_cpus_than_workers_says_so_and_its_process_ends(
    user_folder, run_command, tmp_path
):
    """One CPU for three workers that must all take part: the run waits, then ends."""
    environment = {**os.environ, "PYTHONPATH": str(user_folder)}
    program = "import ray; ray.init(num_cpus=1, include_dashboard=False); input('started\\n')"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as cluster:  # fmt: skip
        assert "started\n" in cluster.stdout
        options = (*OPTIONS, "collector=ray", "collector.patience=40")
        environment["RAY_ADDRESS"] = "auto"
        run = run_command("td3", tmp_path / "run", *options, env=environment)
        cluster.communicate("\n")
    assert run.returncode == 2, run.stderr
    assert "2 of 3 workers are waiting for CPUs, of which the cluster has 1" in run.stderr
    assert "error: No frames have arrived for collector.patience=40 seconds" in run.stderr
