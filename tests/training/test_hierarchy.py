"""hflray.training.hierarchy: equation (16), equal bits from every backend, and lost actors."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hflray import registry
from hflray.aggregation.fixed_point import fraction_bits, mean
from hflray.errors import DivergedError, WorkerLostError
from hflray.models import HflCnn, build_model, init_vector, initial_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.seeding import stream
from hflray.training.local import DeviceHost
from tests.training.rounds import Rounds, actor_rounds, serial_rounds, sums
from tests.training.test_local import SHAPE, colour_data, make_data, make_job, network_job

SIZES = (9, 7, 5, 4, 3, 2)
DEVICES = np.array([0, 1, 2, 4, 5])
EDGES = np.array([2, 0, 2, 0, 2])  # edge 1 stays empty


@pytest.fixture
def start() -> np.ndarray:
    return init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))


def test_cloud_aggregation_is_the_weighted_mean_of_the_last_local_models(start) -> None:
    """By equation (16), edge and cloud aggregation equal one weighted mean of the last edge iteration's models."""
    data, job = make_data(SIZES), make_job(learning_rate=0.1)
    model = serial_rounds(job, data, 2).train_round(1, start, DEVICES, EDGES)

    host, bits = DeviceHost(job, data), fraction_bits(100)

    def local_model(vector: np.ndarray, q: int, device: int) -> np.ndarray:
        size = len(data.samples_of(device))
        (total,) = sums(host, 1, q, bits, ((device,),), vector)
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


# Device 1 is alone at edge 0. Edge 0 has nobody in the last edge iteration, and edge 2 nobody in the second.
COUNTS = np.array([[1, 1, 1, 1, 0], [0, 1, 0, 0, 0], [1, 0, 0, 0, 1]], dtype=bool)


def test_rows_that_do_not_count_are_not_trained_and_an_empty_iteration_keeps_the_edges_model(start) -> None:
    data, job = make_data(SIZES), make_job(learning_rate=0.03)
    model = serial_rounds(job, data, 3).train_round(1, start, DEVICES, EDGES, COUNTS)
    host, bits = DeviceHost(job, data), fraction_bits(sum(SIZES[device] for device in DEVICES))

    def trained(vector: np.ndarray, q: int, *devices: int) -> np.ndarray:
        """Return the exact sum of the models that these devices have after an edge iteration from `vector`."""
        (total,) = sums(host, 1, q, bits, (devices,), vector)
        return total

    edge_0 = mean(trained(start, 0, 1, 4), SIZES[1] + SIZES[4], bits)
    edge_2 = mean(trained(start, 0, 0, 2), SIZES[0] + SIZES[2], bits)
    total = trained(edge_0, 1, 1) + trained(edge_2, 2, 0, 5)
    np.testing.assert_array_equal(model, mean(total, SIZES[1] + SIZES[0] + SIZES[5], bits))


def test_losses_are_those_of_the_model_that_a_device_receives_last(start) -> None:
    data, job = make_data(SIZES), make_job(learning_rate=0.03)
    serial = serial_rounds(job, data, 3)
    state, losses, _ = serial.result(1, serial.setting.start(start), DEVICES, EDGES, COUNTS, wants_losses=True)
    np.testing.assert_array_equal(state.model, serial.train_round(1, start, DEVICES, EDGES, COUNTS))
    assert sorted(losses) == [0, 1, 2, 4, 5]
    host, bits = DeviceHost(job, data), fraction_bits(sum(SIZES[device] for device in DEVICES))
    (total,) = sums(host, 1, 0, bits, ((0, 2),), start)
    edge_2 = mean(total, SIZES[0] + SIZES[2], bits)
    for device, received in ((2, start), (4, start), (0, edge_2), (5, edge_2)):
        ((loss, utility),) = serial.losses(received, np.array([device]))
        assert losses[device] == (loss, utility)
    module = build_model("hfl", SHAPE, 3)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start), module.parameters())
    index = data.samples_of(4)
    images = (data.x[index] / 255 - data.channel_mean[:, None, None]) / data.channel_std[:, None, None]
    scores = module(torch.from_numpy(images.astype(np.float32)))
    each = torch.nn.functional.cross_entropy(scores, torch.from_numpy(data.y[index]), reduction="none").detach().numpy()
    assert losses[4] == pytest.approx((each.mean(), 3 * np.sqrt((each**2).mean())), rel=1e-4)


