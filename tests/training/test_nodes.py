"""hflray.training.nodes: each clock's update, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import ray

from hflray.errors import DivergedError, WorkerLostError
from hflray.training.actor_pool import ActorPool
from hflray.training.exchange import Version
from hflray.training.method import Method, Spec
from hflray.training.nodes import Cloud, EdgeWorker, Merge
from hflray.training.plan import PoolSize
from tests.training.test_local import make_data, make_job

MERGE = Merge(Method(), 0, (2,), 10, (1, 0), edge=0, rate=0.1, extra_bits=20, share=0.25)
W = np.array([4.0, -8.0], dtype=np.float32)


def version(*numbers: float) -> Version:
    return Version(np.array(numbers, dtype=np.float32))


def cloud(**stored: Any) -> Cloud:
    return Cloud(W, {}, stored, {})


def model(merge: Merge, before: Cloud, trained: Version, fetched: Version) -> tuple[list[float], Cloud]:
    """Return the global model after an update as a list, and the cloud; the edge fetches this model."""
    fetched_next, after = EdgeWorker().merge(merge, before, trained, fetched)
    assert fetched_next.model.tolist() == after.model.tolist()
    assert after.model.dtype == np.float32
    return after.model.tolist(), after


def test_fedasync_moves_towards_the_edges_model() -> None:
    assert model(MERGE, cloud(), version(8, 0), version(0, 0))[0] == [5.0, -6.0]


def test_a_share_of_one_is_the_edges_model() -> None:
    assert model(replace(MERGE, share=1.0), cloud(), version(0.1, 0.3), version(9, 9))[0] == [*np.float32([0.1, 0.3])]


def test_a_buffer_adds_differences_to_the_model_and_does_not_install_their_mean() -> None:
    first = replace(MERGE, share=0.5, buffer=2, steps=False)
    waiting, after = model(first, cloud(), version(3, 1), version(1, 1))
    assert waiting == [4.0, -8.0]
    assert after.stored["buffer"].tolist() == [1.0, 0.0]
    stepped, after = model(replace(first, steps=True), after, version(2, 6), version(4, 2))
    assert stepped == [4.0 + 1.0 - 1.0, -8.0 + 0.0 + 2.0]
    assert after.stored == {}


def test_a_buffer_moves_statistics_to_the_mean_of_those_that_arrive_however_stale() -> None:
    """A variance of 1 went to −0.195 where every edge sent 0.3: its differences were added twice."""
    fetched = version(4.0, 1.0)  # the second number is a running variance, also of the cloud at first
    merges = [replace(MERGE, sizes=(1,), share=share, buffer=2, steps=bool(k % 2)) for k, share in enumerate([0.5] * 4)]
    after = Cloud(np.array([4.0, 1.0], dtype=np.float32), {}, {}, {})
    for merge in merges:
        after = EdgeWorker().merge(merge, after, version(4.0, 0.3), fetched)[1]
    np.testing.assert_allclose(after.model, [4.0, 0.3], rtol=1e-6)
    for merge in merges[:2]:  # a mixing above 1 exaggerates weights, not statistics
        after = EdgeWorker().merge(replace(merge, share=2.0), after, version(5.0, 0.5), fetched)[1]
    np.testing.assert_allclose(after.model, [8.0, 0.5], rtol=1e-6)


def test_fedat_is_a_mean_of_the_newest_models() -> None:
    first, after = model(replace(MERGE, shares=((0, 1.0),)), cloud(), version(8, 0), version(4, -8))
    assert first == [8.0, 0.0]
    both = replace(MERGE, edge=1, shares=((0, 0.25), (1, 0.75)))
    second, after = model(both, after, version(0, 4), version(4, -8))
    assert second == [2.0, 3.0]
    assert sorted(after.stored) == ["newest.0", "newest.1"]


def test_compressed_updates_are_those_from_what_the_edge_fetched() -> None:
    method = Method(edge_compressor=Spec("compressor", "sign"))
    merge = replace(MERGE, method=method, share=1.0)
    after = EdgeWorker().merge(merge, cloud(), version(3, -3), version(1, 1))[1]
    assert after.model.tolist() == [1.0 + 3.0, 1.0 - 3.0]  # the mean of |2| and |−4| with their signs
    assert after.residuals[0].tolist() == [-1.0, -1.0]
    again = EdgeWorker().merge(merge, after, version(3, -3), version(3, -3))[1]
    assert again.model.tolist() == [2.0, -4.0]  # the residual is sent with the next update


def test_a_model_that_is_not_finite_is_named() -> None:
    with pytest.raises(DivergedError, match=r"round 1: the global model is not finite; .*asynchronous\.mixing"):
        EdgeWorker().merge(MERGE, cloud(), version(np.inf, 0), version(0, 0))


# hflray.training.actor_pool on one node. tests/cluster/ tests several nodes.


MEAN = Spec("aggregator", "mean")


def test_sums_on_a_single_node_are_not_added_before_their_edge(ray_session) -> None:
    pool = ActorPool(make_job(), ray.put(make_data()), PoolSize(2, 0.5), num_edges=2)
    try:
        pool.refresh()
        assert (len(pool.devices), len(pool.edges), len(set(pool.nodes))) == (2, 2, 1)
        assert pool.gather(1, [(0, "a"), (1, "b")], MEAN) == ["a", "b"]
        assert pool._adders == {}
    finally:
        pool.close()


def test_actors_that_find_no_cpu_end_with_an_error(ray_session, monkeypatch, caplog) -> None:
    """On a single node they were waited for without an end or a word."""
    monkeypatch.setattr("hflray.training.actor_pool.SETTLE_S", 0.5)
    monkeypatch.setattr("hflray.training.actor_pool.GIVE_UP_S", 1.5)
    pool = ActorPool(make_job(), ray.put(make_data()), PoolSize(1, 1000.0), num_edges=1)
    try:
        with pytest.raises(WorkerLostError, match="no device actor could be started"):
            pool.refresh()
        assert "no device actor has started in 0 s; waiting" in caplog.text
    finally:
        pool.close()


def test_a_round_begins_without_the_actors_that_find_no_cpu(ray_session, monkeypatch, caplog) -> None:
    monkeypatch.setattr("hflray.training.actor_pool.SETTLE_S", 1.0)
    cpus = ray.cluster_resources()["CPU"]
    pool = ActorPool(make_job(), ray.put(make_data()), PoolSize(2, cpus), num_edges=1)
    try:
        pool.refresh()
        assert len(pool.devices) == 1
        assert "going on with 1 of 2 device actors" in caplog.text
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
        pool.refresh()
        assigned_gpus = lambda _: ray.get_runtime_context().get_assigned_resources()["GPU"]  # noqa: E731
        assert ray.get([actor.__ray_call__.remote(assigned_gpus) for actor in pool.devices]) == [0.5, 0.5]
    finally:
        pool.close()
