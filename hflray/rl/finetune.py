"""Past the teacher: the policy goes on learning from the round's objective itself.

Imitation counts wrong edges, the objective counts what they cost: agreement with the teacher falls here while the
objective falls below it. The gradient is `hflray.rl.gradient`'s.

    python -m hflray.rl.finetune --policy learned.safetensors --out tuned.safetensors --minutes 10 [--set …] [--resume]

No teacher is needed, so fleets are cheap; local search's answers on others are what it is compared with. The best
snapshot is chosen on held-out fleets, and what the model card says is measured on a third set, which chose nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hflray import checkpoint
from hflray.assignment.network import QNetwork, build_network
from hflray.assignment.policy import load_policy, save_policy
from hflray.config import load_config
from hflray.errors import ConfigError, HflrayError
from hflray.provenance import git_commit
from hflray.rl.fleets import FleetSpec, SolvedFleet, held_out, objective_of, reporting
from hflray.rl.gradient import AT_ONCE, CostGradient, batch_of
from hflray.rl.pool import prepare


def greedy(network: QNetwork, fleet: SolvedFleet) -> NDArray[np.intp]:
    """The policy's assignment of a fleet, (H,)."""
    rows, lengths = batch_of([fleet], network, [np.arange(len(fleet.labels))])
    with torch.inference_mode():
        return np.asarray(network(rows, lengths)[0].argmax(-1).numpy(), dtype=np.intp)


