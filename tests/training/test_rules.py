"""Every rule over several edge iterations a round, beside plain NumPy loops that share no code with ours.

Softmax regression of digits: 15 devices of one class each, five edges, 20 edge iterations a round, all devices train.
The loops are written from the papers. Steps take the whole data of a device, so that no order of mini-batches differs.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hflray.experiment import Experiment
from hflray.training.job import Samples
from tests.conftest import small_config

N, M, Q, L, ROUNDS, RATE, ALPHA, MU = 15, 5, 20, 5, 3, 0.02, 0.01, 0.5
OPTIONS = {"fedprox": {"mu": MU}, "feddyn": {"alpha": ALPHA}}
RULES = ("sgd", "fedprox", "scaffold", "feddyn", "fednova", "mtgc")


class Softmax:
    """The devices' data and edges of an experiment, and the loops over them."""

    def __init__(self, experiment: Experiment, edges: np.ndarray) -> None:
        samples = Samples(experiment.problem, experiment.scenario.device_data())
        pairs = [samples.of(device) for device in range(N)]
        self.x = [x.double().numpy().reshape(len(x), -1) for x, _ in pairs]
        self.targets = [np.eye(10)[y.numpy()] for _, y in pairs]
        self.edges = edges

    def gradient(self, device: int, w: np.ndarray) -> np.ndarray:
        """Return the gradient of the cross-entropy at weights (10, 64) and biases (10,), as one vector."""
        x, size = self.x[device], 10 * self.x[device].shape[1]
        scores = x @ w[:size].reshape(10, -1).T + w[size:]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = (odds / odds.sum(axis=1, keepdims=True) - self.targets[device]) / len(x)
        return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])

    def train(self, rule: str, start: np.ndarray) -> np.ndarray:
        """Return the global model after the rounds."""
        w, size = start.astype(np.float64), len(start)
        c, each_c = np.zeros(size), np.zeros((N, size))  # SCAFFOLD
        h, each_h = np.zeros(size), np.zeros((N, size))  # FedDyn
        y = np.zeros((M, size))  # MTGC
        for _ in range(ROUNDS):
            at = np.tile(w, (M, 1))
            z, moved, bent = np.zeros((N, size)), np.zeros((N, size)), np.zeros(size)
            ends = np.zeros((N, size))
            for q in range(Q):
                begin = at.copy()
                for n in range(N):
                    m, v = self.edges[n], begin[self.edges[n]].copy()
                    if rule == "mtgc" and q:
                        z[n] += (ends[n] - begin[m]) / (L * RATE)
                    for _ in range(L):
                        more = {
                            "sgd": 0.0, "fednova": 0.0, "fedprox": MU * (v - begin[m]), "scaffold": c - each_c[n],
                            "feddyn": ALPHA * (v - begin[m]) - each_h[n], "mtgc": z[n] + y[m],
                        }[rule]  # fmt: skip
                        v -= RATE * (self.gradient(n, v) + more)
                    moved[n] += begin[m] - v
                    ends[n] = v
                    if rule == "feddyn":
                        each_h[n] += ALPHA * (begin[m] - v)
                        bent += ALPHA * (begin[m] - v) / N
                at = np.array([ends[self.edges == m].mean(axis=0) for m in range(M)])
            mean = ends.mean(axis=0)  # devices have equal weights; an edge counts with their number
            if rule == "scaffold":
                change = moved / (Q * L * RATE) - c
                each_c, c = each_c + change, c + change.mean(axis=0)
            if rule == "mtgc":
                y += (at - mean) / (Q * L * RATE)
            h = h + bent
            w = mean - h / ALPHA
            if not np.isfinite(w).all():
                break
        return w


@cache
def both(rule: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the model of our code and that of the loops after the rounds, and our accuracy."""
    config = small_config(
        f"fleet.num_devices={N}", f"fleet.num_edges={M}", "scheduling.name=fedavg", f"scheduling.num_scheduled={N}",
        "assignment.name=even_gain", "model.name=logistic", "data.majority_fraction=1", "aggregation.weights=uniform",
        f"training.edge_iterations={Q}", f"training.local_iterations={L}", "training.local_iteration=full_batch",
        f"training.learning_rate={RATE}", f"max_rounds={ROUNDS}",
        f"training.rule={{name: {rule}, options: {json.dumps(OPTIONS.get(rule, {}))}}}",
    )  # fmt: skip
    with Experiment(config) as experiment:
        start = experiment.global_model.copy()
        records = list(experiment)
        edges = np.zeros(N, dtype=int)
        edges[records[0].devices] = records[0].assignment
        with threadpool_limits(1):  # the products are small
            loops = Softmax(experiment, edges).train(rule, start)
        return experiment.global_model, loops, records[-1].accuracy


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_that_of_its_paper_over_many_edge_iterations(rule: str) -> None:
    ours, loops, _ = both(rule)
    assert np.linalg.norm(ours - loops) < 1e-5 * np.linalg.norm(loops)


@pytest.mark.parametrize("rule", ["scaffold", "feddyn", "mtgc"])
def test_a_rule_against_drift_ends_above_plain_sgd(rule: str) -> None:
    """With one class a device and 20 edge iterations a round: the case in which moving variates ended at chance."""
    assert both(rule)[2] > both("sgd")[2] + 0.05
