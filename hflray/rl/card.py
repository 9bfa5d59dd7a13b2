"""The model card of a policy: what it was trained on, how long, by which code, and how good it is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hflray.assignment.policy import load_policy, save_policy
from hflray.config import ExperimentConfig
from hflray.errors import HflrayError
from hflray.provenance import git_commit, release
from hflray.rl.evaluation import Evaluation, Quality
from hflray.rl.fleets import FleetSpec, reporting
from hflray.rl.pool import FleetPool, prepare


def model_card(
    config: ExperimentConfig, pool: FleetPool, env_steps: int, learn_s: float, quality: Quality
) -> dict[str, Any]:
    """Everything JSON-ready; ``trained_on`` has the ranges that `hflray.assignment.d3qn` warns by."""
    spec = pool.spec
    return {
        "trained_on": {
            "num_scheduled": list(spec.num_scheduled),
            "num_edges": list(spec.num_edges),
            "fleets": len(pool),
            "specification": spec.to_dict(),
            "solve_s": round(pool.solve_s, 1),
        },
        "algorithm": config.learning.model_dump(mode="json"),
        "seed": config.seed,
        "env_steps": env_steps,
        "learn_s": round(learn_s, 1),
        "results": results_of(quality),
        "git_commit": git_commit(),
        "release": release(),
    }


def results_of(quality: Quality) -> dict[str, Any]:
    """A policy's figures on fleets that have chosen nothing, JSON-ready."""
    return {
        "reporting_fleets": len(quality.objectives),
        "agreement": round(quality.agreement, 4),
        "greedy_return": round(quality.greedy_return, 2),
        "objective": round(quality.objective, 3),
        "ratio": {name: round(value, 4) for name, value in quality.ratio.items()},
    }


def measure(path: Path, count: int) -> None:
    """Measure a policy as it is on fleets of its specification that have chosen nothing, and write that in its card.

    Args:
        path: the policy's file, written anew.
        count: fleets.

    Raises:
        ConfigError: no policy there.
    """
    network, card = load_policy(path)
    spec = reporting(FleetSpec.from_dict(card["trained_on"]["specification"]))
    evaluation = Evaluation(prepare(spec, count), network.spec.features, network.spec.num_edges)
    quality = evaluation(network)
    mean_ratio = float((quality.objectives / evaluation.references["local_search"]).mean())
    reported = results_of(quality) | {"mean_ratio": round(mean_ratio, 4), "git_commit": git_commit()}
    save_policy(path, network, card | {"reported": reported})


def how(algorithm: dict[str, Any]) -> str:
    """What a learner did otherwise than by default, as the card says it."""
    said = []
    if algorithm.get("td_loss", "huber") != "huber":
        said.append(f"{algorithm['td_loss']} TD error")
    if algorithm.get("replay", "episodes") == "transitions":
        said.append(f"O = {algorithm['train_batch']} single transitions out of {algorithm['buffer_capacity']:,}")
    every = algorithm.get("update_every")
    if every is not None:
        said.append(f"an update every {every} steps" if every > 1 else "an update each step")
        said.append(f"J = {algorithm['target_update_steps']}")
        said.append("ε = {:g} to {:g}".format(*algorithm["epsilon"]))
    return "".join(f", {part}" for part in said)


