"""hflray.training.hierarchy: equation (16), the same bits from every backend, and lost actors."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.errors import DivergedError, WorkerLostError
from hflray.models import build_model, init_vector
from hflray.seeding import stream
from hflray.training.aggregate import fraction_bits, mean, weighted
from hflray.training.hierarchy import RayHierarchy, SerialHierarchy
from hflray.training.local import DeviceHost, EdgeTask
from tests.training.test_local import SHAPE, make_data, make_job

SIZES = (9, 7, 5, 4, 3, 2)
DEVICES = np.array([0, 1, 2, 4, 5])
EDGES = np.array([2, 0, 2, 0, 2])  # edge 1 stays empty


@pytest.fixture
def start() -> np.ndarray:
    return init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))


def test_cloud_aggregation_is_the_weighted_mean_of_the_last_local_models(start) -> None:
    """Equation (16): edges then cloud equal one weighted mean over the last edge iteration's local models."""
    data, job = make_data(SIZES), make_job(learning_rate=0.1)
    model = SerialHierarchy(job, data, edge_iterations=2).train_round(1, start, DEVICES, EDGES)

    host, bits = DeviceHost(job, data), fraction_bits(100)

    def local_model(vector: np.ndarray, q: int, device: int) -> np.ndarray:
        size = len(data.samples_of(device))
        (total,) = host.train(EdgeTask(1, q, bits, ((device,),)), vector)
        return mean(total, size, bits).astype(np.float64)

    def average(models: dict[int, np.ndarray]) -> np.ndarray:
        return sum(SIZES[d] * m for d, m in models.items()) / sum(SIZES[d] for d in models)

    last: dict[int, np.ndarray] = {}
    for edge in (0, 2):
        members = DEVICES[edge == EDGES]
        first = average({int(d): local_model(start, 0, d) for d in members}).astype(np.float32)
        last |= {int(d): local_model(first, 1, d) for d in members}
    np.testing.assert_allclose(model, average(last), rtol=1e-5, atol=1e-7)
    assert np.abs(model - start).max() > 1e-3


def test_every_pool_gives_the_bits_of_the_serial_backend(ray_session, start) -> None:
    data, job = make_data(SIZES, tests=2500), make_job()
    serial = SerialHierarchy(job, data, edge_iterations=3)
    expected = serial.train_round(1, start, DEVICES, EDGES)
    for actors in (1, 2, 5):
        pool = RayHierarchy(job, data, 3, num_edges=3, num_actors=actors, cpus_per_actor=2 / 5)
        try:
            np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), expected)
            assert pool.evaluate(expected) == serial.evaluate(expected)
            np.testing.assert_array_equal(pool.train_each(job, data, start), serial.train_each(job, data, start))
        finally:
            pool.close()


def test_a_lost_actor_costs_nothing_but_time(ray_session, start) -> None:
    import ray

    data, job = make_data(SIZES), make_job()
    expected = SerialHierarchy(job, data, edge_iterations=2).train_round(1, start, DEVICES, EDGES)
    pool = RayHierarchy(job, data, 2, num_edges=3, num_actors=2, cpus_per_actor=0.5)
    try:
        pool.train_round(1, start, DEVICES, EDGES)
        for victims in (pool._devices, pool._edges):
            ray.kill(victims[0])
            np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), expected)
    finally:
        pool.close()


def test_actors_that_keep_dying_end_the_round_with_an_error(ray_session, start, monkeypatch) -> None:
    import ray

    pool = RayHierarchy(make_job(), make_data(SIZES), 1, num_edges=3, num_actors=1, cpus_per_actor=0.5)
    begin = pool._start

    def doomed() -> None:
        begin()
        ray.kill(pool._devices[0])

    monkeypatch.setattr(pool, "_start", doomed)
    ray.kill(pool._devices[0])
    try:
        with pytest.raises(WorkerLostError, match="round 4: workers were lost 3 times"):
            pool.train_round(4, start, DEVICES, EDGES)
    finally:
        pool.close()


def test_divergence_inside_an_actor_arrives_as_itself(ray_session, start) -> None:
    pool = RayHierarchy(
        make_job(learning_rate=1e30), make_data(SIZES), 2, num_edges=3, num_actors=2, cpus_per_actor=0.5
    )
    try:
        with pytest.raises(DivergedError, match=r"round 7, edge iteration 0, device \d"):
            pool.train_round(7, start, DEVICES, EDGES)
    finally:
        pool.close()


def test_the_exact_sum_is_what_the_edges_hand_over(start) -> None:
    bits = fraction_bits(12)
    parts = [weighted(start, 5, bits), weighted(start, 7, bits)]
    np.testing.assert_array_equal(mean(parts[0] + parts[1], 12, bits), start)