def test_a_discarded_device_gives_the_model_of_a_round_without_it(start) -> None:
    data, job = make_data(SIZES), make_job(learning_rate=0.1)
    serial = serial_rounds(job, data, 1)
    everyone, without = np.arange(6), np.array([0, 1, 2, 3, 4])
    assert fraction_bits(sum(SIZES)) == fraction_bits(sum(SIZES[:5]))  # otherwise rounding could differ
    counts = np.array([[True] * 5 + [False]])
    discarded = serial.train_round(1, start, everyone, everyone % 3, counts)
    np.testing.assert_array_equal(discarded, serial.train_round(1, start, without, without % 3))
    assert (discarded != serial.train_round(1, start, everyone, everyone % 3)).any()


def test_a_round_in_which_nothing_counts_keeps_the_global_model(start) -> None:
    serial = serial_rounds(make_job(), make_data(SIZES), 2)
    model = serial.train_round(1, start, DEVICES, EDGES, np.zeros((2, 5), dtype=bool))
    np.testing.assert_array_equal(model, start)


@pytest.mark.parametrize("actors", [*(pytest.param(few, marks=pytest.mark.slow) for few in (1, 2)), 5])
def test_every_pool_gives_the_bits_of_the_serial_backend(ray_session, start, actors: int) -> None:
    data, job = make_data(SIZES, tests=2500), make_job()
    serial = serial_rounds(job, data, 3)
    expected = serial.train_round(1, start, DEVICES, EDGES)
    pool = actor_rounds(job, data, 3, num_edges=3, num_actors=actors, cpus_per_actor=2 / 5)
    try:
        np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), expected)
        begin = serial.setting.start(start)
        ours, theirs = (
            backend.result(1, begin, DEVICES, EDGES, COUNTS, wants_losses=True) for backend in (pool, serial)
        )
        np.testing.assert_array_equal(ours.state.model, theirs.state.model)
        assert ours.losses == theirs.losses
        assert sorted(ours.losses) == sorted(DEVICES)
        np.testing.assert_array_equal(pool.losses(start, DEVICES), serial.losses(start, DEVICES))
        nobody = pool.train_round(1, start, DEVICES, EDGES, np.zeros((3, 5), dtype=bool))
        np.testing.assert_array_equal(nobody, start)
        assert pool.evaluate(expected) == serial.evaluate(expected)
        np.testing.assert_array_equal(pool.train_each(job, data, start), serial.train_each(job, data, start))
    finally:
        pool.close()


@pytest.mark.parametrize("spec", [ModelSpec.of("resnet8", {"norm": "batch"}), ModelSpec.of("mlp", {"dropout": 0.5})])
def test_actors_train_statistics_and_dropout_with_the_bits_of_the_serial_backend(ray_session, spec: ModelSpec) -> None:
    data, job = colour_data(SIZES), network_job(spec)
    start = initial_vector(job.problem, 1)
    expected = serial_rounds(job, data, 2).train_round(1, start, DEVICES, EDGES)
    pool = actor_rounds(job, data, 2, num_edges=3, num_actors=2, cpus_per_actor=0.5)
    try:
        np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), expected)
    finally:
        pool.close()


def test_a_lost_actor_costs_nothing_but_time(ray_session, start) -> None:
    import ray

    data, job = make_data(SIZES), make_job()
    expected = serial_rounds(job, data, 2).train_round(1, start, DEVICES, EDGES)
    pool = actor_rounds(job, data, 2, num_edges=3, num_actors=2, cpus_per_actor=0.5)
    try:
        pool.train_round(1, start, DEVICES, EDGES)
        for victims in (pool.pool.devices, pool.pool.edges):
            ray.kill(victims[0])
            np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), expected)
    finally:
        pool.close()


