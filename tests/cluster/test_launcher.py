"""Ray's launcher runs the shipped cluster/*.yaml and sweep.py on namespace hosts. The tests need root."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hflray import metrics
from hflray.experiment import Experiment
from hflray.support.store import Store
from hflray.sweep import expand, load_sweep
from hflray.sweep.results import IN_STORAGE
from hflray.tune.storage import Storage
from tests.cluster.fake import CREDENTIALS, ENDPOINT, FakeEc2, Hosts, need_hosts
from tests.conftest import own_module

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

SWEEP = Path(__file__).with_name("clustered.yaml").read_text(encoding="utf-8")
FILE = "tune_configs/clustered.yaml"
# Trials wait before their fifth round until this file exists, so that no machine is too fast for a loss. All hosts have
# this folder.
GATE = Path("/var/tmp") / f"hflray-gate-{os.getpid()}"
GATED = own_module("gated").replace("GATE", str(GATE))


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    yield
    GATE.unlink(missing_ok=True)


def write_sweep(hosts: Hosts) -> list[Any]:
    """Write the sweep's files into the hosts' repository and return its trials."""
    (hosts.repository / FILE).write_text(SWEEP)
    (hosts.repository / FILE).with_name("gated.py").write_text(GATED)
    return expand(load_sweep(hosts.repository / FILE))


# The object store is small because every host sees this machine's memory as its own.
SMALL = "--object-store-memory=150000000"


def shipped(name: str) -> dict[str, Any]:
    """Return a shipped cluster file with a small object store."""
    text = (Path(__file__).parents[2] / "cluster" / name).read_text(encoding="utf-8")
    return yaml.safe_load(text.replace("ray start ", f"ray start {SMALL} "))


def wait_for(condition: Callable[[], Any], seconds: float, event: str, process: Any = None) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{seconds:.0f} s without {event}"
        assert process is None or process.poll() is None, f"ended before {event}:\n{process.communicate()[0]}"
        time.sleep(0.3)
    return value


def runs_on(hosts: Hosts, head: str) -> dict[str, Any]:
    """Return the runs of MLflow on the head: from name to status and to the (step, value) pairs of two metrics."""
    code = f"""
import json
from mlflow import MlflowClient
client = MlflowClient("http://127.0.0.1:5000")
experiment = client.get_experiment_by_name("hflray")
runs = {{}}
for run in client.search_runs([experiment.experiment_id]) if experiment else []:
    names = ("{metrics.ACCURACY}", "{metrics.TOTAL_OBJECTIVE}")
    history = {{n: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, n)] for n in names}}
    runs.setdefault(run.info.run_name, []).append([run.info.status, history])
