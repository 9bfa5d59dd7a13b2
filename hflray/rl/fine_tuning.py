"""Fine-tuning of a trained policy on the round's objective itself, beyond what its teacher can show.

Imitation counts the devices at wrong edges, while the objective adds up what the wrong edges cost. During fine-tuning
agreement with the teacher falls, and the objective falls below the teacher's. `hflray.rl.gradient` computes the
gradient.

Training fleets are cheap, because they need no teacher. The best snapshot is chosen on held-out fleets, against local
search. The model card's figures are measured on a third set of fleets, which nothing was trained or chosen on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hflray.assignment.network import QNetwork, build_network
from hflray.assignment.policy import load_policy, save_policy
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.rl.fleets import FleetSpec, SolvedFleet, assignment_objective, held_out, reporting
from hflray.rl.gradient import AT_ONCE, CostGradient, batch_of
from hflray.rl.solved_fleets import prepare
from hflray.support import checkpoint
from hflray.support.provenance import git_commit

FINAL_LEARNING_RATE, EVERY_S = 3e-5, 60.0  # at the end; seconds between evaluations where time is the limit
Report = Callable[[int, float, dict[str, float]], None]


def greedy(network: QNetwork, fleet: SolvedFleet) -> NDArray[np.intp]:
    """Return the policy's assignment of a fleet, (H,)."""
    rows, lengths = batch_of([fleet], network, [np.arange(len(fleet.labels))])
    with torch.inference_mode():
        return np.asarray(network(rows, lengths)[0].argmax(-1).numpy(), dtype=np.intp)


def evaluate(network: QNetwork, fleets: Sequence[SolvedFleet]) -> dict[str, float]:
    """Compare the greedy policy with the teacher.

    Returns:
        The objective against the teacher's, as the ratio of means and the mean and median of the fleets' ratios, and
        the mean share of devices at the teacher's edge (``agreement``).
    """
    assignments = [greedy(network, fleet) for fleet in fleets]
    objectives = np.array(
        [assignment_objective(fleet.problem, edges) for fleet, edges in zip(fleets, assignments, strict=True)]
    )
    teacher_objectives = np.array([fleet.objective for fleet in fleets])
    agreement = [float((edges == fleet.labels).mean()) for fleet, edges in zip(fleets, assignments, strict=True)]
    return {
        "ratio_of_means": float(objectives.mean() / teacher_objectives.mean()),
        "mean_ratio": float((objectives / teacher_objectives).mean()),
        "median_ratio": float(np.median(objectives / teacher_objectives)),
        "agreement": float(np.mean(agreement)),
    }


@dataclass(frozen=True)
class Steps:
    """How the updates of a fine-tuning are made.

    Attributes:
        learning_rate: of Adam; it falls to 3e-5, linearly over whichever limit is nearer.
        batch, seed: see `CostGradient`.
    """

    learning_rate: float = 3e-4
    batch: int = 16
    seed: int = 0


