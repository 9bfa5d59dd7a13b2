"""dashboards/: the files match hflray's metrics, and Prometheus answers every panel's query about a real sweep."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from hflray.support import live_metrics

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "dashboards"
RAYS_OWN = {"ray_object_store_used_memory", "ray_object_store_available_memory", "ray_object_store_memory"}

SWEEP = """
name: watched
experiment:
  max_rounds: 100000
  data: {name: synthetic}
  fleet: {num_devices: 12, num_edges: 3}
  scheduling: {name: fedavg, num_scheduled: 6}
  assignment: {name: geographic}
  training: {local_iterations: 1, edge_iterations: 2, batch_size: 64, num_actors: 2}
  world:
    availability: {name: bernoulli, options: {probability: 0.8}}
    dropout: {rate_per_s: 0.01}
    edge_failure: {mtbf_s: 1000, mttr_s: 10}
    battery: {capacity_j: [100, 200], reserve_j: 2, harvest_w: 1}
tune: {cpus_per_trial: 2}
"""


def load() -> dict[str, Any]:
    return json.loads((DASHBOARDS / "grafana" / "hflray.json").read_text(encoding="utf-8"))


def queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the panel's title and the PromQL of every query, with the variables' values for "All"."""
    filled = []
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$window", "1m")
            for name in ("sweep", "trial"):
                expression = expression.replace(f"${name}", ".*")
            assert "$" not in expression, expression
            filled.append((panel["title"], expression))
    return filled