print(json.dumps(runs))
"""
    process = hosts.inside(head, code)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def check_complete(runs: dict[str, Any], results: dict[str, list[dict[str, Any]]], trials: list[Any]) -> None:
    """Assert that each trial is one finished run with each round once, and so is its journal in `results`.

    The values and models must be those of an uninterrupted run on one machine.
    """
    assert set(runs) == {trial.name for trial in trials}
    for trial in trials:
        records = list(Experiment(trial.config.model_copy(update={"training": serial(trial.config.training)})))
        ((status, history),) = runs[trial.name]
        assert status == "FINISHED"
        for name in (metrics.ACCURACY, metrics.TOTAL_OBJECTIVE):
            assert history[name] == [[record.round, record.metrics()[name]] for record in records]
        hashes = [(entry["round"], entry["model_hash"]) for entry in results[trial.name]]
        assert hashes == [(record.round, record.model_hash) for record in records]


def serial(training: Any) -> Any:
    return training.model_copy(update={"backend": "serial"})


@pytest.fixture
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hosts, FakeEc2]]:
    need_hosts()
    hosts = Hosts(tmp_path_factory.mktemp("aws"), {**CREDENTIALS, "AWS_ENDPOINT_URL": ENDPOINT})
    try:
        ec2 = FakeEc2(hosts)
        try:
            yield hosts, ec2
        finally:
            ec2.close()
    finally:
        hosts.close()


def test_a_sweep_on_aws_completes_although_a_spot_machine_is_lost(aws, monkeypatch) -> None:
    """The steps are the README's: account, `ray up`, a sweep that starts and loses its worker, `ray down`."""
    hosts, ec2 = aws
    trials = write_sweep(hosts)
    vpc = ec2.client("ec2").describe_vpcs()["Vpcs"][0]["VpcId"]
    ec2.client("cloudformation").create_stack(
        StackName="hflray",
        TemplateBody=(hosts.repository / "cluster/aws-account.yaml").read_text(),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[
            {"ParameterKey": "VpcId", "ParameterValue": vpc},
            {"ParameterKey": "MyAddress", "ParameterValue": "10.77.0.1/32"},
        ],
    )
    (bucket,) = (entry["Name"] for entry in ec2.client("s3").list_buckets()["Buckets"])
    cluster = shipped("aws.yaml")
    cluster["setup_commands"] = [line.replace("EDIT-ME", bucket) for line in cluster["setup_commands"]]
    cluster["available_node_types"]["worker_spot"]["node_config"]["InstanceType"] = (
        "m7a.large"  # two CPUs, like this machine
    )
    cluster["idle_timeout_minutes"] = 2
    (hosts.repository / "cluster/aws.yaml").write_text(yaml.safe_dump(cluster))

    up = hosts.ray("up", "-y", "--no-config-cache", "cluster/aws.yaml")
    assert up.returncode == 0, up.stdout
    (head,) = ec2.running("head")
    # EC2 may give the profile to a machine that runs already.
    described = ec2.client("ec2").describe_instances(InstanceIds=[head["InstanceId"]])["Reservations"][0]["Instances"]
    assert described[0]["IamInstanceProfile"]["Arn"].endswith("hflray-head")
    assert not ec2.running("worker_spot")
    (group,) = head["SecurityGroups"]
    rules = ec2.client("ec2").describe_security_groups(GroupIds=[group["GroupId"]])["SecurityGroups"][0][
        "IpPermissions"
    ]
    opened = [entry["CidrIp"] for rule in rules for entry in rule["IpRanges"]]
    assert (group["GroupName"], opened) == ("hflray", ["10.77.0.1/32"])

    sweep = hosts.spawn("ray", "submit", "--no-config-cache", "cluster/aws.yaml", "cluster/sweep.py", FILE)
    (worker,) = wait_for(lambda: ec2.running("worker_spot"), 300, "a worker", sweep)
    assert worker["InstanceLifecycle"] == "spot"

    def rounds() -> int:
        runs = runs_on(hosts, head["host"])
        return max((len(history[metrics.ACCURACY]) for ((_, history),) in runs.values()), default=0)

    wait_for(lambda: rounds() >= 3, 400, "three rounds", sweep)
    last_round = rounds()
    ec2.lose(worker)
    GATE.touch()
    wait_for(lambda: [m for m in ec2.running("worker_spot") if m is not worker], 300, "a new worker", sweep)
    wait_for(lambda: rounds() > last_round + 1, 300, "another round", sweep)
    output, _ = sweep.communicate(timeout=400)
    assert sweep.returncode == 0, output
    assert f"s3://{bucket}/hflray" in output

    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": ENDPOINT}.items():
        monkeypatch.setenv(name, value)
    results = rounds_in(f"s3://{bucket}/hflray", trials)
    check_complete(runs_on(hosts, head["host"]), results, trials)

    down = hosts.ray("down", "-y", "cluster/aws.yaml")
    assert down.returncode == 0, down.stdout
    wait_for(lambda: not ec2.running(), 60, "the end of all machines")


LOCAL = {"RAY_UP_enable_autoscaler_v2": "0"}