def test_actors_that_keep_dying_end_the_round_with_an_error(ray_session, start, monkeypatch) -> None:
    import ray

    pool = actor_rounds(make_job(), make_data(SIZES), 1, num_edges=3, num_actors=1, cpus_per_actor=0.5)
    begin = pool.pool.start

    def doomed() -> None:
        begin()
        ray.kill(pool.pool.devices[0])

    monkeypatch.setattr(pool.pool, "start", doomed)
    ray.kill(pool.pool.devices[0])
    try:
        with pytest.raises(WorkerLostError, match="round 4: workers were lost 3 times"):
            pool.train_round(4, start, DEVICES, EDGES)
    finally:
        pool.close()


def test_divergence_inside_an_actor_arrives_as_itself(ray_session, start) -> None:
    pool = actor_rounds(
        make_job(learning_rate=1e30), make_data(SIZES), 2, num_edges=3, num_actors=2, cpus_per_actor=0.5
    )
    try:
        with pytest.raises(DivergedError, match=r"round 7, edge iteration 0, device \d"):
            pool.train_round(7, start, DEVICES, EDGES)
    finally:
        pool.close()


def test_an_evaluation_with_new_actors_has_the_same_outputs_in_the_order_of_the_test_set(ray_session, start) -> None:
    import ray

    data, job = make_data(SIZES, tests=2500), make_job()
    expected = serial_rounds(job, data, 1).evaluate(start, keeps_outputs=True)
    assert [len(part) for part in expected.outputs] == [1000, 1000, 500]
    pool = actor_rounds(job, data, 1, num_edges=3, num_actors=2, cpus_per_actor=0.5)
    try:
        assert pool.evaluate(start) == (*expected[:2], [])
        ray.kill(pool.pool.devices[0])
        again = pool.evaluate(start, keeps_outputs=True)  # with new actors
        assert again[:2] == expected[:2]
        outputs = np.concatenate(expected.outputs)
        np.testing.assert_array_equal(np.concatenate(again.outputs), outputs)  # in the order of the test set
    finally:
        pool.close()


class Counting:
    """Wraps an actor and records the calls of its methods."""

    def __init__(self, actor, calls: list[str]) -> None:
        self._actor, self._calls = actor, calls

    def __getattr__(self, name: str):
        method = getattr(self._actor, name)

        def remote(*arguments):
            self._calls.append(name)
            return method.remote(*arguments)

        def options(**chosen):
            bound = method.options(**chosen)
            return SimpleNamespace(remote=lambda *arguments: (self._calls.append(name), bound.remote(*arguments))[1])

        return SimpleNamespace(remote=remote, options=options)


def test_calls_of_a_round_grow_with_actors_and_edges_not_with_devices(ray_session, start) -> None:
    data = make_data((1,) * 60)
    pool = actor_rounds(
        make_job(local_iterations=0), data, edge_iterations=2, num_edges=3, num_actors=2, cpus_per_actor=0.5
    )
    plain_devices, plain_edges = pool.pool.devices, pool.pool.edges
    counts = []
    try:
        for scheduled in (6, 60):
            calls: list[str] = []
            pool.pool.devices = [Counting(actor, calls) for actor in plain_devices]
            pool.pool.edges = [Counting(actor, calls) for actor in plain_edges]
            devices = np.arange(scheduled)
            np.testing.assert_array_equal(pool.train_round(1, start, devices, devices % 3), start)  # no-op training
            counts.append(Counter(calls))
    finally:
        pool.pool.devices, pool.pool.edges = plain_devices, plain_edges
        pool.close()
    # There are Q · actors calls to device actors and Q · edges calls to edge actors.
    assert counts == [Counter(train=2 * 2, finish=3, close=3)] * 2


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_memory_is_flat_over_many_rounds(ray_session, start, rounds) -> None:
    """This checks the resident memory of the driver and the actors, and the use of the object store."""
    import ray

    pool = actor_rounds(make_job(), make_data(SIZES), 2, num_edges=3, num_actors=2, cpus_per_actor=0.5)
    try:
        pids = [os.getpid(), *(pid for pid, _ in ray.get([actor.about.remote() for actor in pool.pool.devices]))]

        def measure() -> tuple[list[float], float]:
            free = ray.available_resources().get("object_store_memory", 0)
            return [resident_mb(pid) for pid in pids], free / 2**20

        for index in range(5):
            pool.train_round(index, start, DEVICES, EDGES)
        before, free_before = measure()
        for index in range(rounds):
            pool.train_round(index, start, DEVICES, EDGES)
            pool.evaluate(start)
        after, free_after = measure()
    finally:
        pool.close()
    # A round moves 15 models of 0.3 MB, so a leak of all of them would take 90 MB in 20 rounds.
    assert max(b - a for a, b in zip(before, after, strict=True)) < 30
    assert free_before - free_after < 20
    assert max(after[1:]) < 600