def finetune(
    network: QNetwork,
    fleets: Sequence[SolvedFleet],
    choosing: Sequence[SolvedFleet],
    unseen: Sequence[SolvedFleet],
    *,
    updates: int | None = None,
    minutes: float | None = None,
    steps: Steps | None = None,
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
        steps: how the updates are made; None: the defaults of `Steps`.
        folder: folder of the saved state; None: the state is not saved.
        resume: continue from the state in `folder`, bit for bit if `minutes` is not used.
        report: called with updates, seconds and the figures of each evaluation on `choosing`, of which there is one
            each minute if `minutes` is set, and otherwise ten.

    Returns:
        The model card's entries: updates, seconds, settings, and the figures before and after on `unseen`.

    Raises:
        ConfigError: there is no limit, no state to resume, or the state is of a version without figures on `unseen`.
    """
    if updates is None and minutes is None:
        raise ConfigError("finetune: neither updates nor minutes is set; set at least one of them")
    steps = steps or Steps()
    first, final = steps.learning_rate, FINAL_LEARNING_RATE
    learner = CostGradient(network, learning_rate=first, batch=steps.batch, seed=steps.seed)
    spent_s, before = 0.0, {}
    state_path = folder / "state" if folder else None
    if resume:
        if state_path is None or not state_path.exists():
            raise ConfigError(f"finetune: there is no state in {folder} to resume; leave --resume out")
        state = checkpoint.load(state_path)
        if "unseen_before" not in state:
            raise ConfigError(
                f"finetune: the state in {folder} is of a version of hflray that chose and reported on the same "
                "fleets; leave --resume out to begin anew"
            )
        learner.load_state_dict(state)
        spent_s, before, best = state["spent"], state["unseen_before"], state["best"]
        best_weights = {key.removeprefix("best/"): value for key, value in state.items() if key.startswith("best/")}
    else:
        before, best = evaluate(network, unseen), evaluate(network, choosing)
        best_weights = learner.weights()
    limit_s = np.inf if minutes is None else 60.0 * minutes
    every = max(1, (updates or 0) // 10)
    began, evaluated = time.monotonic() - spent_s, time.monotonic()
    done, saved = False, learner.updates
    while not done:
        for fleet_batch in learner.draw(fleets):
            progress = max((time.monotonic() - began) / limit_s, learner.updates / updates if updates else 0.0)
            for group in learner.optimizer.param_groups:
                group["lr"] = first + min(progress, 1.0) * (final - first)
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
            best_arrays = {f"best/{name}": value for name, value in best_weights.items()}
            spent_s, saved = time.monotonic() - began, learner.updates
            figures_so_far = {"spent": spent_s, "unseen_before": before, "best": best}
            checkpoint.save(state_path, learner.state_dict() | best_arrays | figures_so_far)
    learner.load_weights(best_weights)
    network.eval()
    return {
        "updates": learner.updates,
        "seconds": round(spent_s),
        "batch": steps.batch,
        "seed": steps.seed,
        "temperature": 1.0,
        "learning_rate": [first, final],
        "before": before,
        "after": evaluate(network, unseen),
        "fleets_reported_on": len(unseen),
    }


def finetune_file(
    policy: Path,
    out: Path,
    config: Path | None,
    overrides: list[str],
    also: list[str],
    *,
    updates: int | None,
    minutes: float | None,
    steps: Steps,
    resume: bool,
    report: Report,
) -> dict[str, Any]:
    """Fine-tune the policy in a file, on the fleets of a configuration, and write the result with its card.

    Args:
        policy: the policy's file.
        out: the file to write; the state is saved beside it, in the folder ``OUT.state``.
        config: a configuration or sweep file; None: all defaults.
        overrides: settings of the fleets, as ``KEY=VALUE``.
        also: further settings; for each there are as many fleets with these settings too.
        updates, minutes, steps, resume, report: see `finetune`.

    Returns:
        What `finetune` returns.

    Raises:
        ConfigError: see `load_config`, `load_policy` and `finetune`.
    """
    loaded_config = load_config(config, overrides)
    loaded, card = load_policy(policy)
    network = build_network(loaded.spec)
    network.load_state_dict(loaded.state_dict())
    learning = loaded_config.learning
    specs = [FleetSpec.of(loaded_config)] + [
        FleetSpec.of(load_config(config, overrides + settings.split())) for settings in also
    ]
    specs = [replace(spec, teacher="best_gain", options={}) for spec in specs]  # training does not use the labels
    fleets = [fleet for spec in specs for fleet in prepare(spec, learning.fleets // len(specs)).fleets]
    compared = replace(specs[0], teacher="local_search")
    choosing, unseen = (prepare(kind(compared), learning.evaluation_fleets).fleets for kind in (held_out, reporting))
    torch.set_num_threads(1)
    summary = finetune(
        network, fleets, choosing, unseen, updates=updates, minutes=minutes, steps=steps,
        folder=out.with_suffix(".state"), resume=resume, report=report,
    )  # fmt: skip
    tuned = summary | {"fleets": [s.to_dict() for s in specs], "count": len(fleets), "git_commit": git_commit()}
    save_policy(out, network, card | {"fine_tuned": [*card.get("fine_tuned", []), tuned]})
    return summary
