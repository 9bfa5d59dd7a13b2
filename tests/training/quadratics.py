"""Devices whose losses are quadratics: driven by the functions of a rule in float64, and by the real code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from hflray import registry
from hflray.models.problem import ModelSpec, Problem
from hflray.training.job import DeviceData, LocalJob
from hflray.training.method import Method, Spec
from hflray.training.rules import CloudReport, EdgeReport, LocalRule, Received
from hflray.training.rules.base import after_turn
from tests.training.rounds import Rounds, serial_rounds

RATE, SIZE = 0.1, 3


class Devices:
    """N devices with the gradients A_n (w − b_n) at w, (P,), where A_n is diagonal."""

    def __init__(self, count: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.slopes, self.minima = rng.uniform(0.5, 1.5, (count, SIZE)), rng.normal(size=(count, SIZE))
        self.steps, self.weights = rng.integers(1, 6, count), rng.integers(1, 9, count).astype(float)
        self.start = rng.normal(size=SIZE)

    def __len__(self) -> int:
        return len(self.steps)

    def gradient(self, device: int, weights: np.ndarray) -> np.ndarray:
        """Return the gradient of a device's loss."""
        return self.slopes[device] * (weights - self.minima[device])

    def trained(self, device: int, weights: np.ndarray, correction=lambda weights: 0.0) -> np.ndarray:
        """Return the weights after the device's K steps."""
        for _ in range(self.steps[device]):
            weights = weights - RATE * (self.gradient(device, weights) + correction(weights))
        return weights


class Driven(NamedTuple):
    """What a driven rule leaves: the model after each round, what devices keep and what the cloud keeps."""

    models: list[np.ndarray]
    memories: list[dict[int, Any]]
    states: list[Any]


def drive(rule: LocalRule, devices: Devices, rounds: list[dict[int, list[int]]], iterations: int = 1) -> Driven:
    """Run Algorithm 1 with a rule's functions in float64; ``rounds[i]`` holds the devices of each edge."""
    num_edges = 1 + max(edge for edges in rounds for edge in edges)
    state, memories, model = rule.start(SIZE, num_edges), {}, devices.start
    driven = Driven([], [], [])
    for edges in rounds:
        reports, shares, effective, extra = {}, {}, {}, {}
        for edge, members in edges.items():
            at_edge, share = model, devices.weights[members] / devices.weights[members].sum()
            mean_rate = float(share @ devices.steps[members]) * RATE
            effective[edge] = 0.0
            for q in range(iterations):
                trained = []
                for device in members:
                    last = q == iterations - 1
                    received = Received(at_edge, rule.sends(state, edge), q, mean_rate if q else 0.0, last)
                    memory = rule.begin(received, memories.get(device, {}))

                    def correction(weights, received=received, memory=memory):
                        corrected = rule.correction(weights, received.model, received.vectors, memory)
                        return 0.0 if corrected is None else corrected

                    trained.append(devices.trained(device, at_edge, correction))
                    memories[device], sent = rule.finish(received, trained[-1], devices.steps[device] * RATE, memory)
                    for name, vector in sent.items():
                        extra[name] = extra.get(name, 0.0) + vector
                scales = rule.scales("edge", devices.steps[members].astype(float), share, 0.0)
                factors, steps = (np.ones(len(members)), 0.0) if scales is None else scales
                effective[edge] += steps
                at_edge = at_edge + (share * factors) @ (np.array(trained) - at_edge)
            reports[edge] = EdgeReport(at_edge, mean_rate * iterations)
            shares[edge] = devices.weights[members].sum()
        share = np.array(list(shares.values())) / sum(shares.values())
        scales = rule.scales("cloud", np.array(list(effective.values())), share, 0.0)
        factors = np.ones(len(share)) if scales is None else scales[0]
        mean = model + (share * factors) @ (np.array([report.model for report in reports.values()]) - model)
        made, state = rule.cloud(CloudReport(model, mean, reports, extra, len(devices)), state)
        model = mean if made is None else made
        driven.models.append(model)
        driven.memories.append(dict(memories))
        driven.states.append(state)
        memories = {device: after_turn(rule, memory) for device, memory in memories.items()}
    return driven


def hierarchy(
    monkeypatch,
    rule: str,
    minima: tuple[float, ...],
    iterations: int = 1,
    steps: int = 2,
    samples: tuple[int, ...] | None = None,
    num_edges: int = 2,
    full_batch: bool = False,
    **method: Any,
) -> Rounds:
    """Return the real code for devices with one weight and the gradients w − aₙ, which make so many steps of 0.1.

    With `samples`, device n has that many, and makes ``samples[n]`` steps in each local iteration, or one step if
    `full_batch`.
    """

    def one_weight(input_shape, num_outputs):
        return torch.nn.Linear(1, 1, bias=False)

    monkeypatch.setitem(registry._ADDED, ("model", "one_weight"), one_weight)
    sizes = samples or (1,) * len(minima)
    root = np.float32(np.sqrt(0.5))  # the loss (w·x − y)² is ½ (w − a)²
    count = sum(sizes)
    data = DeviceData(
        x=np.full((count, 1), root), y=root * np.repeat(np.float32(minima), sizes), index=np.arange(count),
        offsets=np.cumsum((0, *sizes)), x_test=np.full((1, 1), root), y_test=np.zeros(1, np.float32),
        channel_mean=np.zeros(1, np.float32), channel_std=np.ones(1, np.float32),
    )  # fmt: skip
    problem = Problem((1,), 1, "regression", ModelSpec("one_weight"))
    job = LocalJob(
        problem, seed=0, local_iterations=steps, batch_size=1, learning_rate=RATE, kernel="eager",
        local_iteration="epoch" if samples and not full_batch else "full_batch", edge_iterations=iterations,
        method=Method(rule=Spec("local_rule", rule), **method),
    )  # fmt: skip
    return serial_rounds(job, data, iterations, num_edges)
