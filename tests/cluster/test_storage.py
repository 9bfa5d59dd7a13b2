"""A sweep that saves its trials in moto's S3 is killed on one machine and resumed on another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from mlflow import MlflowClient

from hflray import metrics
from hflray.experiment import Experiment
from hflray.sweep import expand, load_sweep
from hflray.tracking import default_uri
from tests.cluster.fake import CREDENTIALS
from tests.tune.test_driver import ROUNDS, SWEEP, wait_for_round

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def s3(monkeypatch) -> Iterator[str]:
    """Yield the address of an S3 server with a bucket `results`."""
    server = pytest.importorskip("moto.server", reason="pip install '.[cluster-test]'")
    import boto3

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    place = {"LocationConstraint": "us-west-2"}
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="results", CreateBucketConfiguration=place)
    yield endpoint
    urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()  # moto's state would outlive the server
    running.stop()


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "120"}
    command = [sys.executable, "-m", "hflray.tune", *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_another_machine_continues_a_sweep(s3, tmp_path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (first / "long.yaml").write_text(SWEEP)
    process = start(first, "long.yaml", "--storage", "s3://results/hflray")
    wait_for_round(first, 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait()

    again = start(second, "--resume", "long", "--storage", "s3://results/hflray")
    output, _ = again.communicate(timeout=240)
    assert again.returncode == 0, output
    client = MlflowClient(default_uri(second / "hflray_results"))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    trials = expand(load_sweep(first / "long.yaml"))
    assert set(runs) == {trial.name for trial in trials}
    for trial in trials:
        records = list(Experiment(trial.config))
        history = client.get_metric_history(runs[trial.name].info.run_id, metrics.TOTAL_OBJECTIVE)
        assert [(m.step, m.value) for m in history] == [
            (r.round, r.metrics()[metrics.TOTAL_OBJECTIVE]) for r in records
        ]
        assert runs[trial.name].info.status == "FINISHED"
        (journal,) = second.glob(f"hflray_results/long-*/journal/{trial.name}.jsonl")
        rounds = [entry["round"] for entry in map(json.loads, journal.read_text().splitlines()) if "round" in entry]
        assert rounds == list(range(1, ROUNDS + 1))
        assert "model" in {artifact.path for artifact in client.list_artifacts(runs[trial.name].info.run_id)}


@pytest.mark.parametrize("place", ["s3://no-such-bucket/x", "s3://results"])
def test_storage_that_cannot_be_written_is_refused_before_any_trial(s3, tmp_path, place) -> None:
    from hflray.errors import ConfigError
    from hflray.tune.storage import check_storage

    if place == "s3://results":
        check_storage(place)
        return
    with pytest.raises(ConfigError, match=r"--storage: 's3://no-such-bucket/x' cannot be written \(.*NO_SUCH_BUCKET"):
        check_storage(place)
