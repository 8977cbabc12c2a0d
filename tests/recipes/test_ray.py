"""Workers in Ray actors, on one node and on two nodes in network namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
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


@pytest.fixture
def two_nodes(tmp_path):
    """A Ray cluster of two namespaces with 1 and 2 CPUs. The second cannot see this project."""
    spaces = [f"vmfer{os.getpid()}{end}" for end in "ab"]
    try:
        for space in spaces:
            netns("netns", "add", space)
            netns("-n", space, "link", "set", "lo", "up")
        pair = ("link", "add", "eth1", "netns", spaces[0], "type", "veth")
        netns(*pair, "peer", "name", "eth1", "netns", spaces[1])
        for space, address in zip(spaces, (HEAD, OTHER), strict=True):
            netns("-n", space, "addr", "add", f"{address}/24", "dev", "eth1")
            netns("-n", space, "link", "set", "eth1", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        pytest.skip(f"this machine does not permit network namespaces: {error}")
    start = [str(Path(sys.executable).parent / "ray"), "start", "--disable-usage-stats", "--block"]
    head = ["--head", "--port=6379", "--num-cpus=1", "--include-dashboard=false"]
    hide = "mount --make-rprivate / && "
    for folder in ("recipes", "torchrl_vmfer"):
        hide += f"mount -t tmpfs none {ROOT / folder} && "
    temporary = Path("/tmp") / f"ray{os.getpid()}"  # Ray's sockets need short paths
    commands = [
        [*start, *head, f"--node-ip-address={HEAD}", f"--temp-dir={temporary}a"],
        [*start, f"--address={HEAD}:6379", f"--node-ip-address={OTHER}", "--num-cpus=2"],
    ]
    commands[1] = ["unshare", "-m", "sh", "-c", f'{hide} exec "$@"', "sh", *commands[1]]
    nodes = []
    for space, words in zip(spaces, commands, strict=True):
        nodes.append(
            subprocess.Popen(
                ["ip", "netns", "exec", space, *words],
                env={**os.environ, **TOKEN},
                cwd="/",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        time.sleep(10)
    yield spaces
    for space in spaces:
        found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
        for pid in found.stdout.split():
            subprocess.run(["kill", "-9", pid], capture_output=True)
        netns("netns", "del", space)
    for node in nodes:
        node.wait(30)
    shutil.rmtree(f"{temporary}a", ignore_errors=True)


@pytest.mark.slow
def test_two_nodes_give_the_results_of_processes_on_one_machine(
    two_nodes, user_folder, command, run_command, assert_same_run, tmp_path
):
    environment = {**os.environ, **TOKEN, "PYTHONPATH": str(user_folder)}
    words = command("td3", tmp_path / "two", *OPTIONS, "collector=ray")
    two = subprocess.run(
        ["ip", "netns", "exec", two_nodes[0], *words],
        env={**environment, "RAY_ADDRESS": f"{HEAD}:6379"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert two.returncode == 0, two.stderr
    options = (*OPTIONS, "collector=processes")
    one = run_command("td3", tmp_path / "one", *options, env=environment)
    assert one.returncode == 0, one.stderr
    for name in ("eval.csv", "policy.pt"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
def test_run_with_fewer_cpus_than_workers_says_so_and_its_process_ends(
    user_folder, run_command, tmp_path
):
    """One CPU for three workers that must all take part: the run waits, then ends."""
    environment = {**os.environ, "PYTHONPATH": str(user_folder)}
    program = "import ray; ray.init(num_cpus=1, include_dashboard=False); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, text=True,
    ) as cluster:  # fmt: skip
        time.sleep(15)
        options = (*OPTIONS, "collector=ray", "collector.patience=40")
        environment["RAY_ADDRESS"] = "auto"
        run = run_command("td3", tmp_path / "run", *options, env=environment)
        cluster.communicate("\n")
    assert run.returncode == 2, run.stderr
    assert "2 of 3 workers are waiting for CPUs, of which the cluster has 1" in run.stderr
    assert "error: No frames have arrived for collector.patience=40 seconds" in run.stderr