@pytest.fixture
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Yield hosts: a head and a worker for cluster/local.yaml, and a third host outside the cluster."""
    need_hosts()
    folder = tmp_path_factory.mktemp("local")
    shared = Path("/var/tmp") / f"hflray-{os.getpid()}"  # all hosts see this folder, like an NFS mount
    hosts = Hosts(folder)
    try:
        for name, address in (("head", "10.77.0.2"), ("worker", "10.77.0.3"), ("stranger", "10.77.0.4")):
            hosts.up(name, address)
        cluster = shipped("local.yaml")
        cluster["provider"] |= {"head_ip": "10.77.0.2", "worker_ips": ["10.77.0.3"]}
        cluster["auth"] = {"ssh_user": "root", "ssh_private_key": str(hosts.key)}
        cluster |= {"min_workers": 1, "max_workers": 1}
        cluster["setup_commands"] = [
            line.replace("/mnt/shared/hflray", str(shared)) for line in cluster["setup_commands"]
        ]
        # Otherwise each host would use all CPUs of this machine.
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            cluster[key] = [line.replace("ray start ", "ray start --num-cpus=1 ") for line in cluster[key]]
        (hosts.repository / "cluster/local.yaml").write_text(yaml.safe_dump(cluster))
        hosts.shared = shared
        yield hosts
    finally:
        hosts.close()
        import shutil

        shutil.rmtree(shared, ignore_errors=True)


NODES = """
import os, ray
ray.init(address="10.77.0.2:6379", log_to_driver=False, logging_level="ERROR")
print("nodes", sum(node["Alive"] for node in ray.nodes()))
"""


def both_joined(hosts: Hosts) -> bool:
    """Return whether both nodes have joined; the command also compares what they run."""
    answer = hosts.ray("exec", "--no-config-cache", "cluster/local.yaml", "python -m hflray.tune.nodes", **LOCAL)
    assert answer.returncode == 0, answer.stdout
    return answer.stdout.count(" CPUs") == 2


def rounds_in(uri: str, trials: list[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rounds in the journals that a storage has of its only sweep, by the trial's name."""
    (sweep,) = [name for name in Store(uri).names() if Store(f"{uri}/{name}").has(f"{IN_STORAGE}/sweep.json")]
    storage = Storage(uri, Path(sweep))
    journals = {trial.name: storage._whole(trial.name).splitlines() for trial in trials}
    return {name: [e for e in map(json.loads, lines) if "round" in e] for name, lines in journals.items()}


def test_hosts_that_a_killed_run_has_left_are_ended_by_the_next(tmp_path: Path) -> None:
    need_hosts()
    (tmp_path / "left").mkdir()
    (tmp_path / "next").mkdir()
    left = Hosts(tmp_path / "left")
    left.up("head", "10.77.0.2")
    left.up("worker", "10.77.0.3")
    hosts = Hosts(tmp_path / "next")
    try:
        assert hosts.inside("worker", "").returncode
        hosts.up("head", "10.77.0.2")
        assert not hosts.inside("head", "").returncode
    finally:
        hosts.close()