def evaluate(network: QNetwork, fleets: Sequence[SolvedFleet]) -> dict[str, float]:
    """Greedy objective against the teacher's: ratio of means, mean and median of ratios; and agreement."""
    answers = [greedy(network, fleet) for fleet in fleets]
    ours = np.array([objective_of(f.problem, a) for f, a in zip(fleets, answers, strict=True)])
    theirs = np.array([fleet.objective for fleet in fleets])
    agreement = [float((a == f.labels).mean()) for f, a in zip(fleets, answers, strict=True)]
    return {
        "ratio_of_means": float(ours.mean() / theirs.mean()),
        "mean_ratio": float((ours / theirs).mean()),
        "median_ratio": float(np.median(ours / theirs)),
        "agreement": float(np.mean(agreement)),
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
    final_learning_rate: float = 3e-5,
    temperature: float = 1.0,
    batch: int = 16,
    seed: int = 0,
    folder: Path | None = None,
    resume: bool = False,
    report: Callable[[int, float, dict[str, float]], None] | None = None,
    evaluate_every_s: float = 60.0,
) -> dict[str, Any]:
    """Train `network` in place on the objective of `fleets`; it ends as the best of its evaluations on `choosing`.

    Args:
        network: a trained policy's.
        fleets: solved fleets to train on; nobody looks at their labels.
        choosing: solved fleets on which the best snapshot is chosen.
        unseen: solved fleets that are looked at before and after only, for the figures that are returned.
        updates, minutes: when to stop, whichever comes first; at least one is needed.
        learning_rate, final_learning_rate: of Adam, falling linearly over whichever limit is nearer.
        temperature, batch, seed: see `CostGradient`.
        folder: where the state is kept after each evaluation; None: nowhere.
        resume: go on from the state in `folder`, bit for bit if `minutes` is not used.
        report: called with updates, seconds and the figures of each evaluation on `choosing`.
        evaluate_every_s: seconds between evaluations when there is a time limit; 10 evaluations without.

    Returns:
        What the model card should say: updates, seconds, and the figures before and after, on `unseen`.

    Raises:
        ConfigError: no limit given, no state to resume, or one of a version that kept no figures on `unseen`.
    """
    if updates is None and minutes is None:
        raise ConfigError("finetune: neither updates nor minutes is given; one is needed")
    learner = CostGradient(network, learning_rate=learning_rate, temperature=temperature, batch=batch, seed=seed)
    spent, before = 0.0, {}
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
        spent, before, best = state["spent"], state["unseen_before"], state["best"]
        best_weights = {key.removeprefix("best/"): value for key, value in state.items() if key.startswith("best/")}
    else:
        before, best = evaluate(network, unseen), evaluate(network, choosing)
        best_weights = learner.weights()
    limit_s = np.inf if minutes is None else 60.0 * minutes
    every = max(1, (updates or 0) // 10)
    began, evaluated = time.monotonic() - spent, time.monotonic()
    done, saved = False, learner.updates
    while not done:
        for some in learner.draw(fleets):
            part = max((time.monotonic() - began) / limit_s, learner.updates / updates if updates else 0.0)
            for group in learner.optimizer.param_groups:
                group["lr"] = learning_rate + min(part, 1.0) * (final_learning_rate - learning_rate)
            learner.update(some)
            done = part >= 1.0 or learner.updates == updates
            due = learner.updates % every == 0 if minutes is None else time.monotonic() - evaluated > evaluate_every_s
            if done or due:
                figures, spent = evaluate(network, choosing), time.monotonic() - began
                if figures["mean_ratio"] < best["mean_ratio"]:
                    best, best_weights = figures, learner.weights()
                if report:
                    report(learner.updates, spent, figures)
                evaluated = time.monotonic()
            if done:
                break
        # Between draws only: the state then says all of what comes next.
        if state_path and (done or learner.updates - saved >= AT_ONCE * 25):
            kept = {f"best/{name}": value for name, value in best_weights.items()}
            spent, saved = time.monotonic() - began, learner.updates
            figures_so_far = {"spent": spent, "unseen_before": before, "best": best}
            checkpoint.save(state_path, learner.state_dict() | kept | figures_so_far)
    learner.load_weights(best_weights)
    network.eval()
    return {
        "updates": learner.updates,
        "seconds": round(spent),
        "batch": batch,
        "seed": seed,
        "temperature": temperature,
        "learning_rate": [learning_rate, final_learning_rate],
        "before": before,
        "after": evaluate(network, unseen),
        "fleets_reported_on": len(unseen),
    }


def main(arguments: list[str] | None = None) -> int:
    """``python -m hflray.rl.finetune``."""
    parser = argparse.ArgumentParser(prog="python -m hflray.rl.finetune", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", type=Path, required=True, help="policy to start from (safetensors)")
    parser.add_argument("--out", type=Path, required=True, help="policy to write")
    parser.add_argument("--config", type=Path, help="configuration or sweep file; its `learning` says which fleets")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    parser.add_argument("--also", action="append", default=[], metavar="KEY=VALUE …", help="as many fleets of these")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after so long (default 10)")
    parser.add_argument("--updates", type=int, help="stop after so many updates (reproducible)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--batch", type=int, default=16, help="fleets of an update (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on from OUT's state folder")
    given = parser.parse_args(arguments)
    try:
        config = load_config(given.config, given.set)
        loaded, card = load_policy(given.policy)
        network = build_network(loaded.spec)
        network.load_state_dict(loaded.state_dict())
        learning = config.learning
        specs = [FleetSpec.of(config)] + [
            FleetSpec.of(load_config(given.config, given.set + a.split())) for a in given.also
        ]
        specs = [replace(spec, teacher="best_gain", options={}) for spec in specs]  # labels are not looked at
        fleets = [fleet for spec in specs for fleet in prepare(spec, learning.fleets // len(specs)).fleets]
        compared = replace(specs[0], teacher="local_search")
        choosing, unseen = (
            prepare(kind(compared), learning.evaluation_fleets).fleets for kind in (held_out, reporting)
        )
        torch.set_num_threads(1)

        def report(updates: int, seconds: float, figures: dict[str, float]) -> None:
            said = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
            print(f"{seconds:6.0f} s  {updates:6d} updates  {said}", flush=True)

        summary = finetune(
            network, fleets, choosing, unseen, updates=given.updates,
            minutes=None if given.updates else given.minutes, learning_rate=given.learning_rate, batch=given.batch,
            seed=given.seed, folder=given.out.with_suffix(".state"), resume=given.resume, report=report,
        )  # fmt: skip
        tuned = summary | {"fleets": [s.to_dict() for s in specs], "count": len(fleets), "git_commit": git_commit()}
        save_policy(given.out, network, card | {"fine_tuned": [*card.get("fine_tuned", []), tuned]})
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{given.out}: objective against the teacher's {summary['before']['mean_ratio']:.4f} before, "
          f"{summary['after']['mean_ratio']:.4f} after {summary['updates']} updates")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
