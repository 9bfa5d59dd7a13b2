"""How often chance gives any claim of an exhibit a yes or a no, where no setting has an effect.

    python -m tests.reproduction.chance DRAWS [EXHIBIT]...

The runs of a seed have their level in common, as fleets and data are. Everything else of a curve is drawn alike for all
settings, so that each yes and each no is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.report.runs import RunRecord, SweepRecord
from hflray.reproduction.judge import verdicts
from hflray.reproduction.protocol import Exhibit, expanded, paper
from tests.report.fabricated import run, sweep

COSTS = (metrics.TOTAL_OBJECTIVE, metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J, metrics.TOTAL_MESSAGE_BITS)


def alike_runs(shown: Exhibit, settings: Sequence[Mapping[str, object]], rounds: int) -> SweepRecord:
    """Return runs of all planned seeds with these settings, whose curves are still to be drawn."""
    seeds = max([shown.plan.seeds or 1, *(claim.seeds or 1 for claim, _ in expanded(shown))])
    blank = {name: [1.0] * rounds for name in (metrics.ACCURACY, *COSTS)}
    return sweep(
        shown.config,
        [
            run(blank, f"seed={seed}", *(f"{key}={value}" for key, value in each.items()))
            for each in settings
            for seed in range(seeds)
        ],
    )


def draw(runs: Sequence[RunRecord], rounds: int, rng: np.random.Generator) -> None:
    """Give each run a curve of accuracies and its costs, all of one distribution."""
    steps = pd.RangeIndex(1, rounds + 1)
    rise = 0.88 - 0.75 * np.exp(-np.arange(1, rounds + 1) / 8)
    common = {one.seed: (rng.normal(0, 0.004), rng.normal(0, 0.5)) for one in runs}
    for one in runs:
        level, price = common[one.seed]
        noise = level + rng.normal(0, 0.003) + rng.normal(0, 0.003, rounds)
        spent = np.cumsum(np.exp(price + rng.normal(0, 0.2) + rng.normal(0, 0.3, rounds)))
        columns = {metrics.ACCURACY: rise + noise, "round": np.arange(1.0, rounds + 1)} | dict.fromkeys(COSTS, spent)
        one._series.update({name: pd.Series(values, steps) for name, values in columns.items()})


def wrong_answers(shown: Exhibit, settings: Sequence[Mapping[str, object]], draws: int, seed: int = 0) -> int:
    """Return in how many of the draws any claim gets an answer, though no settings have an effect."""
    rng, rounds = np.random.default_rng(seed), shown.plan.rounds
    made = alike_runs(shown, settings, max([rounds, *(claim.rounds or 0 for claim, _ in expanded(shown))]))
    wrong = 0
    for number in range(draws):
        draw(made.runs, int(made.runs[0].rounds["round"].max()), rng)
        answers = verdicts(shown, made)["answer"]
        assert "" not in set(answers)  # all planned runs are there
        wrong += any(answer.startswith("yes") or answer == "no" for answer in answers)
        if number % 100 == 99:
            print(f"{shown.config}: {wrong} of {number + 1}", file=sys.stderr)
    return wrong


def figure_3() -> tuple[Exhibit, list[dict[str, object]]]:
    names = [{"scheduling.name": name, "scheduling.num_scheduled": h, "data.name": "fashion_mnist"}
             for name in ("ikc", "vkc", "fedavg") for h in (10, 30, 50, 70)]  # fmt: skip
    return paper("zhang").exhibits["fig3"], names


def halves() -> tuple[Exhibit, list[dict[str, object]]]:
    """Return MTGC's quick form, whose claims have two comparisons each, on five seeds."""
    shown = paper("mtgc").exhibits["mtgc_quick"]
    rules = [("sgd", ""), ("mtgc", ""), ("mtgc", "devices"), ("mtgc", "edges")]
    alphas = [("0.1", "0.1"), ("0.1", "null"), ("null", "0.1")]
    return shown, [
        {
            "data.partition": "edge_dirichlet", "training.rule.name": rule,
            "data.partition_options": f"{{edge_alpha: {edge}, device_alpha: {device}}}",
        } | ({"training.rule.options": f"{{corrections: {half}}}"} if half else {})
        for edge, device in alphas for rule, half in rules
    ]  # fmt: skip


EXHIBITS = {"fig3": figure_3, "mtgc_quick": halves}


def main() -> None:
    """Print the rate of each exhibit."""
    for name in sys.argv[2:] or EXHIBITS:
        draws = int(sys.argv[1])
        print(f"{name}: {wrong_answers(*EXHIBITS[name](), draws, seed=1) / draws:.4f} of {draws:,} draws")


if __name__ == "__main__":
    main()
