"""Fine-tuning of a trained policy on the round's objective itself, beyond what its teacher can show.

Imitation counts the devices at wrong edges, while the objective adds up what the wrong edges cost. During fine-tuning
agreement with the teacher falls, and the objective falls below the teacher's.

The Q-network is used as a stochastic policy, ``π(m | n) = softmax(Q_n)``, independently for each device. For a drawn
assignment, `transfer_objectives` computes the objective J with each device moved to each edge while all other devices
stay. The gradient

    ∇ E[ln J] = E[ Σ_n Σ_m ∇π(m | n) · ln J(Ψ with n at m) ]

therefore needs no baseline, and it avoids the variance of a reward that all devices share (Foerster et al.,
"Counterfactual Multi-Agent Policy Gradients", with the cost model in the critic's place). Because of the logarithm, a
fleet with one very expensive device has the same weight as any other fleet.

Training fleets are cheap, because they need no teacher. The best snapshot is chosen on held-out fleets, against local
search. The model card's figures are measured on a third set of fleets, which nothing was trained or chosen on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hflray.assignment.network import QNetwork, build_network, padded_batch
from hflray.assignment.policy import load_policy, save_policy
from hflray.assignment.search import transfer_objectives
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.rl.evaluation import judged
from hflray.rl.fleets import FleetSpec, SolvedFleet, held_out, reporting
from hflray.rl.portable import flatten, restore
from hflray.rl.solved_fleets import prepare
from hflray.support import checkpoint
from hflray.support.limits import available_cpus
from hflray.support.provenance import git_commit

FINAL_LEARNING_RATE, EVERY_S = 3e-5, 60.0  # at the end; seconds between evaluations where time is the limit
AT_ONCE = 4  # batches that are drawn together and sorted by H, so that little of a batch is padding
CLIP = 1.0  # largest norm of the gradient
Report = Callable[[int, float, dict[str, float]], None]


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
        self.threads = ThreadPoolExecutor(len(available_cpus()))

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
        """Return all that the next update depends on, for `hflray.rl.portable`."""
        rng = self.rng.bit_generator.state
        return {"updates": self.updates, "rng": rng, "network": self.weights(), "adam": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`; the next update is then the same bit for bit."""
        self.updates, self.rng.bit_generator.state = state["updates"], state["rng"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["adam"])

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the network's weights by name."""
        return {name: value.clone() for name, value in self.network.state_dict().items()}


def evaluate(network: QNetwork, fleets: Sequence[SolvedFleet]) -> dict[str, float]:
    """Compare the greedy policy with the teacher.

    Returns:
        The objective against the teacher's, as the ratio of means and the mean and median of the fleets' ratios, and
        the mean share of devices at the teacher's edge (``agreement``).
    """
    objectives, matches = judged(network, fleets)
    teachers = np.array([fleet.objective for fleet in fleets])
    return {
        "ratio_of_means": float(objectives.mean() / teachers.mean()),
        "mean_ratio": float((objectives / teachers).mean()),
        "median_ratio": float(np.median(objectives / teachers)),
        "agreement": float(np.mean([share.mean() for share in matches])),
    }


