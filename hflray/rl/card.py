"""The model card of a policy: what it was trained on, how long, by which code, and how good it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hflray.assignment.d3qn import load_policy
from hflray.config import ExperimentConfig
from hflray.errors import HflrayError
from hflray.rl.evaluation import Quality
from hflray.rl.pool import FleetPool
from hflray.training.release import git_commit, release


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
        "results": {
            "held_out_fleets": len(quality.objectives),
            "agreement": round(quality.agreement, 4),
            "greedy_return": round(quality.greedy_return, 2),
            "objective": round(quality.objective, 3),
            "ratio": {name: round(value, 4) for name, value in quality.ratio.items()},
        },
        "git_commit": git_commit(),
        "release": release(),
    }


def as_markdown(name: str, card: dict[str, Any], size_bytes: int) -> str:
    """The card for people to read."""
    trained, results, algorithm = card["trained_on"], card["results"], card["algorithm"]
    spec = trained["specification"]
    teacher = f"{spec['teacher']} {spec['options'] or ''}".strip()

    def ranged(values: Any) -> str:
        low, high = values[0], values[-1]
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"

    sizes = ", ".join(f"{size:g}" for size in spec["model_kb"])
    ratios = ", ".join(f"{who} {ratio:.3f}" for who, ratio in results["ratio"].items())
    lines = [
        f"# {name}",
        "",
        "A policy of hflray's learned assigner (`assignment.name: d3qn`): for each scheduled device, which edge.",
        "This card is written by `python -m hflray.rl.card`, from what the file itself says.",
        "",
        f"* **Network**: {algorithm['architecture']}, features `{algorithm['features']}`, BiLSTM of "
        f"{algorithm['hidden']} units; {size_bytes / 1e6:.2f} MB.",
        f"* **Trained** by RLlib's DQN (double Q: {algorithm['double_q']}, TD loss × {algorithm['td']:g}, "
        f"cross-entropy against the teacher × {algorithm['ce']:g}), seed {card['seed']}, "
        f"{card['env_steps']:,} environment steps, {card['learn_s']:,.0f} s; commit `{card['git_commit']}`.",
        f"* **On** {trained['fleets']:,} random fleets: M = {ranged(trained['num_edges'])}, "
        f"H = {ranged(trained['num_scheduled'])}, λ = {ranged(spec['delay_weight'])} J/s, z of {sizes} KB, otherwise "
        f"Table I (half of them λ = {spec['base_delay_weight']:g}, z = {spec['base_model_kb']:g} KB); "
        f"teacher: {teacher}.",
        f"* **After imitation**, on {results['held_out_fleets']} held-out fleets: agreement "
        f"{results['agreement']:.1%}, objective against {ratios} (of means).",
    ]
    for tuned in card.get("fine_tuned", []):
        before, after = tuned["before"], tuned["after"]
        lines += [
            f"* **Then on the objective itself** (`hflray.rl.finetune`): {tuned['updates']:,} updates of "
            f"{tuned['batch']} fleets out of {tuned['count']:,}, {tuned['seconds']:,} s, seed {tuned['seed']}, commit "
            f"`{tuned['git_commit']}`. Against local search's objective on held-out fleets, by the mean of ratios: "
            f"{before['mean_ratio']:.4f} before, **{after['mean_ratio']:.4f}** after (of means "
            f"{after['ratio_of_means']:.4f}); agreement with it {before['agreement']:.1%} before, "
            f"{after['agreement']:.1%} after."
        ]
    lines += [
        "* **Not for**: other path-loss laws, far more edges or devices than above (it warns once); "
        "`tests/benchmarks/generalisation.py` measures how much is lost, `assignment.polish_ms` gets most of it back.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """``python -m hflray.rl.card POLICY``: the card beside the file, as ``POLICY.md``."""
    path = Path(sys.argv[1])
    try:
        _, card = load_policy(path)
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    path.with_suffix(".md").write_text(as_markdown(path.stem, card, path.stat().st_size), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
