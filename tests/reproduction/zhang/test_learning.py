"""hflray.reproduction.zhang.learning: Figure 5 is judged for each reading of Algorithm 5, and on nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hflray import metrics
from hflray.report.labels import DEPLOYMENT
from hflray.report.readings import READINGS, Reading, draws, gain, improves, is_ceiling, last_tenth
from hflray.report.runs import Run, differing
from hflray.reproduction.zhang.learning import CLAIMS_BY_READING, PRINTED, unlike_the_paper
from hflray.sweep import expand, load_sweep
from hflray.tracking import History, Tables
from tests.conftest import says
from tests.report.fabricated import answers, judged, run

CONFIGS = Path(__file__).parents[3] / "tune_configs"
LITERAL = {
    **PRINTED, DEPLOYMENT: 0, "learning.features": "paper", "learning.teacher.start": "geographic",
    "learning.buffer_capacity": 1_000, "learning.replay": "transitions", "learning.train_batch": 128,
    "learning.hidden": 256,
}  # fmt: skip
EPISODES = {"learning__replay": "episodes", "learning__train_batch": 150}


def learning(
    end: float, steps: int = 300_000, seed: int = 0, late: float = 0.0, cost: float = 2.0, **changes: object
) -> Run:
    """Return a run whose return rises from -30 to `end` by the middle, and is `late` higher in the last tenth."""
    at = np.linspace(steps / 100, steps, 100).astype(int)
    curve = np.interp(at, [0, steps / 2], [-30, end]) + np.where(at > 0.9 * steps, late, 0)
    settings = LITERAL | {key.replace("__", "."): value for key, value in changes.items()}
    values = {metrics.ASSIGNER_RETURN: list(curve), metrics.assigner_ratio("hfel-300"): [cost] * 100}
    return run(values, f"seed={seed}", steps=list(at), settings=settings)


def answer(*runs: Run, exhibit: str = "fig5_transitions") -> str:
    return answers(exhibit, list(runs), "train_assigner")[0]


def test_only_a_curve_that_settles_around_17_agrees() -> None:
    assert answer(learning(17.0)) == "yes"
    assert answer(learning(27.0)) == "no"
    assert answer(learning(-30.0)) == "no"  # the curve does not rise


def test_a_policy_that_still_improves_is_not_tested() -> None:
    """A policy improves if its last quarter is more than 1 of 50 above the quarter before."""
    assert gain(learning(3.0)) == pytest.approx(0.0)
    assert gain(learning(3.0, late=2.4)) == pytest.approx(0.96)  # 10 of the last 25 points are 2.4 higher
    assert not improves(learning(3.0, late=2.4))
    assert improves(learning(3.0, late=2.6))
    assert answer(learning(3.0, late=2.4)) == "no"
    text = answer(learning(3.0, late=2.6))
    assert text.startswith("not tested: needs a policy that has stopped improving; after 300,000 environment steps")
    assert "1.0 above the quarter before, more than 1 (from" in text
    assert answer(learning(14.0, late=3.0)).startswith("not tested")  # the curve is at 17, but still rises
    assert answer(learning(15.5, late=1.9)) == "yes"  # it agrees before it has ended
    both = answer(learning(3.0, late=9.0), learning(3.0, seed=1, learning__epsilon=[0.0, 0.0]))
    assert both.startswith("not tested")  # the first choice might still come to agree


def test_a_policy_is_compared_with_hfel_300_unless_it_still_improves() -> None:
    def second(*runs: Run) -> str:
        return answers("fig5_transitions", list(runs), "train_assigner")[1]

    assert second(learning(17.0, cost=0.9)) == "yes"
    assert second(learning(3.0, cost=1.2)) == "no"
    assert second(learning(3.0, 30_000, cost=1.2)) == "so far no"
    assert second(learning(3.0, late=9.0, cost=1.2)).startswith("not tested: needs a policy that has stopped improving")
    assert second(learning(3.0, late=9.0, cost=0.9)) == "yes"


def test_the_answer_of_a_shorter_run_is_so_far() -> None:
    assert answer(learning(17.0, 30_000)) == "so far yes"
    assert answer(learning(3.0, 30_000)) == "so far no"
    assert answer(learning(17.0, 5_000)).startswith("not tested: needs 20,000 environment steps")


def test_the_answer_of_a_smaller_network_is_so_far_and_names_its_units() -> None:
    table = judged("fig5_transitions", [learning(3.0, learning__hidden=64)], "train_assigner")
    assert table["agree"][0] == "so far no"
    assert "minibatches of 128 single transitions, 64 of 256 units" in table["evidence"][0]


def test_of_networks_of_two_sizes_the_one_that_learned_longest_is_judged() -> None:
    small, whole = learning(3.0, 30_000, learning__hidden=64), learning(17.0)
    table = judged("fig5_transitions", [small, whole], "train_assigner")
    assert table["agree"][0] == "yes"
    assert says(table["evidence"][0], "seed 0, the first 300,000", "Not used", f"{small.full_name} (64 units, and")
    early = learning(17.0, 25_000)
    table = judged("fig5_transitions", [small, early], "train_assigner")
    assert says(table["evidence"][0], "64 of 256 units", "Not used: ")


def test_another_network_is_named_and_not_judged() -> None:
    other = learning(17.0, learning__features="db", learning__td_loss="huber")
    text = answer(other)
    assert text.startswith("not tested: needs 20,000 environment steps of Algorithm 5")
    assert "not the paper's: learning.features=db, learning.td_loss=huber" in text
    table = judged("fig5_transitions", [other, learning(5.0, seed=1)], "train_assigner")
    assert table["agree"][0] == "no"
    assert f"Not used: {other.name} (not the paper's: learning.features=db" in table["evidence"][0]
    assert "from" in table["ours"][0]
    assert "a minibatch of 200 (episodes)" in answer(learning(17.0, **{**EPISODES, "learning__train_batch": 200}))


def test_runs_without_a_fixed_deployment_are_not_the_papers() -> None:
    assert unlike_the_paper(learning(17.0)) == []
    assert unlike_the_paper(learning(17.0, **{DEPLOYMENT.replace(".", "__"): None})) == [f"{DEPLOYMENT}=null"]
    assert answer(learning(17.0, **{DEPLOYMENT.replace(".", "__"): None})).startswith("not tested")


def test_curves_are_compared_up_to_their_last_common_step() -> None:
    """The second curve falls only after the first has ended, so that the fall does not count."""
    first = learning(17.0, 30_000, learning__epsilon=[0.0, 0.0])
    at = [600 * number for number in range(1, 101)]
    curve = [-30.0] * 10 + [17.0] * 40 + [-50.0] * 50
    second = run({metrics.ASSIGNER_RETURN: curve}, steps=at, settings=LITERAL | {"learning.epsilon": [1.0, 0.05]})
    table = judged("fig5_transitions", [first, second], "train_assigner")
    assert table["agree"][0] == "so far yes"
    assert "the first 30,000 of 300,000 environment steps" in table["evidence"][0]


def test_each_of_two_choices_that_the_paper_leaves_open_is_judged() -> None:
    good, bad = learning(17.0, learning__epsilon=[1.0, 0.05]), learning(3.0, learning__epsilon=[0.0, 0.0])
    table = judged("fig5_transitions", [good, bad], "train_assigner")
    assert table["agree"][0] == "yes with 1 of 2 choices that the paper leaves open"
    assert "ε from 1 to 0.05: from" in table["ours"][0]
    assert "ε from 0 to 0: from" in table["ours"][0]


def test_each_reading_has_its_own_verdicts() -> None:
    good = learning(17.0, **EPISODES, learning__features="paper_db", learning__teacher__start="best_gain")
    bad = learning(3.0, **EPISODES)
    table = judged("fig5", [good, bad], "train_assigner").set_index("the paper")["agree"]
    assert len(table) == len(CLAIMS_BY_READING) == 2 * len(READINGS) == 16
    settles = "the return of an episode rises and settles around 17 of 50"
    assert table[f"gains in dB, best gain start, buffer of 1,000: {settles}"] == "yes"
    assert table[f"linear gains, geographic start, buffer of 1,000: {settles}"] == "no"
    others = table[f"gains in dB, geographic start, buffer of 50,000: {settles}"]
    assert says(others, "not tested", "20,000 environment steps", "tune_configs/fig5_readings.yaml")


def test_a_reading_that_says_no_has_a_guess_that_other_runs_test() -> None:
    best = {"learning__features": "paper_db", "learning__teacher__start": "best_gain"}
    table = judged("fig5", [learning(3.0, **EPISODES, **best), learning(3.0, **EPISODES)], "train_assigner")
    guesses = table[table["agree"] == "no"].set_index("the paper")["if not, our guess why"]
    settles = "the return of an episode rises and settles around 17 of 50"
    assert "learns the buffer by heart" in guesses[f"gains in dB, best gain start, buffer of 1,000: {settles}"]
    assert "supervised ceiling" in guesses[f"linear gains, geographic start, buffer of 1,000: {settles}"]
    cheaper = "the policy's assignments cost less than HFEL-300's (Figure 6)"
    assert "costs eight times" in guesses[f"linear gains, geographic start, buffer of 1,000: {cheaper}"]


def test_the_shipped_file_is_the_papers_and_its_length_is_no_choice() -> None:
    for overrides in ([], ["learning.env_steps=300000"]):
        runs = runs_of("fig5_literal", *overrides)
        assert [unlike_the_paper(one) for one in runs] == [[]] * len(runs)
        assert differing(runs) == ["learning.epsilon"]
    other = runs[0].config.model_copy(
        update={"learning": runs[0].config.learning.model_copy(update={"env_steps": 30_000})}
    )
    assert differing([runs[0], Run(runs[0].history, other)]) == []


def test_the_shipped_readings_are_all_readings_and_each_has_its_ceiling() -> None:
    runs = runs_of("fig5_readings")
    assert [unlike_the_paper(one) for one in runs] == [[]] * 8
    assert sorted(map(Reading.of, runs)) == sorted(READINGS)
    ceilings = runs_of("fig5_ceilings")
    assert {Reading.of(one)[:2] for one in ceilings} == {one[:2] for one in READINGS}
    assert [is_ceiling(one) for one in (*ceilings, *runs)] == [True] * 4 + [False] * 8
    assert all(unlike_the_paper(one) for one in ceilings)
    assert {one.settings["learning.hidden"] for one in (*runs, *ceilings)} == {64}
    assert [draws(one) for one in (*ceilings, *runs)] == [1] * 4 + [150] * 8


def test_fewer_draws_are_a_shipped_reading_by_updates() -> None:
    """Each interval in steps is 50 times as long, the network has the paper's units, and nothing else differs."""
    scaled = {f"learning.{name}" for name in ("env_steps", "update_every", "target_update_steps", "epsilon_steps",
                                              "evaluate_every")}  # fmt: skip
    shipped = {Reading.of(one): one.settings for one in runs_of("fig5_readings", "learning.hidden=256")}
    fewer = runs_of("fig5_fewer_draws")
    assert [draws(one) for one in fewer] == [3, 3]
    for one in fewer:
        like = shipped[Reading.of(one)]
        assert one.settings == like | {key: 50 * like[key] for key in scaled}


def test_the_last_tenth_of_the_steps() -> None:
    assert last_tenth(learning(3.0, late=2.0), metrics.ASSIGNER_RETURN) == [5.0] * 10


def runs_of(file: str, *overrides: str) -> list[Run]:
    """Return the trials of a shipped file as runs without results."""
    trials = expand(load_sweep(CONFIGS / f"{file}.yaml", list(overrides)))
    return [Run(History(t.name, "RUNNING", None, "", {}, {}, Tables(pd.DataFrame()), 0, 0), t.config) for t in trials]