def test_an_actor_that_cannot_start_says_why(ray_session, start, monkeypatch) -> None:
    """The driver knows a network that the actors do not know."""
    monkeypatch.setitem(registry._ADDED, ("model", "only_here"), lambda input_shape, num_outputs: HflCnn(SHAPE, 3))
    job = make_job(problem=Problem(SHAPE, 3, model=ModelSpec("only_here")))
    pool = actor_rounds(job, make_data(SIZES), 1, num_edges=3, num_actors=1, cpus_per_actor=0.5)
    try:
        with pytest.raises(WorkerLostError, match=r"round 1: a worker could not start: .*only_here"):
            pool.train_round(1, start, DEVICES, EDGES)
    finally:
        pool.close()


def test_actors_that_rest_serve_the_next_experiment_of_their_shape(ray_session, start) -> None:
    from hflray.training import actor_pool as pools

    def hierarchy(job, data, actors=2) -> Rounds:
        return actor_rounds(job, data, 2, num_edges=3, num_actors=actors, cpus_per_actor=0.5, keep=True)

    def expected(job, data) -> np.ndarray:
        return serial_rounds(job, data, 2).train_round(1, start, DEVICES, EDGES)

    first = hierarchy(make_job(), make_data(SIZES))
    actors = first.pool.devices
    first.train_round(1, start, DEVICES, EDGES)
    first.close()
    job, data = make_job(seed=3, learning_rate=0.02), make_data(tuple(reversed(SIZES)))
    second = hierarchy(job, data)
    assert second.pool.devices is actors
    np.testing.assert_array_equal(second.train_round(1, start, DEVICES, EDGES), expected(job, data))
    second.close()
    third = hierarchy(job, data, actors=1)
    assert third.pool.devices != actors
    assert pools._resting == []
    third.hierarchy._idle = False  # as a call that failed leaves it: other calls may still be under way
    third.close()
    assert (third.pool.devices, pools._resting) == ([], [])


def test_a_lost_actor_that_was_to_rest_is_replaced(ray_session, start) -> None:
    import ray

    job, data = make_job(), make_data(SIZES)
    made = [actor_rounds(job, data, 2, num_edges=3, num_actors=1, cpus_per_actor=0.5, keep=True)]
    made[0].train_round(1, start, DEVICES, EDGES)
    made[0].close()
    made.append(actor_rounds(job, data, 2, num_edges=3, num_actors=1, cpus_per_actor=0.5, keep=True))
    assert made[1].pool is made[0].pool
    ray.kill(made[1].pool.devices[0])
    expected = serial_rounds(job, data, 2).train_round(1, start, DEVICES, EDGES)
    np.testing.assert_array_equal(made[1].train_round(1, start, DEVICES, EDGES), expected)
    made[1].pool.close()


def test_actors_evaluate_the_validation_part_with_the_bits_of_the_serial_backend(ray_session, start) -> None:
    data, job = make_data(SIZES, tests=2500), make_job()
    rows = np.sort(np.random.default_rng(0).permutation(len(data.y))[: len(data.y) // 2])
    data = replace(data, validation=rows)
    serial = serial_rounds(job, data, 1)
    expected = serial.evaluate(start, keeps_outputs=True, part="validation")
    assert sum(map(len, expected.outputs)) == len(rows)
    assert expected[:2] != serial.evaluate(start)[:2]
    pool = actor_rounds(job, data, 1, num_edges=3, num_actors=2, cpus_per_actor=0.5)
    try:
        again = pool.evaluate(start, keeps_outputs=True, part="validation")
        assert again[:2] == expected[:2]
        np.testing.assert_array_equal(np.concatenate(again.outputs), np.concatenate(expected.outputs))
        assert pool.evaluate(start)[:2] == serial.evaluate(start)[:2]
    finally:
        pool.close()
