"""Algorithm 2 of the paper: train an auxiliary model on every device, run K-means on the weights, and bill both.

The K-means step and the bill's arithmetic are in `hflray.scheduling.clustering`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hflray.allocation import allocate_round
from hflray.config import ExperimentConfig
from hflray.cost import Workload
from hflray.data import preprocess
from hflray.data.partition import majority_classes
from hflray.experiment.scenario import Scenario
from hflray.models import auxiliary_problem, initial_vector
from hflray.models.problem import Problem
from hflray.models.vector import BITS_PER_PARAMETER
from hflray.scheduling import cluster_devices, clustering_cost
from hflray.seeding import stream
from hflray.training.job import DeviceData

# A function that trains a model on every device from one vector of weights, (P,), and returns all weights, (N, P).
TrainEach = Callable[[Problem, DeviceData, NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Grouping:
    """The result of Algorithm 2.

    Attributes:
        clusters: the cluster of each device, (N,).
        bill: ``ari`` (compared with the true majority classes), ``delay_s`` and ``energy_j``.
    """

    clusters: NDArray[np.intp]
    bill: dict[str, float]


def group_devices(
    config: ExperimentConfig, scenario: Scenario, work: Workload, auxiliary: str | None, train_each: TrainEach
) -> Grouping:
    """Run Algorithm 2.

    Args:
        config: the experiment's configuration.
        scenario: the experiment's data and fleet.
        work: the workload of the experiment's rounds.
        auxiliary: the model to train, as in ``scheduling.auxiliary``. ``global`` also has the global model's initial
            weights (Algorithm 3, line 2).
        train_each: trains the model, see `TrainEach`.

    Raises:
        ConfigError: see `clustering_cost`, before anything is trained.
    """
    dataset = scenario.dataset
    learned = Problem.of(dataset, config)
    problem = auxiliary_problem(learned, auxiliary)
    if problem == learned:
        vector = initial_vector(problem, config.seed)
        bits = config.cost.model_bits or float(BITS_PER_PARAMETER * len(vector))  # models are sent whole
    else:
        vector = initial_vector(problem, config.seed, "mini-model")
        bits = float(BITS_PER_PARAMETER * len(vector))
    bill = config.scheduling.clustering_bill
    cost = clustering_cost(
        scenario.fleet,
        bits,
        work.local_iterations,
        work.delay_weight,
        partial(allocate_round, method=config.allocation.method, coupling=config.allocation.coupling),
        edge_iterations=work.edge_iterations if bill.edge_iterations == "Q" else 1,
        max_cpu=bill.cpu == "max",
        steps=work.steps,
    )
    inputs = None
    if problem.input_shape != learned.input_shape:
        inputs = preprocess(dataset.x_train, config.data.preprocess, stream(config.seed, "mini-inputs"))
    trained = train_each(problem, scenario.device_data(inputs), vector)
    count = config.scheduling.num_clusters or dataset.num_strata
    clusters = cluster_devices(trained, count, config.seed)
    truth = majority_classes(scenario.parts, dataset.strata, dataset.num_strata)
    ari = adjusted_rand_index(clusters, truth)
    return Grouping(clusters, {"ari": ari, "delay_s": cost.delay_s, "energy_j": cost.energy_j})


def adjusted_rand_index(predicted: NDArray[np.integer], truth: NDArray[np.integer]) -> float:
    """Return the adjusted Rand index of two clusterings of N devices, with (N,) labels each (paper, equation 28).

    It is 1 for identical clusterings and about 0 for independent ones.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(truth, predicted))