def test_a_sweep_on_two_local_hosts_survives_a_lost_connection(local) -> None:
    hosts = local
    trials = write_sweep(hosts)
    up = hosts.ray("up", "-y", "--no-config-cache", "cluster/local.yaml", **LOCAL)
    assert up.returncode == 0, up.stdout

    wait_for(lambda: both_joined(hosts), 300, "the worker")

    # The connection of `ray submit` is cut, and the sweep continues.
    sweep = hosts.spawn("ray", "submit", "--no-config-cache", "cluster/local.yaml", "cluster/sweep.py", FILE, **LOCAL)

    def rounds() -> int:
        runs = runs_on(hosts, "head")
        return max((len(history[metrics.ACCURACY]) for ((_, history),) in runs.values()), default=0)

    wait_for(lambda: rounds() >= 2, 400, "two rounds", sweep)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.wait()
    assert not finished(runs_on(hosts, "head"), len(trials))

    check_strangers(hosts)
    GATE.touch()

    wait_for(lambda: finished(runs_on(hosts, "head"), len(trials)), 300, "the end of the unwatched sweep")
    check_complete(runs_on(hosts, "head"), rounds_in(str(hosts.shared), trials), trials)

    # An error is reported before any trial starts, and by the exit code of ray submit.
    wrong = ["cluster/sweep.py", FILE, "--fresh", "--set", "tune.cpus_per_trial=64"]
    refused = hosts.ray("submit", "--no-config-cache", "cluster/local.yaml", *wrong, **LOCAL)
    assert refused.returncode != 0
    assert "error: tune.cpus_per_trial: a trial needs 64 CPUs, Ray has 2; accepted: up to 2" in refused.stdout
    down = hosts.ray("down", "-y", "cluster/local.yaml", **LOCAL)
    assert down.returncode == 0, down.stdout


def finished(runs: dict[str, Any], count: int) -> bool:
    return len(runs) == count and all(status == "FINISHED" for ((status, _),) in runs.values())


def check_strangers(hosts: Hosts) -> None:
    """Assert that neither Ray nor MLflow gives access to another host without the token."""
    closed = """
import socket
for port in (8265, 5000):
    try:
        socket.create_connection(("10.77.0.2", port), timeout=3)
        print("open", port)
    except OSError:
        print("closed", port)
"""
    answer = hosts.inside("stranger", closed)
    assert answer.stdout.split() == ["closed", "8265", "closed", "5000"], answer.stdout + answer.stderr
    nobody = {"HOME": str(hosts.folder), "RAY_ADDRESS": ""}
    join = NODES.replace("print(", "print('LET IN', ")
    client = (
        "import ray; ray.init('ray://10.77.0.2:10001'); print('LET IN')"  # this port is open, but requires the token
    )
    for code, mode in ((join, "token"), (join, "disabled"), (client, "token"), (client, "disabled")):
        if mode == "token":  # a wrong token
            (hosts.folder / ".ray").mkdir(exist_ok=True)
            (hosts.folder / ".ray" / "auth_token").write_text("0" * 64)
        answer = hosts.inside("stranger", code, RAY_AUTH_MODE=mode, **nobody)
        assert answer.returncode != 0, answer.stdout
        assert "LET IN" not in answer.stdout
        if code is join:  # the client reports only that its connection timed out
            assert "uthenticat" in answer.stderr or "token" in answer.stderr, answer.stderr[-2000:]
    # With the token, access is given. On a busy machine Ray's server for a client may end while it starts.
    for _ in range(3):
        answer = hosts.inside("stranger", client, RAY_AUTH_MODE="token")
        if "LET IN" in answer.stdout:
            break
    logs = "\n".join(path.read_text()[-2000:] for path in hosts.folder.rglob("ray_client_server_*.err"))
    assert "LET IN" in answer.stdout, answer.stderr[-2000:] + logs
    # Another user on the head reaches the loopback, but has no access without the token.
    jobs = """
import urllib.request, urllib.error
for path in ("/api/jobs/", "/api/v0/actors", "/nodes?view=summary"):
    try:
        print(urllib.request.urlopen("http://127.0.0.1:8265" + path, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
    answer = hosts.inside("head", jobs, **nobody)
    assert answer.stdout.split() == ["401", "401", "401"], answer.stdout + answer.stderr
    # hflray's command reports the missing token in one line.
    nodes = "from hflray.tune.nodes import main; raise SystemExit(main(['--address', '10.77.0.2:6379']))"
    answer = hosts.inside("stranger", nodes, RAY_AUTH_MODE="disabled", **nobody)
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "it wants its token" in answer.stderr
    assert "Traceback" not in answer.stderr
