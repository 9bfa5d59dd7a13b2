"""Three Ray nodes on this machine: their results after losses, and the configurations they refuse."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.models.paper import init_vector
from hflray.seeding import stream
from tests.conftest import own_module, small_config
from tests.models.samples import build_model
from tests.training.rounds import Rounds, actor_rounds, serial_rounds
from tests.training.test_local import SHAPE, make_data, make_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SIZES = (9, 7, 5, 4, 3, 2, 6, 8, 5, 4, 7, 3)
DEVICES = np.arange(12)
EDGES = DEVICES % 3
STORE = 150 * 2**20
# Ray notices a lost node after some 15 s. These settings shorten that time for the tests.
QUICK = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 4}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Yield a cluster of a head that does not compute and two workers with two CPUs each."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE, "_system_config": QUICK}
    ray_cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray_cluster.workers = [ray_cluster.add_node(num_cpus=2, object_store_memory=STORE) for _ in range(2)]
        ray_cluster.wait_for_nodes()
        ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
        yield ray_cluster
    finally:
        ray.shutdown()
        ray_cluster.shutdown()


@pytest.fixture
def start() -> np.ndarray:
    return init_vector(build_model("hfl", SHAPE, 3), stream(0, "model"))


def hashes(backend: Any, start: np.ndarray, rounds: int = 3) -> list[str]:
    model, digests = start, []
    for index in range(1, rounds + 1):
        model = backend.train_round(index, model, DEVICES, EDGES)
        digests.append(hashlib.sha256(model.tobytes()).hexdigest())
    return digests


def expected(start: np.ndarray, rounds: int = 3, edge_iterations: int = 2, **changes: Any) -> list[str]:
    return hashes(serial_rounds(make_job(**changes), make_data(SIZES), edge_iterations), start, rounds)


@contextlib.contextmanager
def hierarchy(num_actors: int = 4, edge_iterations: int = 2, **changes: Any) -> Iterator[Rounds]:
    backend = actor_rounds(make_job(**changes), make_data(SIZES), edge_iterations, num_edges=3, num_actors=num_actors)
    try:
        yield backend
    finally:
        backend.close()


def test_three_nodes_give_the_bits_of_the_serial_backend(cluster, start) -> None:
    with hierarchy() as pool:
        assert hashes(pool, start) == expected(start)
        workers = {node.node_id for node in cluster.workers}
        assert set(pool.pool.nodes) == workers
        assert all(pool.pool.nodes.count(node) == 2 for node in workers)  # actors are spread over the workers
        data, job = make_data(SIZES), make_job()
        serial = serial_rounds(job, data, 2)
        assert pool.evaluate(start) == serial.evaluate(start)
        np.testing.assert_array_equal(pool.train_each(job, data, start), serial.train_each(job, data, start))


def test_a_worker_that_joins_is_used_and_a_late_actor_joins_the_next_round(cluster, start, monkeypatch) -> None:
    monkeypatch.setattr("hflray.training.actor_pool.SETTLE_S", 5.0)
    with hierarchy(num_actors=6) as pool:  # the cluster has CPUs for four
        assert hashes(pool, start, 1) == expected(start, 1)
        assert len(pool.pool.devices) == 4
        third = cluster.add_node(num_cpus=2, object_store_memory=STORE)
        deadline = time.monotonic() + 60
        while len(pool.pool.devices) < 6:
            assert time.monotonic() < deadline
            assert hashes(pool, start, 1) == expected(start, 1)
        assert pool.pool.nodes.count(third.node_id) == 2


class Wrapped:
    """An actor of which each call first passes its name to `before`, and its references to `after`."""

    def __init__(self, actor: Any, before: Callable[[str], object], after: Callable[[str, list[Any]], object]) -> None:
        self._actor, self._before, self._after = actor, before, after

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name, getattr(self._actor, name))


class _Method:
    def __init__(self, wrapped: Wrapped, name: str, bound: Any) -> None:
        self._wrapped, self._name, self._bound = wrapped, name, bound

    def remote(self, *arguments: Any) -> Any:
        self._wrapped._before(self._name)
        refs = self._bound.remote(*arguments)
        self._wrapped._after(self._name, refs if isinstance(refs, list) else [refs])
        return refs

    def options(self, **chosen: Any) -> _Method:
        return _Method(self._wrapped, self._name, self._bound.options(**chosen))


def test_each_node_holds_the_data_once(cluster, start) -> None:
    from ray.experimental import get_object_locations

    with hierarchy() as pool:
        hashes(pool, start, 1)
        (location,) = get_object_locations([pool.pool._data_ref]).values()
        assert sorted(location["node_ids"]) == sorted({cluster.head_node.node_id, *pool.pool.nodes})


LONG = {"local_iterations": 60}  # a round of some seconds, in which a node or an actor is lost
_long: list[np.ndarray] = []


def long_round(start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the models after rounds 1 and 2 of an uninterrupted run in this process."""
    if not _long:
        serial = serial_rounds(make_job(**LONG), make_data(SIZES), 2)
        _long.append(serial.train_round(1, start, DEVICES, EDGES))
        _long.append(serial.train_round(2, _long[0], DEVICES, EDGES))
    return _long[0], _long[1]