def metric_names(dashboard: dict[str, Any]) -> set[str]:
    texts = [expression for _, expression in queries(dashboard)]
    texts += [v["definition"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    return set(re.findall(r"\bray_\w+", " ".join(texts)))


def test_the_json_file_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make", DASHBOARDS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert make.TARGET.read_text(encoding="utf-8") == make.text(), "run: python dashboards/make.py"


def test_exactly_the_live_metrics_are_shown() -> None:
    assert metric_names(load()) == {metric.exported for metric in live_metrics.LIVE} | RAYS_OWN
    renamed = json.loads(json.dumps(load()).replace("hflray_accuracy", "hflray_acc"))
    assert metric_names(renamed) != {metric.exported for metric in live_metrics.LIVE} | RAYS_OWN


def test_labels_in_queries_and_legends_are_exported() -> None:
    exported = {label for metric in live_metrics.LIVE for label in metric.labels} | {"NodeAddress"}
    for panel in load()["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            (by,) = re.findall(r"^(?:sum|max) by \(([\w, ]+)\)", target["expr"])
            assert shown <= set(by.split(", ")) <= exported


def test_panels_do_not_overlap_and_have_descriptions() -> None:
    panels = load()["panels"]
    cells = [
        (x, y)
        for box in (panel["gridPos"] for panel in panels)
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert all(panel["description"] for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_provisioning_leads_to_the_dashboard_and_prometheus() -> None:
    provisioning = DASHBOARDS / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "hflray.yml").read_text())["providers"]
    folder = Path(provider["options"]["path"].replace("$PWD", str(ROOT)))
    assert [path.name for path in folder.rglob("*.json")] == ["hflray.json"]


def test_every_panel_is_explained_in_the_readme() -> None:
    readme = (DASHBOARDS / "README.md").read_text(encoding="utf-8")
    assert [panel["title"] for panel in load()["panels"] if f"| {panel['title']} |" not in readme] == []


# The slow test uses a real Prometheus and a real sweep. It takes half a minute, or minutes on a busy machine.

pytestmark = pytest.mark.timeout(480)

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus on PATH (Debian: apt-get install prometheus)"
)
needs_agent = pytest.mark.skipif(
    importlib.util.find_spec("opencensus") is None, reason="Ray exports no metrics without pip install '.[dashboards]'"
)


class Api:
    """Prometheus's HTTP API."""

    def __init__(self, base: str) -> None:
        self._base = base

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self.get("query", query=expression)["result"]

    def empty(self, dashboard: dict[str, Any]) -> list[str]:
        """Return the titles of panels with a query that returns nothing."""
        return [title for title, expression in queries(dashboard) if not self.query(expression)]


def wait_for(condition: Callable[[], Any], seconds: float, *processes: subprocess.Popen[Any]) -> Any:
    """Return the condition's first true value; fail if a process ends before, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        for process in processes:
            assert process.poll() is None, f"{process.args} ended"
        try:
            if answer := condition():
                return answer
        except OSError:
            pass  # Prometheus does not listen yet
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {condition}"
        time.sleep(0.5)


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process and its descendants."""
    descendants = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
    _, alive = psutil.wait_procs(descendants, timeout=10)
    for child in alive:
        child.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path, because paths of Ray's sockets must be short."""
    folder = Path(tempfile.mkdtemp(prefix="hf"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def sweep(short_folder: Path) -> Iterator[subprocess.Popen[Any]]:
    """Yield a running ``python -m hflray.tune`` with a Ray of its own that reports every second."""
    (short_folder / "watched.yaml").write_text(SWEEP)
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": str(short_folder),
        "RAY_metrics_report_interval_ms": "1000",
    }
    env.pop("RAY_ADDRESS", None)
    with (short_folder / "log").open("w") as log:
        command = [sys.executable, "-m", "hflray.tune", "watched.yaml"]
        process = subprocess.Popen(command, cwd=short_folder, env=env, stdout=log, stderr=subprocess.STDOUT)
        yield process
        stop(process)


@pytest.fixture(scope="module")
def api(short_folder: Path, sweep: subprocess.Popen[Any]) -> Iterator[Api]:
    """Yield a Prometheus with the shipped configuration, except for Ray's folder and the intervals."""
    config = (DASHBOARDS / "prometheus.yml").read_text()
    assert config.count("/tmp/ray/") == config.count("scrape_interval: 5s") == config.count("refresh_interval: 5s") == 1
    config = config.replace("/tmp/ray/", f"{short_folder}/ray/").replace("interval: 5s", "interval: 1s")
    (short_folder / "prometheus.yml").write_text(config)
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={short_folder}/prometheus.yml",
        f"--storage.tsdb.path={short_folder}/tsdb",
        f"--web.listen-address={address}",
    ]
    with (short_folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        client = Api(f"http://{address}")
        try:
            wait_for(lambda: client.get("status/runtimeinfo"), 30, process, sweep)
            yield client
        finally:
            stop(process)


def device_actors(driver: int) -> list[psutil.Process]:
    actors = []
    for process in psutil.Process(driver).children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::DeviceWorker"):
                actors.append(process)
        except psutil.Error:
            continue
    return actors


@pytest.fixture(scope="module")
def watched(api: Api, sweep: subprocess.Popen[Any], short_folder: Path) -> Api:
    """Return Prometheus once every panel has data.

    One of the two device actors is killed after two rounds, so that the count of replaced actors has data.
    """
    try:
        wait_for(lambda: api.query(f"{live_metrics.ROUNDS.exported} >= 2"), 240, sweep)
        actors = device_actors(sweep.pid)
        assert len(actors) == 2
        actors[0].kill()
        wait_for(lambda: not api.empty(load()), 120, sweep)
    except AssertionError as error:
        log = (short_folder / "log").read_text()[-2000:]
        raise AssertionError(f"{error}; without data: {api.empty(load())}; the sweep said:\n{log}") from error
    return api


@pytest.mark.slow
@needs_prometheus
@needs_agent
def test_every_panel_has_data_from_a_running_sweep(watched: Api) -> None:
    dashboard, rounds = load(), live_metrics.ROUNDS.exported
    shown = {title: watched.query(expression) for title, expression in queries(dashboard)}
    assert {row["metric"]["edge"] for row in shown["Delay of each edge"]} == {"0", "1", "2"}
    assert {row["metric"]["actor"] for row in shown["Samples per second and actor"]} == {"0", "1"}
    assert [float(row["value"][1]) for row in shown["Device actors replaced"]] == [2.0]
    (available,), (up,), (discarded,) = (shown[t] for t in ("Devices available", "Edges up", "Discarded uploads"))
    assert 0 <= float(available["value"][1]) <= 12
    assert 0 <= float(up["value"][1]) <= 3
    assert 0 <= float(discarded["value"][1]) <= 1
    charges = {row["metric"]["quantile"]: float(row["value"][1]) for row in shown["Charge of the devices"]}
    assert 0 <= charges["0"] <= charges["0.1"] <= charges["0.5"] <= charges["0.9"] <= 200
    (accuracy,) = shown["Accuracy"]
    assert 0 < float(accuracy["value"][1]) <= 1
    # A label cannot contain λ.
    assert accuracy["metric"]["trial"] == "synthetic-H6-lambda1-fedavg-geographic-s0"
    assert re.fullmatch(r"watched-\d{8}-\d{6}", accuracy["metric"]["sweep"])

    # The variables above the panels offer values, and a chosen value selects its trial.
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            assert watched.get(f"label/{variable['name']}/values", **{"match[]": rounds})
    chosen = queries(dashboard)[0][1]
    assert watched.query(chosen.replace('trial=~".*"', f'trial=~"{accuracy["metric"]["trial"]}"'))
    assert not watched.query(chosen.replace('trial=~".*"', 'trial=~"another"'))


@needs_prometheus
def test_the_shipped_prometheus_configuration_is_valid() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool beside prometheus")
    done = subprocess.run([tool, "check", "config", DASHBOARDS / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
