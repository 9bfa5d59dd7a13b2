"""hflray.training.pool on one node: nothing is asked, nothing is added twice. Several nodes: tests/cluster/."""

from __future__ import annotations

import ray

from hflray.training.pool import ActorPool
from tests.training.test_local import make_data, make_job


def test_one_node_is_asked_nothing(ray_session) -> None:
    pool = ActorPool(make_job(), ray.put(make_data()), num_actors=2, cpus_per_actor=0.5, num_edges=2)
    try:
        assert (len(pool.devices), len(pool.edges), pool.nodes) == (2, 2, [])
        pool.refresh()
        assert pool.gather(1, [(0, "a"), (1, "b")]) == ["a", "b"]
        assert pool._adders == {}
    finally:
        pool.close()


def test_sums_of_a_node_are_added_there_unless_the_edge_is_there_too(ray_session) -> None:
    pool = ActorPool(make_job(), ray.put(make_data()), num_actors=1, cpus_per_actor=0.5, num_edges=1)
    try:
        pool.nodes, pool._homes = ["near", "far", "far", "alone"], ["near"]
        parts = [(host, f"sum of {host}") for host in range(4)]

        class Adder:
            class total:
                @staticmethod
                def remote(*refs: str) -> str:
                    return " and ".join(refs)

        pool._adders = {"far": Adder}
        assert pool.gather(0, parts) == ["sum of 0", "sum of 1 and sum of 2", "sum of 3"]
        assert pool.gather(0, parts[3:]) == ["sum of 3"]
    finally:
        pool._adders = {}
        pool.close()


def test_closing_twice_is_closing(ray_session) -> None:
    pool = ActorPool(make_job(), ray.put(make_data()), num_actors=1, cpus_per_actor=0.5, num_edges=1)
    pool.close()
    pool.close()
    assert (pool.devices, pool.edges) == ([], [])
