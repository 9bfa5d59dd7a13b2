"""`hflray.tune.nodes`: the limits of a cluster file, and a single node. tests/cluster/ has tests with several nodes."""

from __future__ import annotations

import math

import pytest

from hflray.errors import ConfigError
from hflray.tune import nodes
from tests.conftest import says

AWS = """
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, max_workers: 0}
  worker: {resources: {CPU: 16, GPU: 2}, max_workers: 4}
"""
LOCAL = """
head_node_type: local.cluster.node
max_workers: 2
available_node_types:
  local.cluster.node: {resources: {}, max_workers: 2}
"""


@pytest.mark.parametrize(
    "text, live, cpus, gpus",
    [
        (AWS, 1, 64, 8), (AWS.replace(", GPU: 2", ""), 1, 64, 0), (LOCAL, 2, math.inf, math.inf), (LOCAL, 3, 0, 0),
        ("a: [", 1, 0, 0), ("a: 1", 1, 0, 0), (None, 1, 0, 0),
    ],
)  # fmt: skip
def test_what_is_to_come_follows_from_the_cluster_file(tmp_path, text, live, cpus, gpus) -> None:
    path = tmp_path / "bootstrap.yaml"
    if text is not None:
        path.write_text(text)
    assert (nodes.to_come(path, live, "CPU"), nodes.to_come(path, live, "GPU")) == (cpus, gpus)


@pytest.mark.parametrize(
    "text, resource, there, most, facts",
    [
        (AWS, "CPU", 1, 64, ("needs 65 CPUs", "Ray has 1 and may have 64", "accepted: up to 64", "lower it")),
        ("", "GPU", 1, 1, ("needs 2 GPUs", "Ray has 1;", "accepted: up to 1", "lower it")),
        (AWS, "GPU", 0, 8, ("needs 9 GPUs", "Ray has 0 and may have 8", "accepted: up to 8")),
        ("", "GPU", 0, 0, ("needs 1 GPUs", "Ray has 0;", "set training.device to cpu")),
    ],
)
def test_a_trial_must_fit_into_the_machines_that_may_come(
    ray_session, tmp_path, monkeypatch, text, resource, there, most, facts
) -> None:
    (tmp_path / "bootstrap.yaml").write_text(text)
    monkeypatch.setattr(nodes, "BOOTSTRAP", tmp_path / "bootstrap.yaml")
    nodes.check_resources("tune.x", resource, most, there)
    with pytest.raises(ConfigError) as error:
        nodes.check_resources("tune.x", resource, most + 1, there)
    assert says(str(error.value), "tune.x: a trial", *facts)


def test_a_single_node_is_not_queried_and_answers_with_its_release(ray_session, tmp_path, monkeypatch) -> None:
    (node,) = nodes.live_nodes()
    assert nodes._query([node], None) == [{"release": nodes.release(), "sees": False}]
    monkeypatch.setattr(nodes, "_query", lambda *_: pytest.fail("queried"))
    nodes.check_nodes(tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_missing_cluster_gives_one_line(capsys, monkeypatch) -> None:
    monkeypatch.setattr(nodes, "start_ray", lambda: (_ for _ in ()).throw(ConfigError("RAY_ADDRESS: no")))
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert nodes.main([]) == 2
    assert capsys.readouterr().err == "error: RAY_ADDRESS: no\n"
