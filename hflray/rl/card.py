"""The model card of a policy: its training data, training time, code version and measured quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hflray.assignment.policy import load_policy, save_policy
from hflray.config import FleetConfig, LearningConfig
from hflray.rl.evaluation import AssignerEvaluation
from hflray.rl.fleets import FleetSpec, reporting
from hflray.rl.solved_fleets import prepare
from hflray.support.files import write
from hflray.support.provenance import git_commit
from hflray.support.text import shorten

# Settings that the card says elsewhere, or that change no fleet.
NAMED_OF_FLEETS = ("num_devices", "num_edges", "deployment_seed", "dense")
# Those of the learner that it says elsewhere, or that are of the fleets and of when the training ended.
NAMED_OF_LEARNER = (
    "architecture", "features", "hidden", "double_q", "td", "ce", "teacher", "fleets", "cache", "num_scheduled",
    "num_edges", "delay_weight", "model_kb", "base_share", "minutes", "env_steps", "evaluate_every",
    "evaluation_fleets",
)  # fmt: skip


def write_card(path: Path) -> None:
    """Write the card of a policy beside its file. Raises ConfigError: `path` holds no policy."""
    _, header = load_policy(path)
    write(path.with_suffix(".md"), as_markdown(path.stem, header, path.stat().st_size))


def measure(path: Path, count: int) -> None:
    """Measure a policy on reporting fleets of its specification, and write the figures into its card.

    Neither training nor the choice of a snapshot used the reporting fleets.

    Args:
        path: the policy's file, which is rewritten.
        count: number of fleets.

    Raises:
        ConfigError: `path` holds no policy.
    """
    network, card = load_policy(path)
    spec = reporting(FleetSpec.from_dict(card["trained_on"]["specification"]))
    evaluation = AssignerEvaluation(prepare(spec, count))
    quality = evaluation(network)
    mean_ratio = float((quality.objectives / evaluation.references["local_search"]).mean())
    reported = quality.summary() | {"mean_ratio": round(mean_ratio, 4), "git_commit": git_commit()}
    save_policy(path, network, card | {"reported": reported})


def _departures(section: str, values: dict[str, Any], named: tuple[str, ...]) -> str:
    """Return the settings of a section that are neither at their defaults nor among those named elsewhere, as text."""
    default = {"fleet": FleetConfig, "learning": LearningConfig}[section]().model_dump(mode="json")
    return ", ".join(
        f"`{section}.{key}: {shorten(value)}`"
        for key, value in sorted(values.items())
        if key not in named and value != default.get(key)
    )


def _span(values: Any) -> str:
    low, high = values[0], values[-1]
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _ratios(figures: dict[str, Any]) -> str:
    return ", ".join(f"{reference} {ratio:.3f}" for reference, ratio in figures["ratio"].items())


def _measured_on(figures: dict[str, Any]) -> str:
    if "reporting_fleets" in figures:
        return f"{figures['reporting_fleets']} fleets that neither training nor any choice has seen"
    return f"{figures['held_out_fleets']} held-out fleets"


def as_markdown(name: str, card: dict[str, Any], size_bytes: int) -> str:
    """Return the card as Markdown."""
    trained, results, algorithm = card["trained_on"], card["results"], card["algorithm"]
    spec = trained["specification"]
    teacher = f"{spec['teacher']} {spec['options'] or ''}".strip()
    learner = _departures("learning", algorithm, NAMED_OF_LEARNER)
    other = _departures("fleet", spec["fleet"], NAMED_OF_FLEETS)
    seed = spec["fleet"].get("deployment_seed")
    deployment = "" if seed is None else f", all with the edges of one deployment (`fleet.deployment_seed: {seed}`)"
    lines = [
        f"# {name}",
        "",
        "A policy of hflray's learned assigner (`assignment.name: d3qn`), which chooses an edge for each device.",
        "`hflray card` writes this card from the header of the policy's file.",
        "",
        f"* **Network**: {algorithm['architecture']}, features `{algorithm['features']}`, BiLSTM of "
        f"{algorithm['hidden']} units; {size_bytes / 1e6:.2f} MB.",
        f"* **Trained** by RLlib's DQN (double Q: {algorithm['double_q']}, TD loss × {algorithm['td']:g}, "
        f"cross-entropy against the teacher × {algorithm['ce']:g}{learner and f', {learner}'}), seed {card['seed']}, "
        f"{card['env_steps']:,} environment steps, {card['learn_s']:,.0f} s; commit `{card['git_commit']}`.",
        f"* **On** {trained['fleets']:,} random fleets: M = {_span(trained['num_edges'])}, "
        f"H = {_span(trained['num_scheduled'])}, λ = {_span(spec['delay_weight'])} J/s, "
        f"z of {', '.join(f'{size:g}' for size in spec['model_kb'])} KB, otherwise "
        f"Table I{other and f' but for {other}'} (half of them λ = {spec['base_delay_weight']:g}, "
        f"z = {spec['base_model_kb']:g} KB){deployment}; teacher: {teacher}.",
        f"* **After {'imitation' if algorithm['ce'] else 'training'}**, on {_measured_on(results)}: agreement "
        f"{results['agreement']:.1%}, objective against {_ratios(results)} (of means).",
    ]
    for tuned in card.get("fine_tuned", []):
        before, after = tuned["before"], tuned["after"]
        # Versions that wrote no number of reporting fleets also chose the snapshot on these fleets.
        chose = "" if "fleets_reported_on" in tuned else " (which also chose the snapshot)"
        lines += [
            f"* **Then on the objective itself** (`hflray finetune`): {tuned['updates']:,} updates of "
            f"{tuned['batch']} fleets out of {tuned['count']:,}, {tuned['seconds']:,} s, seed {tuned['seed']}, commit "
            f"`{tuned['git_commit']}`. Against local search's objective on held-out fleets{chose}, by the mean of "
            f"ratios: {before['mean_ratio']:.4f} before, **{after['mean_ratio']:.4f}** after (of means "
            f"{after['ratio_of_means']:.4f}); agreement with it {before['agreement']:.1%} before, "
            f"{after['agreement']:.1%} after."
        ]
    if "reported" in card:
        figures = card["reported"]
        lines += [
            f"* **As it is**, on {_measured_on(figures)}, measured at commit `{figures['git_commit']}`: agreement "
            f"{figures['agreement']:.1%}, return {figures['greedy_return']:.1f}, objective against "
            f"{_ratios(figures)} (of means); against local search {figures['mean_ratio']:.4f} by the mean of ratios."
        ]
    lines += [
        "* **HFEL** starts from the geographic assignment in these figures. From its best-gain start HFEL-300 costs "
        "0.868 times as much by means and 0.921 times by medians (docs/results/measured.md, Figure 6, H = 50 and "
        "M = 5), so that the policy saves that much less.",
        f"* **Not for**: {'' if seed is None else 'other deployments of the edges; '}other path-loss laws, far more "
        "edges or devices than above (it warns once); `tests/benchmarks/generalisation.py` measures the loss, and "
        "`assignment.polish_ms` recovers most of it.",
        "",
    ]
    return "\n".join(lines)
