"""The gradient of the round's objective, for a Q-network taken as a stochastic policy.

``π(m | n) = softmax(Q_n / temperature)`` for each device independently. For a drawn assignment, `transfer_objectives`
says what the objective J would be with each device at each edge, the others staying where they were drawn, so that

    ∇ E[ln J] = E[ Σ_n Σ_m ∇π(m | n) · ln J(Ψ with n at m) ]

needs no baseline and has none of the variance of rewards shared by all devices (Foerster et al., "Counterfactual
Multi-Agent Policy Gradients", with the cost model in the critic's place). The logarithm makes a fleet with one hopeless
device count as much as any other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hflray.assignment.counterfactual import transfer_objectives
from hflray.assignment.network import QNetwork, padded_batch
from hflray.rl.fleets import SolvedFleet

AT_ONCE = 4  # batches drawn together and sorted by H, so that little of a batch is padding
CLIP = 1.0  # norm of the gradient


def batch_of(
    fleets: Sequence[SolvedFleet], network: QNetwork, orders: Sequence[NDArray[np.intp]]
) -> tuple[Tensor, Tensor]:
    """Rows (B, T, row) and lengths (B,) of fleets, the devices of each in the order given."""
    edges = max(len(fleet.problem.bandwidth) for fleet in fleets)
    features = network.spec.features
    return padded_batch([fleet.rows(features, edges)[order] for fleet, order in zip(fleets, orders, strict=True)])


class CostGradient:
    """The learner: draws assignments from the policy and follows the gradient of their objective.

    Args:
        network: what is trained, in place.
        learning_rate: of Adam.
        temperature: of the softmax over Q.
        batch: fleets of an update.
        seed: of all draws.
    """

    def __init__(
        self, network: QNetwork, *, learning_rate: float, temperature: float = 1.0, batch: int = 16, seed: int = 0
    ) -> None:
        self.network, self.temperature, self.batch = network.requires_grad_(True).train(), temperature, batch
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
        self.rng = np.random.default_rng(seed)
        self.updates = 0
        self.clipped = 1.0  # what the last gradient was divided by
        self.threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    def draw(self, fleets: Sequence[SolvedFleet]) -> list[list[SolvedFleet]]:
        """`AT_ONCE` batches of fleets of similar H."""
        picked = self.rng.integers(len(fleets), size=AT_ONCE * self.batch)
        some = sorted((fleets[int(i)] for i in picked), key=lambda fleet: len(fleet.labels))
        return [some[i : i + self.batch] for i in range(0, len(some), self.batch)]

    def update(self, fleets: Sequence[SolvedFleet]) -> float:
        """One step on these fleets; returns what a device's policy costs against its draw, in ln J, by the mean."""
        orders = [self.rng.permutation(len(fleet.labels)) for fleet in fleets]
        rows, lengths = batch_of(fleets, self.network, orders)
        share = (self.network(rows, lengths) / self.temperature).softmax(dim=-1)
        # Drawn by inversion with numpy's generator: torch's is global.
        level = share.detach().double().cumsum(-1)
        draws = torch.from_numpy(self.rng.random(level.shape[:2])) * level[..., -1]
        actions = (level <= draws[..., None]).sum(-1).numpy()

        def table(i: int) -> NDArray[np.float32]:
            order, count = orders[i], len(orders[i])
            assignment = np.empty(count, dtype=np.intp)
            assignment[order] = actions[i, :count]
            now, objectives = transfer_objectives(fleets[i].problem, assignment)
            return np.log(objectives / now)[order].astype(np.float32)

        cost = torch.zeros_like(share)
        for i, values in enumerate(self.threads.map(table, range(len(fleets)))):
            cost[i, : values.shape[0], : values.shape[1]] = torch.from_numpy(values)
        loss = (share * cost).sum() / lengths.sum()
        self.optimizer.zero_grad()
        # Adam does not see the scale; the clipped norm does. Ten: of the order of a cross-entropy's gradient.
        (10.0 * loss).backward()
        norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), CLIP))
        self.clipped = max(1.0, norm / CLIP)
        self.optimizer.step()
        self.updates += 1
        return float(loss.detach())

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on: arrays and JSON values."""
        adam = self.optimizer.state_dict()["state"]
        return {
            "updates": self.updates,
            "rng": self.rng.bit_generator.state,
            **{f"network/{name}": value for name, value in self.weights().items()},
            **{f"adam/{i}/{k}": v.numpy().copy() for i, entry in adam.items() for k, v in entry.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self.updates = int(state["updates"])
        self.rng.bit_generator.state = state["rng"]
        self.load_weights(state, "network/")
        whole = self.optimizer.state_dict()
        whole["state"] = {}
        for key, value in state.items():
            if key.startswith("adam/"):
                _, i, k = key.split("/")
                whole["state"].setdefault(int(i), {})[k] = torch.from_numpy(value.copy())
        self.optimizer.load_state_dict(whole)

    def weights(self) -> dict[str, NDArray[Any]]:
        """A copy of the network's weights."""
        return {name: value.numpy().copy() for name, value in self.network.state_dict().items()}

    def load_weights(self, arrays: dict[str, Any], prefix: str = "") -> None:
        """Take over weights of such names."""
        self.network.load_state_dict(
            {name: torch.from_numpy(arrays[prefix + name].copy()) for name in self.network.state_dict()}
        )
