"""Plans replayed on the runs of a whole grid: ``python -m tests.tune.replay`` prints the table of docs/howto/plan.md.

The runs are those of ``tune_configs/plan_digits.yaml`` with the seeds 0, 1 and 2 (tests/data/results/plan_grid.zip). A
run is the same to the bit whoever starts it, so that a plan gets from the export what it would train: its own search
and its own halving decide what runs and when it is stopped, one run at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from hflray.report.exports import read_exhibit
from hflray.sweep import expand, load_sweep
from hflray.tracking import Journal
from hflray.tracking.sink import Ending, Round, Run
from hflray.tune.launch import NAME, TRIAL, VALUES
from hflray.tune.plan import Tried, plan_file, settings_of
from hflray.tune.search import RESULT, DrawnTrial, Halving, SettingSearch, drawn, figure

ROOT = Path(__file__).parents[2]
ACCURACY, SETTINGS, SEARCHES = 0.8, 24, 20
GOALS: dict[str, dict[str, float]] = {"": {}, "--joules 0.3": {"joules": 0.3}, "--seconds 4": {"seconds": 4.0}}


@cache
def grid() -> dict[str, tuple[dict[str, Any], list[dict[str, float]]]]:
    """Return the values and the rounds of each run of the grid by its values as text."""
    runs = {run.name: run for run in read_exhibit(ROOT / "tests/data/results/plan_grid").runs}
    result = {}
    for trial in expand(load_sweep(ROOT / "tune_configs/plan_digits.yaml", ["sweep.seed={grid: [0, 1, 2]}"])):
        run = runs[trial.name]
        rows = [{str(name): float(value) for name, value in row.items() if value == value}
                for row in run.rounds.to_dict("records")]  # fmt: skip
        rows[-1] |= run.history.values
        result[_key(trial.values)] = (trial.values, rows)
    return result


def _key(values: Mapping[str, Any]) -> str:
    return repr(sorted(values.items()))


def best_of_grid(limits: Mapping[str, float]) -> Tried:
    """Return the setting that meets the plan at the least cost, of all."""
    file = load_sweep(ROOT / "tune_configs/plan_digits.yaml")
    file = plan_file(file, [], ACCURACY, limits.get("seconds"), limits.get("joules"))[0]
    ended = Ending("FINISHED")
    trials = [DrawnTrial(n, "", values, [Round(k, 0, row) for k, row in enumerate(rows)], ended, None)
              for n, (values, rows) in enumerate(grid().values())]  # fmt: skip
    return settings_of(file, trials)[0]


def plan(limits: Mapping[str, float], seed: int) -> tuple[Tried, int]:
    """Return what a plan recommends, and the number of its runs.

    Args:
        limits: the most ``seconds`` and ``joules``.
        seed: `tune.seed`.
    """
    file = load_sweep(ROOT / "tune_configs/plan_digits.yaml", [f"tune.samples={SETTINGS}", f"tune.seed={seed}"])
    file = plan_file(file, [], ACCURACY, limits.get("seconds"), limits.get("joules"))[0]
    assert file.tune.search is not None
    with tempfile.TemporaryDirectory() as folder:
        journal, runs = Journal(Path(folder)), 0
        search, halving = SettingSearch(file, [], journal.write), Halving(file, 12, journal)
        while (asked := search.suggest(str(runs))) != Searcher.FINISHED:
            assert isinstance(asked, dict)
            trial, name = SimpleNamespace(config=asked), asked[TRIAL][NAME]
            halving.on_trial_add(None, trial)
            journal.begin(Run(name, name), 1)
            for number, row in enumerate(grid()[_key(asked[TRIAL][VALUES])][1], start=1):
                journal.write(name, {"round": number, "time": 1, "metrics": row})
                result = {"round": number} | {f"metrics/{metric}": value for metric, value in row.items()}
                if halving.on_trial_result(None, trial, result) == TrialScheduler.STOP or file.tune.bound(row):
                    break
            halving.on_trial_complete(None, trial, result)
            journal.end(name, Ending("FINISHED"))
            search.on_trial_complete(str(runs), {RESULT: figure(file.tune.search, row)})
            runs += 1
        return settings_of(file, drawn(journal, file))[0], runs


def table() -> str:
    """Return a line for each goal: how many searches were within 5 % of the grid's best, and how far the others."""
    lines = []
    for goal, limits in GOALS.items():
        best = best_of_grid(limits)
        plans = [plan(limits, seed) for seed in range(SEARCHES)]
        over = [chosen.cost / best.cost - 1 if chosen.meets else float("inf") for chosen, _ in plans]
        within = sum(excess <= 0.05 for excess in over)
        runs = fmean(count for _, count in plans)
        words = f"--accuracy {ACCURACY} {goal}".strip()
        cells = [f"`{words}`", best.label, f"{best.cost:.3g}", f"{within} of {SEARCHES}", f"{median(over):.1%}",
                 f"{max(over):.1%}", f"{runs:.0f} of {len(grid())}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
