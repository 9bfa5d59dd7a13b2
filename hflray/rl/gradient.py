"""The gradient of the round's objective for a Q-network that is used as a stochastic policy.

The policy is ``π(m | n) = softmax(Q_n)``, independently for each device. For a drawn assignment,
`transfer_objectives` computes the objective J with each device moved to each edge while all other devices stay. The
gradient

    ∇ E[ln J] = E[ Σ_n Σ_m ∇π(m | n) · ln J(Ψ with n at m) ]

therefore needs no baseline, and it avoids the variance of a reward that all devices share (Foerster et al.,
"Counterfactual Multi-Agent Policy Gradients", with the cost model in the critic's place). Because of the logarithm, a
fleet with one very expensive device has the same weight as any other fleet.
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

AT_ONCE = 4  # batches that are drawn together and sorted by H, so that little of a batch is padding
CLIP = 1.0  # largest norm of the gradient


def batch_of(
    fleets: Sequence[SolvedFleet], network: QNetwork, orders: Sequence[NDArray[np.intp]]
) -> tuple[Tensor, Tensor]:
    """Return the padded rows (B, T, row) and lengths (B,) of fleets, with each fleet's devices in its order."""
    edges = max(len(fleet.problem.bandwidth) for fleet in fleets)
    features = network.spec.features
    return padded_batch([fleet.rows(features, edges)[order] for fleet, order in zip(fleets, orders, strict=True)])


class CostGradient:
    """The learner, which draws assignments from the policy and follows the gradient of their objective.

    Args:
        network: the network, which is trained in place.
        learning_rate: Adam's learning rate.
        batch: number of fleets per update.
        seed: seed of all draws.
    """

    def __init__(self, network: QNetwork, *, learning_rate: float, batch: int = 16, seed: int = 0) -> None:
        self.network, self.batch = network.requires_grad_(True).train(), batch
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
        self.rng = np.random.default_rng(seed)
        self.updates = 0
        self.clipped = 1.0  # the factor that clipping divided the last gradient by
        self.threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    def draw(self, fleets: Sequence[SolvedFleet]) -> list[list[SolvedFleet]]:
        """Draw `AT_ONCE` batches of fleets; the fleets of a batch have similar H."""
        picked = self.rng.integers(len(fleets), size=AT_ONCE * self.batch)
        drawn = sorted((fleets[int(i)] for i in picked), key=lambda fleet: len(fleet.labels))
        return [drawn[i : i + self.batch] for i in range(0, len(drawn), self.batch)]

    def update(self, fleets: Sequence[SolvedFleet]) -> float:
        """Take one step on these fleets.

        Returns:
            The mean over devices of the expected change of ln J when the device's edge is drawn anew.
        """
        orders = [self.rng.permutation(len(fleet.labels)) for fleet in fleets]
        rows, lengths = batch_of(fleets, self.network, orders)
        share = self.network(rows, lengths).softmax(dim=-1)
        # Draw by inversion with NumPy's generator, because torch's generator is global.
        level = share.detach().double().cumsum(-1)
        draws = torch.from_numpy(self.rng.random(level.shape[:2])) * level[..., -1]
        actions = (level <= draws[..., None]).sum(-1).numpy()

        def table(i: int) -> NDArray[np.float32]:
            order, count = orders[i], len(orders[i])
            assignment = np.empty(count, dtype=np.intp)
            assignment[order] = actions[i, :count]
            objective, objectives = transfer_objectives(fleets[i].problem, assignment)
            return np.log(objectives / objective)[order].astype(np.float32)

        cost = torch.zeros_like(share)
        for i, values in enumerate(self.threads.map(table, range(len(fleets)))):
            cost[i, : values.shape[0], : values.shape[1]] = torch.from_numpy(values)
        loss = (share * cost).sum() / lengths.sum()
        self.optimizer.zero_grad()
        # The factor changes the clipped norm but not Adam's step. With ten the gradient is about a cross-entropy's.
        (10.0 * loss).backward()
        norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), CLIP))
        self.clipped = max(1.0, norm / CLIP)
        self.optimizer.step()
        self.updates += 1
        return float(loss.detach())

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update depends on, as arrays and JSON values."""
        adam = self.optimizer.state_dict()["state"]
        return {
            "updates": self.updates,
            "rng": self.rng.bit_generator.state,
            **{f"network/{name}": value for name, value in self.weights().items()},
            **{f"adam/{i}/{k}": v.numpy().copy() for i, entry in adam.items() for k, v in entry.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`; the next update is then the same bit for bit."""
        self.updates = int(state["updates"])
        self.rng.bit_generator.state = state["rng"]
        self.load_weights(state, "network/")
        optimizer_state = self.optimizer.state_dict()
        optimizer_state["state"] = {}
        for key, value in state.items():
            if key.startswith("adam/"):
                _, i, k = key.split("/")
                optimizer_state["state"].setdefault(int(i), {})[k] = torch.from_numpy(value.copy())
        self.optimizer.load_state_dict(optimizer_state)

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the network's weights by name."""
        return {name: value.numpy().copy() for name, value in self.network.state_dict().items()}

    def load_weights(self, arrays: dict[str, Any], prefix: str = "") -> None:
        """Load the weights of `arrays`, whose names are the network's after `prefix`."""
        self.network.load_state_dict(
            {name: torch.from_numpy(arrays[prefix + name].copy()) for name in self.network.state_dict()}
        )
