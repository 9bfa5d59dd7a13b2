"""`hflray.tune.nodes`: the limits of a cluster file, and a single node. tests/cluster/ has tests with several nodes."""

from __future__ import annotations

import math

import pytest

from hflray.errors import ConfigError
from hflray.tune import nodes
from hflray.tune.nodes import check_gpus, check_nodes, check_resources, cpus_to_come

AWS = """
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, max_workers: 0}
  worker: {resources: {CPU: 16}, max_workers: 4}
"""
LOCAL = """
head_node_type: local.cluster.node
max_workers: 2
available_node_types:
  local.cluster.node: {resources: {}, max_workers: 2}
"""


@pytest.mark.parametrize(
    "text, live, cpus",
    [(AWS, 1, 64), (LOCAL, 2, math.inf), (LOCAL, 3, 0), ("a: [", 1, 0), ("a: 1", 1, 0), (None, 1, 0)],
)
def test_cpus_to_come_follow_from_the_cluster_file(tmp_path, text, live, cpus) -> None:
    path = tmp_path / "bootstrap.yaml"
    if text is not None:
        path.write_text(text)
    assert cpus_to_come(path, live) == cpus


def test_a_trial_must_fit_into_the_machines_that_may_come(ray_session, tmp_path, monkeypatch) -> None:
    (tmp_path / "bootstrap.yaml").write_text(AWS)
    monkeypatch.setattr(nodes, "BOOTSTRAP", tmp_path / "bootstrap.yaml")
    check_resources(64, 1)
    with pytest.raises(ConfigError, match=r"needs 65 CPUs, Ray has 1 and may have 64 .*accepted: 1 to 64"):
        check_resources(65, 1)


def test_gpus_that_may_come_count_too(ray_session, tmp_path, monkeypatch) -> None:
    """A cluster file may list the GPUs of its machines. If it does not, a machine that joins may have some."""
    path = tmp_path / "bootstrap.yaml"
    monkeypatch.setattr(nodes, "BOOTSTRAP", path)
    check_gpus(1, 1)
    with pytest.raises(ConfigError, match=r"gpus_per_trial: a trial needs 2 GPUs, Ray has 1; accepted: up to 1"):
        check_gpus(2, 1)
    path.write_text(AWS.replace("CPU: 16", "CPU: 16, GPU: 2"))
    check_gpus(8, 0)
    with pytest.raises(ConfigError, match=r"Ray has 0 and may have 8 with all machines started; accepted: up to 8"):
        check_gpus(9, 0)
    path.write_text(LOCAL)
    check_gpus(1, 0)  # a machine with a GPU may join, and the sweep waits for it


def test_a_single_node_is_not_queried(ray_session, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(nodes, "_query", lambda *_: pytest.fail("queried"))
    check_nodes(tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_node_answers_with_its_release(ray_session) -> None:
    (node,) = nodes.live_nodes()
    (answer,) = nodes._query([node], None)
    assert answer == {"release": nodes.release(), "sees": False}


def test_a_missing_cluster_gives_one_line(capsys, monkeypatch) -> None:
    from hflray.training import hierarchy

    monkeypatch.setattr(nodes, "start_ray", lambda: (_ for _ in ()).throw(ConfigError("RAY_ADDRESS: no")))
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert nodes.main([]) == 2
    assert capsys.readouterr().err == "error: RAY_ADDRESS: no\n"
    assert hierarchy.start_ray is not nodes.start_ray
