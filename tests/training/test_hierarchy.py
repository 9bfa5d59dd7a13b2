"""hflray.training.hierarchy: equation (16), equal bits from every backend, and lost actors."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hflray import registry
from hflray.aggregation.fixed_point import fraction_bits, mean
from hflray.cost import Schedule
from hflray.errors import ConfigError, DivergedError, WorkerLostError
from hflray.models import initial_vector
from hflray.models.paper import HflCnn, init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.seeding import stream
from hflray.training.local import DeviceHost
from hflray.training.program import program_of
from hflray.training.state import RoundTask
from tests.models.samples import build_model
from tests.training.rounds import Rounds, actor_rounds, actors, serial_rounds, sums
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
    state, losses, _ = serial.result(1, serial.start(start), DEVICES, EDGES, COUNTS, wants_losses=True)
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


@pytest.mark.parametrize("count", [*(pytest.param(other, marks=pytest.mark.slow) for other in (1, 2, 5)), 3])
def test_every_pool_gives_the_bits_of_the_serial_backend(ray_session, start, count: int) -> None:
    data, job = make_data(SIZES, tests=2500), make_job()
    data = replace(data, validation=np.sort(np.random.default_rng(0).permutation(len(data.y))[: len(data.y) // 2]))
    serial = serial_rounds(job, data, 3)
    expected = serial.train_round(1, start, DEVICES, EDGES)
    with actors(job, data, 3, count) as pool:
        np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), expected)
        begin = serial.start(start)
        ours, theirs = (
            backend.result(1, begin, DEVICES, EDGES, COUNTS, wants_losses=True) for backend in (pool, serial)
        )
        np.testing.assert_array_equal(ours.state.model, theirs.state.model)
        assert ours.losses == theirs.losses
        assert sorted(ours.losses) == sorted(DEVICES)
        np.testing.assert_array_equal(pool.losses(start, DEVICES), serial.losses(start, DEVICES))
        nobody = pool.train_round(1, start, DEVICES, EDGES, np.zeros((3, 5), dtype=bool))
        np.testing.assert_array_equal(nobody, start)
        for part, sizes in (("test", [1000, 1000, 500]), ("validation", [len(data.validation)])):
            found, alone = (backend.evaluate(expected, keeps_outputs=True, part=part) for backend in (pool, serial))
            assert [len(part) for part in alone.outputs] == sizes
            assert found[:2] == alone[:2] == pool.evaluate(expected, part=part)[:2]
            # In the order of the samples, whichever actor has evaluated them.
            np.testing.assert_array_equal(np.concatenate(found.outputs), np.concatenate(alone.outputs))
        np.testing.assert_array_equal(pool.train_each(job, data, start), serial.train_each(job, data, start))


@pytest.mark.parametrize("spec", [ModelSpec.of("resnet8", {"norm": "batch"}), ModelSpec.of("mlp", {"dropout": 0.5})])
def test_actors_train_statistics_and_dropout_with_the_bits_of_the_serial_backend(ray_session, spec: ModelSpec) -> None:
    data, job = colour_data(SIZES), network_job(spec)
    start = initial_vector(job.problem, 1)
    expected = serial_rounds(job, data, 2).train_round(1, start, DEVICES, EDGES)
    with actors(job, data, 2) as pool:
        np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), expected)


def test_a_lost_actor_costs_nothing_but_time(ray_session, start) -> None:
    import ray

    data, job = make_data(SIZES), make_job()
    serial = serial_rounds(job, data, 2)
    expected = serial.train_round(1, start, DEVICES, EDGES)
    with actors(job, data, 2, 1) as pool:
        pool.train_round(1, start, DEVICES, EDGES)
        ray.kill(pool.pool.edges[0])  # the last test of this file kills one of two devices before they train
        np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), expected)
        ray.kill(pool.pool.devices[0])
        assert pool.evaluate(start) == serial.evaluate(start)


def test_divergence_inside_an_actor_arrives_as_itself(ray_session, start) -> None:
    with (
        actors(make_job(learning_rate=1e30), make_data(SIZES), 2, 1) as pool,
        pytest.raises(DivergedError, match=r"round 7, edge iteration 0, device \d"),
    ):
        pool.train_round(7, start, DEVICES, EDGES)


def test_actors_that_keep_dying_end_the_round_with_an_error(ray_session, start, monkeypatch) -> None:
    import ray

    with actors(make_job(), make_data(SIZES), 1, 1) as pool:
        begin = pool.pool.start

        def doomed() -> None:
            begin()
            ray.kill(next(iter(pool.pool._pending.values())))

        monkeypatch.setattr(pool.pool, "start", doomed)
        pool.pool.refresh()
        ray.kill(pool.pool.devices[0])
        with pytest.raises(WorkerLostError, match="round 4: workers were lost 3 times"):
            pool.train_round(4, start, DEVICES, EDGES)


def test_calls_of_a_round_grow_with_hosts_and_edges_not_with_devices() -> None:
    setting = serial_rounds(make_job(), make_data((1,) * 60), 2).setting
    for scheduled in (6, 60):
        devices = np.arange(scheduled)
        task = RoundTask(1, Schedule(devices, devices % 3), np.ones((2, scheduled), dtype=bool))
        # There are Q · hosts calls of hosts and Q · edges calls of edges.
        calls = Counter(step.does for step in program_of(task, setting, 2, True).steps)
        assert calls == Counter(train=2 * 2, finish=3, close=3)


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_memory_is_flat_over_many_rounds(ray_session, start, rounds) -> None:
    """This checks the resident memory of the driver and the actors, and the use of the object store."""
    import ray

    with actors(make_job(), make_data(SIZES), 2) as pool:
        pool.pool.refresh()
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
    # A round moves 15 models of 0.3 MB, so a leak of all of them would take 90 MB in 20 rounds.
    assert max(b - a for a, b in zip(before, after, strict=True)) < 30
    assert free_before - free_after < 20
    assert max(after[1:]) < 600


def test_an_actor_that_cannot_start_says_why(ray_session, start, monkeypatch) -> None:
    """The driver knows a network that the actors do not know."""
    monkeypatch.setitem(registry._ADDED, ("model", "only_here"), lambda input_shape, num_outputs: HflCnn(SHAPE, 3))
    job = make_job(problem=Problem(SHAPE, 3, model=ModelSpec("only_here")))
    with (
        actors(job, make_data(SIZES), 1, 1) as pool,
        pytest.raises(WorkerLostError, match=r"round 1: a worker could not start: .*only_here"),
    ):
        pool.train_round(1, start, DEVICES, EDGES)


def test_an_actor_that_was_kept_and_cannot_serve_the_next_experiment_says_why(ray_session, start, monkeypatch) -> None:
    """It went on with the experiment before, whose numbers nobody would have missed."""
    monkeypatch.setitem(registry._ADDED, ("model", "only_here"), lambda input_shape, num_outputs: HflCnn(SHAPE, 3))
    job = make_job(problem=Problem(SHAPE, 3, model=ModelSpec("only_here")))
    first = actor_rounds(make_job(), make_data(SIZES), 1, num_actors=1, cpus_per_actor=0.5, keep=True)
    first.train_round(1, start, DEVICES, EDGES)
    first.close()
    second = actor_rounds(job, make_data(SIZES), 1, num_actors=1, cpus_per_actor=0.5, keep=True)
    assert second.pool is first.pool
    with pytest.raises(ConfigError, match="only_here"):
        second.train_round(1, start, DEVICES, EDGES)
    second.close()
    assert second.pool.devices == []


def test_actors_that_rest_serve_the_next_of_their_shape_and_a_lost_one_is_replaced(ray_session, start) -> None:
    import ray

    from hflray.training import actor_pool as pools

    def hierarchy(job, data, num_actors=2) -> Rounds:
        return actor_rounds(job, data, 2, num_actors=num_actors, cpus_per_actor=0.5, keep=True)

    first = hierarchy(make_job(), make_data(SIZES))
    resting = first.pool.devices
    first.train_round(1, start, DEVICES, EDGES)
    first.close()
    job, data = make_job(seed=3, learning_rate=0.02), make_data(tuple(reversed(SIZES)))
    expected = serial_rounds(job, data, 2).train_round(1, start, DEVICES, EDGES)
    second = hierarchy(job, data)
    assert second.pool.devices is resting
    np.testing.assert_array_equal(second.train_round(1, start, DEVICES, EDGES), expected)
    second.close()
    again = hierarchy(job, data)
    assert again.pool is second.pool
    ray.kill(resting[0])
    np.testing.assert_array_equal(again.train_round(1, start, DEVICES, EDGES), expected)
    again.close()
    third = hierarchy(job, data, num_actors=1)
    assert third.pool is not second.pool
    assert pools._resting == []
    third.hierarchy._idle = False  # as a call that failed leaves it: other calls may still be under way
    third.close()
    assert (third.pool.devices, pools._resting) == ([], [])