def as_markdown(name: str, card: dict[str, Any], size_bytes: int) -> str:
    """The card for people to read."""
    trained, results, algorithm = card["trained_on"], card["results"], card["algorithm"]
    spec = trained["specification"]
    teacher = f"{spec['teacher']} {spec['options'] or ''}".strip()

    def ranged(values: Any) -> str:
        low, high = values[0], values[-1]
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"

    sizes = ", ".join(f"{size:g}" for size in spec["model_kb"])

    def against(figures: dict[str, Any]) -> str:
        return ", ".join(f"{who} {ratio:.3f}" for who, ratio in figures["ratio"].items())

    def fleets_of(figures: dict[str, Any]) -> str:
        if "reporting_fleets" in figures:
            return f"{figures['reporting_fleets']} fleets that neither training nor any choice has seen"
        return f"{figures['held_out_fleets']} held-out fleets"

    seed = spec["fleet"].get("deployment_seed")
    where = "" if seed is None else f", all with the edges of one deployment (`fleet.deployment_seed: {seed}`)"
    elsewhere = "" if seed is None else "other deployments of the edges; "
    lines = [
        f"# {name}",
        "",
        "A policy of hflray's learned assigner (`assignment.name: d3qn`): for each scheduled device, which edge.",
        "This card is written by `python -m hflray.rl.card`, from what the file itself says.",
        "",
        f"* **Network**: {algorithm['architecture']}, features `{algorithm['features']}`, BiLSTM of "
        f"{algorithm['hidden']} units; {size_bytes / 1e6:.2f} MB.",
        f"* **Trained** by RLlib's DQN (double Q: {algorithm['double_q']}, TD loss × {algorithm['td']:g}, "
        f"cross-entropy against the teacher × {algorithm['ce']:g}{how(algorithm)}), seed {card['seed']}, "
        f"{card['env_steps']:,} environment steps, {card['learn_s']:,.0f} s; commit `{card['git_commit']}`.",
        f"* **On** {trained['fleets']:,} random fleets: M = {ranged(trained['num_edges'])}, "
        f"H = {ranged(trained['num_scheduled'])}, λ = {ranged(spec['delay_weight'])} J/s, z of {sizes} KB, otherwise "
        f"Table I (half of them λ = {spec['base_delay_weight']:g}, z = {spec['base_model_kb']:g} KB){where}; "
        f"teacher: {teacher}.",
        f"* **After imitation**, on {fleets_of(results)}: agreement "
        f"{results['agreement']:.1%}, objective against {against(results)} (of means).",
    ]
    for tuned in card.get("fine_tuned", []):
        before, after = tuned["before"], tuned["after"]
        # Cards without the number are of a version that also chose the snapshot on these fleets.
        chose = "" if "fleets_reported_on" in tuned else " (which also chose the snapshot)"
        lines += [
            f"* **Then on the objective itself** (`hflray.rl.finetune`): {tuned['updates']:,} updates of "
            f"{tuned['batch']} fleets out of {tuned['count']:,}, {tuned['seconds']:,} s, seed {tuned['seed']}, commit "
            f"`{tuned['git_commit']}`. Against local search's objective on held-out fleets{chose}, by the mean of "
            f"ratios: {before['mean_ratio']:.4f} before, **{after['mean_ratio']:.4f}** after (of means "
            f"{after['ratio_of_means']:.4f}); agreement with it {before['agreement']:.1%} before, "
            f"{after['agreement']:.1%} after."
        ]
    if "reported" in card:
        now = card["reported"]
        lines += [
            f"* **As it is**, on {fleets_of(now)}, measured at commit `{now['git_commit']}`: agreement "
            f"{now['agreement']:.1%}, return {now['greedy_return']:.1f}, objective against {against(now)} (of means); "
            f"against local search {now['mean_ratio']:.4f} by the mean of ratios."
        ]
    lines += [
        f"* **Not for**: {elsewhere}other path-loss laws, far more edges or devices than above (it warns once); "
        "`tests/benchmarks/generalisation.py` measures how much is lost, `assignment.polish_ms` gets most of it back.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """``python -m hflray.rl.card POLICY [--measure]``: the card beside the file, as ``POLICY.md``."""
    parser = argparse.ArgumentParser(prog="python -m hflray.rl.card", description="Write a policy's card beside it.")
    parser.add_argument("policy", type=Path, help="policy file (safetensors)")
    parser.add_argument("--measure", action="store_true", help="measure it first, on fleets that have chosen nothing")
    parser.add_argument("--fleets", type=int, default=100, help="fleets that --measure takes (default 100)")
    given = parser.parse_args(arguments)
    try:
        if given.measure:
            measure(given.policy, given.fleets)
        _, card = load_policy(given.policy)
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = as_markdown(given.policy.stem, card, given.policy.stat().st_size)
    given.policy.with_suffix(".md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