def in_the_background(work: Any) -> tuple[threading.Thread, dict[str, Any]]:
    result: dict[str, Any] = {}

    def run() -> None:
        try:
            result["value"] = work()
        except BaseException as error:
            result["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


@pytest.mark.parametrize("victim", ["devices", "an edge"])
def test_a_node_lost_in_a_round_is_replaced_and_the_round_repeated(cluster, start, monkeypatch, victim) -> None:
    monkeypatch.setattr("hflray.training.actor_pool.SETTLE_S", 5.0)
    model, expected_model = long_round(start)
    with hierarchy(**LONG) as pool:
        pool.train_round(1, start, DEVICES, EDGES)
        node = pool.pool.nodes[0] if victim == "devices" else pool.pool._homes[2]
        doomed = next(worker for worker in cluster.workers if worker.node_id == node)
        thread, result = in_the_background(lambda: pool.train_round(2, model, DEVICES, EDGES))
        time.sleep(0.7)
        assert thread.is_alive(), "the round was over before the node was lost: make it longer"
        cluster.remove_node(doomed, allow_graceful=False)
        thread.join(200)
        assert not thread.is_alive()
        assert "value" in result, result
        np.testing.assert_array_equal(result["value"], expected_model)
        assert node not in pool.pool.nodes


def killed_in(actor: Any, method: str, during: bool) -> Wrapped:
    """Return an actor that is killed in every call of a method: before the call, or during it."""
    import ray

    def before(name: str) -> None:
        if name == method and not during:
            ray.kill(actor)

    def after(name: str, refs: list[Any]) -> None:
        if name == method and during:
            threading.Timer(0.3, ray.kill, [actor]).start()

    return Wrapped(actor, before, after)


@pytest.mark.parametrize(
    "phase, kind, method, during",
    [
        ("broadcast", "devices", "train", False),
        ("training", "devices", "train", True),
        ("edge aggregation", "edges", "finish", False),
        ("last edge aggregation", "edges", "close", False),
        ("addition on a node", "_adders", "total", False),
    ],
)
def test_a_round_survives_an_actor_killed_in_each_phase(
    cluster, start, monkeypatch, phase, kind, method, during
) -> None:
    import ray

    kill = ray.kill
    # `pool.close` ends the killer too.
    monkeypatch.setattr(ray, "kill", lambda actor: kill(getattr(actor, "_actor", actor)))
    model, expected_model = long_round(start)
    with hierarchy(**LONG) as pool:
        np.testing.assert_array_equal(pool.train_round(1, start, DEVICES, EDGES), model)
        actors = getattr(pool.pool, kind)
        place = next(iter(actors)) if isinstance(actors, dict) else 0
        getattr(actors[place], method)  # an error if the actor has no such method
        actors[place] = killed_in(actors[place], method, during)
        starts: list[float] = []
        restart = pool.pool.start
        pool.pool.start = lambda: (starts.append(time.monotonic()), restart())[1]
        np.testing.assert_array_equal(pool.train_round(2, model, DEVICES, EDGES), expected_model)
        assert starts, "nobody died"


def test_a_node_with_other_code_is_named(cluster, monkeypatch) -> None:
    import hflray.support.provenance as module
    from hflray.tune import nodes

    nodes.check_nodes()
    monkeypatch.setattr(nodes, "release", lambda: module.release() | {"hflray": "0.1.0 (another)"})
    with pytest.raises(ConfigError, match=r"node [\d.]+: runs hflray .* instead of 0.1.0 \(another\).*setup_node.sh"):
        nodes.check_nodes()


def test_results_that_nodes_do_not_share_are_refused(cluster, tmp_path, monkeypatch) -> None:
    from hflray.tune import nodes

    nodes.check_nodes(tmp_path)  # all nodes are on one machine and see the folder
    monkeypatch.setattr(
        nodes, "_query", lambda live, probe: [{"release": nodes.release(), "sees": n == 0} for n in range(3)]
    )
    with pytest.raises(ConfigError, match=r"--results: node [\d.]+ does not see .*--storage s3://"):
        nodes.check_nodes(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_trial_that_exceeds_the_cluster_is_refused(cluster) -> None:
    from hflray.training.hierarchy import start_ray
    from hflray.tune.nodes import check_resources

    cpus = start_ray()
    assert cpus == 4
    check_resources("tune.cpus_per_trial", "CPU", 4, cpus)
    with pytest.raises(ConfigError, match=r"cpus_per_trial: a trial needs 5 CPUs, Ray has 4; accepted: up to 4"):
        check_resources("tune.cpus_per_trial", "CPU", 5, cpus)


OWN = own_module("network")


def test_other_nodes_need_no_copy_of_a_users_file(cluster, tmp_path) -> None:
    """The file is gone when actors on two other nodes build the network, so that its text must have come with it."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    config = small_config(f"model.name={path}:Net", "training.backend=ray", "training.num_actors=4", "max_rounds=2",
                          "training.kernel=channels_last", "training.threads=1")  # fmt: skip
    path.unlink()
    with Experiment(config) as experiment:
        rounds = [record.model_hash for record in experiment]
        nodes = set(experiment.hierarchy.pool.nodes)
    assert nodes == {node.node_id for node in cluster.workers}
    serial = config.model_copy(update={"training": config.training.model_copy(update={"backend": "serial"})})
    assert rounds == [record.model_hash for record in Experiment(serial)]
