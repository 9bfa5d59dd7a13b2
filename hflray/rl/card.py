"""The model card of a policy: its training data, training time, code version and measured quality; and its command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hflray.config import FleetConfig
from hflray.support.terminal.app import HELP, exit_code, single
from hflray.support.text import shorten

app = single()


def learner_settings(algorithm: dict[str, Any]) -> str:
    """Return the learner's settings that differ from their defaults, as text for the card."""
    parts = []
    if algorithm.get("td_loss", "huber") != "huber":
        parts.append(f"{algorithm['td_loss']} TD error")
    if algorithm.get("replay", "episodes") == "transitions":
        parts.append(f"O = {algorithm['train_batch']} single transitions out of {algorithm['buffer_capacity']:,}")
    every = algorithm.get("update_every")
    if every is not None:
        parts.append(f"an update every {every} steps" if every > 1 else "an update each step")
        parts.append(f"J = {algorithm['target_update_steps']}")
        parts.append("ε = {:g} to {:g}".format(*algorithm["epsilon"]))
    return "".join(f", {part}" for part in parts)


def _other_than_table_1(fleet: dict[str, Any]) -> str:
    """Return which settings of a policy's fleets are not those of Table I, as text for the card."""
    table_1 = FleetConfig().model_dump(mode="json")
    named_elsewhere = (
        "num_devices",
        "num_edges",
        "deployment_seed",
        "dense",
    )  # the card says them, or they change no fleet
    other = [f"`fleet.{key}: {shorten(value)}`" for key, value in sorted(fleet.items())
             if key not in named_elsewhere and value != table_1.get(key)]  # fmt: skip
    return f" but for {', '.join(other)}" if other else ""


def as_markdown(name: str, card: dict[str, Any], size_bytes: int) -> str:
    """Return the card as Markdown."""
    trained, results, algorithm = card["trained_on"], card["results"], card["algorithm"]
    spec = trained["specification"]
    teacher = f"{spec['teacher']} {spec['options'] or ''}".strip()

    def span(values: Any) -> str:
        low, high = values[0], values[-1]
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"

    sizes = ", ".join(f"{size:g}" for size in spec["model_kb"])

    def ratios_of(figures: dict[str, Any]) -> str:
        return ", ".join(f"{reference} {ratio:.3f}" for reference, ratio in figures["ratio"].items())

    def fleets_of(figures: dict[str, Any]) -> str:
        if "reporting_fleets" in figures:
            return f"{figures['reporting_fleets']} fleets that neither training nor any choice has seen"
        return f"{figures['held_out_fleets']} held-out fleets"

    seed = spec["fleet"].get("deployment_seed")
    deployment_text = (
        "" if seed is None else f", all with the edges of one deployment (`fleet.deployment_seed: {seed}`)"
    )
    not_for = "" if seed is None else "other deployments of the edges; "
    lines = [
        f"# {name}",
        "",
        "A policy of hflray's learned assigner (`assignment.name: d3qn`), which chooses an edge for each device.",
        "`python -m hflray.rl.card` writes this card from the header of the policy's file.",
        "",
        f"* **Network**: {algorithm['architecture']}, features `{algorithm['features']}`, BiLSTM of "
        f"{algorithm['hidden']} units; {size_bytes / 1e6:.2f} MB.",
        f"* **Trained** by RLlib's DQN (double Q: {algorithm['double_q']}, TD loss × {algorithm['td']:g}, "
        f"cross-entropy against the teacher × {algorithm['ce']:g}{learner_settings(algorithm)}), seed {card['seed']}, "
        f"{card['env_steps']:,} environment steps, {card['learn_s']:,.0f} s; commit `{card['git_commit']}`.",
        f"* **On** {trained['fleets']:,} random fleets: M = {span(trained['num_edges'])}, "
        f"H = {span(trained['num_scheduled'])}, λ = {span(spec['delay_weight'])} J/s, z of {sizes} KB, otherwise "
        f"Table I{_other_than_table_1(spec['fleet'])} (half of them λ = {spec['base_delay_weight']:g}, "
        f"z = {spec['base_model_kb']:g} KB){deployment_text}; "
        f"teacher: {teacher}.",
        f"* **After {'imitation' if algorithm['ce'] else 'training'}**, on {fleets_of(results)}: agreement "
        f"{results['agreement']:.1%}, objective against {ratios_of(results)} (of means).",
    ]
    for tuned in card.get("fine_tuned", []):
        before, after = tuned["before"], tuned["after"]
        # Versions that wrote no number of reporting fleets also chose the snapshot on these fleets.
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
        figures = card["reported"]
        lines += [
            f"* **As it is**, on {fleets_of(figures)}, measured at commit `{figures['git_commit']}`: agreement "
            f"{figures['agreement']:.1%}, return {figures['greedy_return']:.1f}, objective against "
            f"{ratios_of(figures)} (of means); against local search {figures['mean_ratio']:.4f} by the mean of ratios."
        ]
    lines += [
        "* **HFEL** starts from the geographic assignment in these figures. From its best-gain start HFEL-300 costs "
        "0.868 times as much by means and 0.921 times by medians (docs/results/measured.md, Figure 6, H = 50 and "
        "M = 5), so that the policy saves that much less.",
        f"* **Not for**: {not_for}other path-loss laws, far more edges or devices than above (it warns once); "
        "`tests/benchmarks/generalisation.py` measures the loss, and `assignment.polish_ms` recovers most of it.",
        "",
    ]
    return "\n".join(lines)


@app.command(context_settings=HELP)
def card(
    policy: Annotated[Path, typer.Argument(help="Policy file (safetensors).", metavar="POLICY")],
    measure_first: Annotated[
        bool, typer.Option("--measure", help="Measure the policy first, on fleets that it has never seen.")
    ] = False,
    fleets: Annotated[int, typer.Option(help="Number of fleets for --measure.")] = 100,
) -> None:
    """Write the card of a learned assigner beside its file, as POLICY.md."""
    from hflray.assignment.policy import load_policy
    from hflray.rl.evaluation import measure
    from hflray.support.files import write

    if measure_first:
        measure(policy, fleets)
    _, header = load_policy(policy)
    text = as_markdown(policy.stem, header, policy.stat().st_size)
    write(policy.with_suffix(".md"), text)


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m hflray.rl.card`` and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.rl.card")


if __name__ == "__main__":
    sys.exit(main())