def finetune(
    network: QNetwork,
    fleets: Sequence[SolvedFleet],
    choosing: Sequence[SolvedFleet],
    unseen: Sequence[SolvedFleet],
    *,
    updates: int | None = None,
    minutes: float | None = None,
    learning_rate: float = 3e-4,
    batch: int = 16,
    seed: int = 0,
    folder: Path | None = None,
    resume: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Train `network` in place on the objective of `fleets`, and leave in it the best snapshot by `choosing`.

    Args:
        network: the network of a trained policy.
        fleets: solved fleets to train on; their labels are not used.
        choosing: solved fleets on which the best snapshot is chosen.
        unseen: solved fleets for the returned figures, evaluated only before and after training.
        updates, minutes: limits; training stops at whichever it reaches first, and at least one is needed.
        learning_rate: of Adam; it falls to 3e-5, linearly over whichever limit is nearer.
        batch, seed: see `CostGradient`.
        folder: folder of the saved state; None: the state is not saved.
        resume: continue from the state in `folder`, bit for bit if `minutes` is not used.
        report: called with updates, seconds and the figures of each evaluation on `choosing`, of which there is one
            each minute if `minutes` is set, and otherwise ten.

    Returns:
        The model card's entries: updates, seconds, settings, and the figures before and after on `unseen`.

    Raises:
        ConfigError: there is no limit, or no state to resume.
    """
    if updates is None and minutes is None:
        raise ConfigError("finetune: neither updates nor minutes is set; set at least one of them")
    learner = CostGradient(network, learning_rate=learning_rate, batch=batch, seed=seed)
    state_path = folder / "state" if folder else None
    if resume:
        if state_path is None or not state_path.exists():
            raise ConfigError(f"finetune: there is no state in {folder} to resume; leave --resume out")
        state = restore(checkpoint.load(state_path))
        learner.load_state_dict(state["learner"])
        spent_s, before, (best, best_weights) = state["spent"], state["before"], state["best"]
    else:
        spent_s, before, best = 0.0, evaluate(network, unseen), evaluate(network, choosing)
        best_weights = learner.weights()
    limit_s = np.inf if minutes is None else 60.0 * minutes
    every = max(1, (updates or 0) // 10)
    began, evaluated = time.monotonic() - spent_s, time.monotonic()
    done, saved = False, learner.updates
    while not done:
        for fleet_batch in learner.draw(fleets):
            progress = max((time.monotonic() - began) / limit_s, learner.updates / updates if updates else 0.0)
            for group in learner.optimizer.param_groups:
                group["lr"] = learning_rate + min(progress, 1.0) * (FINAL_LEARNING_RATE - learning_rate)
            learner.update(fleet_batch)
            done = progress >= 1.0 or learner.updates == updates
            is_due = learner.updates % every == 0 if minutes is None else time.monotonic() - evaluated > EVERY_S
            if done or is_due:
                figures, spent_s = evaluate(network, choosing), time.monotonic() - began
                if figures["mean_ratio"] < best["mean_ratio"]:
                    best, best_weights = figures, learner.weights()
                if report:
                    report(learner.updates, spent_s, figures)
                evaluated = time.monotonic()
            if done:
                break
        # Save between draws only: the state then determines all that follows.
        if state_path and (done or learner.updates - saved >= AT_ONCE * 25):
            spent_s, saved = time.monotonic() - began, learner.updates
            best_so_far = {"spent": spent_s, "before": before, "best": (best, best_weights)}
            checkpoint.save(state_path, flatten(best_so_far | {"learner": learner.state_dict()}))
    network.load_state_dict(best_weights)
    network.eval()
    return {
        "updates": learner.updates, "seconds": round(spent_s), "batch": batch, "seed": seed, "temperature": 1.0,
        "learning_rate": [learning_rate, FINAL_LEARNING_RATE], "before": before, "after": evaluate(network, unseen),
        "fleets_reported_on": len(unseen),
    }  # fmt: skip


def finetune_file(
    policy: Path, out: Path, config: Path | None, overrides: list[str], also: list[str], **options: Any
) -> dict[str, Any]:
    """Fine-tune the policy in a file, on the fleets of a configuration, and write the result with its card.

    Args:
        policy: the policy's file.
        out: the file to write; the state is saved beside it, in the folder ``OUT.state``.
        config: a configuration or sweep file; None: all defaults.
        overrides: settings of the fleets, as ``KEY=VALUE``.
        also: further settings; for each there are as many fleets with these settings too.
        options: those of `finetune`.

    Returns:
        What `finetune` returns.

    Raises:
        ConfigError: see `load_config`, `load_policy` and `finetune`.
    """
    configs = [load_config(config, overrides + settings.split()) for settings in ("", *also)]
    learning = configs[0].learning
    loaded, card = load_policy(policy)
    network = build_network(loaded.spec)
    network.load_state_dict(loaded.state_dict())
    # Training does not use the labels.
    specs = [replace(FleetSpec.of(variant), teacher="best_gain", options={}) for variant in configs]
    fleets = [fleet for spec in specs for fleet in prepare(spec, learning.fleets // len(specs)).fleets]
    compared = replace(specs[0], teacher="local_search")
    choosing, unseen = (prepare(kind(compared), learning.evaluation_fleets).fleets for kind in (held_out, reporting))
    torch.set_num_threads(1)
    summary = finetune(network, fleets, choosing, unseen, folder=out.with_suffix(".state"), **options)
    tuned = summary | {"fleets": [s.to_dict() for s in specs], "count": len(fleets), "git_commit": git_commit()}
    save_policy(out, network, card | {"fine_tuned": [*card.get("fine_tuned", []), tuned]})
    return summary
