"""hflray.training.actor_pool on one node, where no actor is asked for its node. tests/cluster/ tests several nodes."""

from __future__ import annotations

import ray

from hflray.training.actor_pool import ActorPool
from hflray.training.method import Spec
from hflray.training.plan import PoolSize
from tests.training.test_local import make_data, make_job

MEAN = Spec("aggregator", "mean")


def test_actors_on_a_single_node_are_not_asked_for_it(ray_session) -> None:
    pool = ActorPool(make_job(), ray.put(make_data()), PoolSize(2, 0.5), num_edges=2)
    try:
        assert (len(pool.devices), len(pool.edges), pool.nodes) == (2, 2, [])
        pool.refresh()
        assert pool.gather(1, [(0, "a"), (1, "b")], MEAN) == ["a", "b"]
        assert pool._adders == {}
    finally:
        pool.close()


def test_sums_are_added_on_their_node_unless_the_edge_is_on_it(ray_session) -> None:
    pool = ActorPool(make_job(), ray.put(make_data()), PoolSize(1, 0.5), num_edges=1)
    try:
        pool.nodes, pool._homes = ["near", "far", "far", "alone"], ["near"]
        parts = [(host, f"sum of {host}") for host in range(4)]

        class Adder:
            class total:
                @staticmethod
                def remote(aggregator: Spec, *refs: str) -> str:
                    return " and ".join(refs)

        pool._adders = {"far": Adder}
        assert pool.gather(0, parts, MEAN) == ["sum of 0", "sum of 1 and sum of 2", "sum of 3"]
        assert pool.gather(0, parts[3:], MEAN) == ["sum of 3"]
    finally:
        pool._adders = {}
        pool.close()


def test_a_pool_can_be_closed_twice(ray_session) -> None:
    pool = ActorPool(make_job(), ray.put(make_data()), PoolSize(1, 0.5), num_edges=1)
    pool.close()
    pool.close()
    assert (pool.devices, pool.edges) == ([], [])


def test_actors_reserve_their_part_of_a_gpu(ray_session) -> None:
    pool = ActorPool(make_job(), ray.put(make_data()), PoolSize(2, 0.5, 0.5), num_edges=1)
    try:
        ray.get([actor.about.remote() for actor in pool.devices])
        assigned_gpus = lambda _: ray.get_runtime_context().get_assigned_resources()["GPU"]  # noqa: E731
        assert ray.get([actor.__ray_call__.remote(assigned_gpus) for actor in pool.devices]) == [0.5, 0.5]
    finally:
        pool.close()
