"""hflray.report.claims.learning: Figure 5 is judged only on Algorithm 5 as printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.report.claims.learning import LITERAL, unlike_the_paper
from hflray.report.labels import DEPLOYMENT
from hflray.report.runs import Run, differing
from hflray.sweep import expand, load_sweep
from hflray.tracking import History, Tables
from tests.report.fabricated import answers, judged, run

PRINTED = {**LITERAL, DEPLOYMENT: 0}


def learning(end: float, steps: int = 300_000, seed: int = 0, late: float = 0.0, **changes: object) -> Run:
    """Return a run whose return rises from -30 to `end` by the middle, and is `late` higher in the last tenth."""
    at = np.linspace(steps / 100, steps, 100).astype(int)
    curve = np.interp(at, [0, steps / 2], [-30, end]) + np.where(at > 0.9 * steps, late, 0)
    settings = PRINTED | {key.replace("__", "."): value for key, value in changes.items()}
    return run({metrics.ASSIGNER_RETURN: list(curve)}, f"seed={seed}", steps=list(at), settings=settings)


def answer(*runs: Run) -> str:
    return answers("fig5", list(runs), "train_assigner")[0]


def test_only_a_curve_that_settles_around_17_agrees() -> None:
    assert answer(learning(17.0)) == "yes"
    assert answer(learning(27.0)) == "no"
    assert answer(learning(-30.0)) == "no"  # the curve does not rise
    assert answer(learning(14.0, late=3.0)) == "no"  # the curve is at 17, but still rises


def test_the_answer_of_a_shorter_run_is_so_far() -> None:
    assert answer(learning(17.0, 30_000)) == "so far yes"
    assert answer(learning(3.0, 30_000)) == "so far no"
    assert answer(learning(17.0, 5_000)).startswith("not tested: needs 20,000 environment steps")


def test_another_network_is_named_and_not_judged() -> None:
    other = learning(17.0, learning__features="db", learning__td_loss="huber")
    text = answer(other)
    assert text.startswith("not tested: needs 20,000 environment steps of Algorithm 5 as printed")
    assert "not the paper's: learning.features=db, learning.td_loss=huber" in text
    table = judged("fig5", [other, learning(5.0, seed=1)], "train_assigner")
    assert table["agree"][0] == "no"
    assert f"Not used: {other.name} (not the paper's: learning.features=db" in table["evidence"][0]
    assert "from" in table["ours"][0]


def test_runs_without_a_fixed_deployment_are_not_the_papers() -> None:
    assert unlike_the_paper(learning(17.0)) == []
    assert unlike_the_paper(learning(17.0, **{DEPLOYMENT.replace(".", "__"): None})) == [f"{DEPLOYMENT}=null"]
    assert answer(learning(17.0, **{DEPLOYMENT.replace(".", "__"): None})).startswith("not tested")


def test_curves_are_compared_up_to_their_last_common_step() -> None:
    """The second curve falls only after the first has ended, so that the fall does not count."""
    first = learning(17.0, 30_000, learning__epsilon=[0.0, 0.0])
    at = [600 * number for number in range(1, 101)]
    curve = [-30.0] * 10 + [17.0] * 40 + [-50.0] * 50
    second = run({metrics.ASSIGNER_RETURN: curve}, steps=at, settings=PRINTED | {"learning.epsilon": [1.0, 0.05]})
    table = judged("fig5", [first, second], "train_assigner")
    assert table["agree"][0] == "so far yes"
    assert "the first 30,000 of 300,000 environment steps" in table["evidence"][0]


def test_each_of_two_choices_that_the_paper_leaves_open_is_judged() -> None:
    good, bad = learning(17.0, learning__epsilon=[1.0, 0.05]), learning(3.0, learning__epsilon=[0.0, 0.0])
    table = judged("fig5", [good, bad], "train_assigner")
    assert table["agree"][0] == "yes with 1 of 2 choices that the paper leaves open"
    assert "ε from 1 to 0.05: from" in table["ours"][0]
    assert "ε from 0 to 0: from" in table["ours"][0]


def test_the_shipped_file_is_the_papers_and_its_length_is_no_choice() -> None:
    file = Path(__file__).parents[3] / "tune_configs" / "fig5_literal.yaml"
    for overrides in ([], ["learning.env_steps=300000"]):
        trials = expand(load_sweep(file, overrides))
        runs = [
            Run(History(t.name, "RUNNING", None, "", {}, {}, Tables(pd.DataFrame()), 0, 0), t.config) for t in trials
        ]
        assert [unlike_the_paper(one) for one in runs] == [[]] * len(runs)
        assert differing(runs) == ["learning.epsilon"]
    other = runs[0].config.model_copy(
        update={"learning": runs[0].config.learning.model_copy(update={"env_steps": 30_000})}
    )
    assert differing([runs[0], Run(runs[0].history, other)]) == []
