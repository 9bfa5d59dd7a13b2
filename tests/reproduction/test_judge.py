"""hflray.reproduction.judge: the answers to claims, against numbers that are computed by hand or by SciPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import f, t, ttest_rel

from hflray import metrics
from hflray.report.runs import RunRecord
from hflray.reproduction import judge, results_page
from hflray.reproduction.protocol import Exhibit, paper, read
from hflray.support.terminal.tables import TextTable
from tests.report.fabricated import CLEAN, run, sweep
from tests.reproduction import chance, page

HEAD = Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8")
MEAN = "endpoint: {by: mean}, scale: points"


def exhibit(tmp_path: Path, claims: str, plan: str = "{seeds: 5, rounds: 4}") -> Exhibit:
    """Return the exhibit of a file with these claims."""
    path = tmp_path / "claims.yaml"
    path.write_text(HEAD.replace("PLAN", plan).replace("CLAIMS", claims), encoding="utf-8")
    return read(path).exhibits["x"]


def curves(name: str, values: Sequence[float], *overrides: str, rounds: int = 4, **kinds: Any) -> list[RunRecord]:
    """Return a run for each seed whose accuracy is constant."""
    return [
        run({metrics.ACCURACY: [value] * rounds}, f"scheduling.name={name}", f"seed={seed}", *overrides, **kinds)
        for seed, value in enumerate(values)
    ]


def judged(shown: Exhibit, runs: Sequence[RunRecord]) -> TextTable:
    return judge.verdicts(shown, sweep("x", list(runs)))


def one(shown: Exhibit, runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return the only row."""
    (row,) = judged(shown, runs).records
    return row


IKC, VKC = [0.81, 0.84, 0.80, 0.85, 0.83], [0.80, 0.82, 0.79, 0.825, 0.82]
LEADS = f"[{{text: a, compare: [[IKC, VKC]], {MEAN}, margin: 0.5, reason: why}}]"


def test_the_p_value_is_that_of_students_paired_test(tmp_path) -> None:
    row = one(exhibit(tmp_path, LEADS), curves("ikc", IKC) + curves("vkc", VKC))
    expected = ttest_rel(IKC, VKC).pvalue  # two-sided, and one claim needs no adjustment
    assert float(row["p"]) == pytest.approx(expected, abs=5e-4)
    assert row["answer"] == "yes"
    assert row["n"] == "5 of 5 seeds"
    difference = 100 * (np.array(IKC) - VKC)
    half = t.ppf(0.975, 4) * difference.std(ddof=1) / 5**0.5
    mean = difference.mean()
    assert row["ours [95 %]"].startswith(f"{mean:+.2f} points [{mean - half:+.2f}, {mean + half:+.2f}]")


def test_a_claim_that_the_runs_contradict_is_no_and_shows_the_guess(tmp_path) -> None:
    claims = LEADS.replace("why}", "why, guess: noise}")
    row = one(exhibit(tmp_path, claims), curves("ikc", VKC) + curves("vkc", IKC))
    assert (row["answer"], row["notes"]) == ("no", "noise")


def test_a_difference_within_the_margin_is_yes_in_sign_and_never_no(tmp_path) -> None:
    values = [0.800, 0.802, 0.801, 0.803, 0.800]
    higher = [value + 0.0014 + 0.0001 * place for place, value in enumerate(values)]
    row = one(exhibit(tmp_path, LEADS), curves("ikc", higher) + curves("vkc", values))
    assert (row["answer"], row["notes"]) == ("yes in sign, smaller than 0.5 points", "why")
    noisy = [value + change for value, change in zip(values, (0.001, -0.001, 0.0005, -0.0005, 0), strict=True)]
    row = one(exhibit(tmp_path, LEADS), curves("ikc", noisy) + curves("vkc", values))
    assert row["answer"] == "not settled"


def test_there_is_no_answer_before_the_planned_seeds_and_rounds(tmp_path) -> None:
    shown = exhibit(tmp_path, LEADS)
    row = one(shown, curves("ikc", IKC) + curves("vkc", VKC[:4]))
    assert (row["answer"], row["n"], row["p"]) == ("", "4 of 5 seeds", "")
    assert "[" in row["ours [95 %]"]
    row = one(shown, curves("ikc", IKC, rounds=3) + curves("vkc", VKC))
    assert (row["answer"], row["n"]) == ("", "5 of 5 seeds, 3 of 4 rounds")
    row = one(shown, curves("ikc", IKC[:1]) + curves("vkc", VKC))
    assert (row["answer"], row["n"]) == ("", "1 of 5 seeds")
    assert "[" not in row["ours [95 %]"]
    assert one(shown, curves("ikc", IKC))["n"] == "0 of 5 seeds"


def test_more_seeds_and_rounds_than_planned_are_not_looked_at(tmp_path) -> None:
    shown = exhibit(tmp_path, LEADS)
    first = one(shown, curves("ikc", IKC) + curves("vkc", VKC))
    more = one(shown, curves("ikc", [*IKC, 0.1, 0.1]) + curves("vkc", [*VKC, 0.9, 0.9]))
    longer = [run({metrics.ACCURACY: [value] * 4 + [0.1]}, "scheduling.name=ikc", f"seed={seed}")
              for seed, value in enumerate(IKC)]  # fmt: skip
    assert first == more
    assert first == one(shown, longer + curves("vkc", VKC))


def test_seconds_are_compared_as_ratios_on_logarithms(tmp_path) -> None:
    endpoint = "endpoint: {metric: total/delay_s, by: last, over: 1}, scale: log"
    claims = f"[{{text: a, compare: [[IKC, VKC]], {endpoint}, expect: less}}]"
    shown = exhibit(tmp_path, claims, "{seeds: 4, rounds: 1}")
    own, other = [1.0, 20.0, 300.0, 4000.0], [2.0, 50.0, 600.0, 9000.0]
    runs = [run({metrics.TOTAL_DELAY_S: [value]}, f"scheduling.name={name}", f"seed={seed}")
            for name, values in (("ikc", own), ("vkc", other)) for seed, value in enumerate(values)]  # fmt: skip
    row = one(shown, runs)
    assert row["p"] == "< 0.001"
    assert ttest_rel(np.log(own), np.log(other)).pvalue < 0.001 < ttest_rel(own, other).pvalue
    assert row["ours [95 %]"].startswith(f"{np.exp(np.log(np.array(own) / other).mean()):.3g} × [")
    assert row["answer"] == "yes"


def test_a_claim_of_several_comparisons_needs_all_for_a_yes_and_one_for_a_no(tmp_path) -> None:
    claims = LEADS.replace("[[IKC, VKC]]", "[[IKC, VKC], [IKC, FedAvg]]")
    shown = exhibit(tmp_path, claims)
    base = curves("ikc", IKC) + curves("vkc", VKC)
    assert one(shown, base + curves("fedavg", [value - 0.1 for value in VKC]))["answer"] == "yes"
    assert one(shown, base + curves("fedavg", [0.83, 0.80, 0.82, 0.84, 0.81]))["answer"] == "not settled"
    above = [value + 0.1 + 0.001 * place for place, value in enumerate(IKC)]
    row = one(shown, base + curves("fedavg", above))
    assert row["answer"] == "no"
    # Bonferroni's method for a no among two comparisons.
    assert "IKC and FedAvg" in row["ours [95 %]"]


def test_holms_method_counts_all_claims_of_the_exhibit(tmp_path) -> None:
    runs = curves("ikc", IKC) + curves("vkc", VKC)
    alone = float(one(exhibit(tmp_path, LEADS), runs)["p"])
    claim = LEADS[1:-1]
    other = claim.replace("VKC", "FedAvg")  # FedAvg has no run
    table = judged(exhibit(tmp_path, f"[{claim}, {other}, {other}]"), runs)
    assert float(table["p"][0]) == pytest.approx(3 * alone, abs=2e-3)
    assert list(table["answer"])[1:] == [""] * 2


def test_near_is_tested_against_both_ends_of_the_margin(tmp_path) -> None:
    claims = f"[{{text: a, compare: [[IKC, VKC]], {MEAN}, expect: near, margin: 1, reason: why}}]"
    shown = exhibit(tmp_path, claims)
    base = [0.80, 0.82, 0.81, 0.83, 0.80]
    close = [value + 0.0004 * (-1) ** place for place, value in enumerate(base)]
    assert one(shown, curves("ikc", close) + curves("vkc", base))["answer"] == "yes"
    far = [value + 0.03 + 0.001 * place for place, value in enumerate(base)]
    assert one(shown, curves("ikc", far) + curves("vkc", base))["answer"] == "no"
    wide = [value + 0.03 * (-1) ** place for place, value in enumerate(base)]
    assert one(shown, curves("ikc", wide) + curves("vkc", base))["answer"] == "not settled"


def test_a_number_stands_in_place_of_the_other_side(tmp_path) -> None:
    claims = '[{text: "{one} reaches 80", compare: [[IKC]], endpoint: {by: best}, scale: points, to: 80}]'
    shown = exhibit(tmp_path, claims)
    row = one(shown, curves("ikc", [0.81, 0.79, 0.80, 0.805, 0.795]))
    assert (row["the paper"], row["answer"]) == ("IKC reaches 80", "not settled")
    assert one(shown, curves("ikc", [value + 0.05 for value in IKC]))["answer"] == "yes"
    assert one(shown, curves("ikc", [value - 0.08 for value in IKC]))["answer"] == "no"


def test_every_unit_has_to_agree_where_arithmetic_says_so(tmp_path) -> None:
    claims = f"[{{text: a, compare: [[IKC, VKC]], {MEAN}, every: true}}]"
    shown = exhibit(tmp_path, claims)
    assert one(shown, curves("ikc", IKC) + curves("vkc", VKC))["answer"] == "yes"
    assert one(shown, curves("ikc", [*IKC[:4], 0.1]) + curves("vkc", VKC))["answer"] == "no"


def rising(name: str, seed: int, values: Sequence[float], *overrides: str, status: str = "FINISHED") -> RunRecord:
    seconds = [10.0 * number for number in range(1, len(values) + 1)]
    columns = {metrics.ACCURACY: values, metrics.TOTAL_DELAY_S: seconds}
    return run(columns, f"scheduling.name={name}", f"seed={seed}", *overrides, status=status)


UNTIL = "[{text: a, compare: [[IKC, VKC]], endpoint: {metric: METRIC, until: 0.8, over: 5}, scale: log, expect: less}]"


def test_a_target_is_passed_by_the_mean_of_five_rounds_and_the_mean_curve_is_shown(tmp_path) -> None:
    shown = exhibit(tmp_path, UNTIL.replace("METRIC", "round"), "{seeds: 2, rounds: 12}")
    # One value above the target in round 2 does not pass it; the mean of rounds 4 to 8 is 0.8.
    own = [0.1, 0.9, 0.1, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
    other = [0.1] * 6 + [0.8] * 6
    runs = [rising(name, seed, values) for seed in (0, 1) for name, values in (("ikc", own), ("vkc", other))]
    assert judge.passage(runs[0], 0.8, 5) == 8
    assert judge.passage(runs[1], 0.8, 5) == 11
    row = one(shown, runs)
    assert "(8 and 11), mean curve at round 2 and 7" in row["ours [95 %]"]


def test_a_run_that_misses_the_target_would_have_needed_more(tmp_path) -> None:
    shown = exhibit(tmp_path, UNTIL.replace("METRIC", "total/delay_s"), "{seeds: 3, rounds: 10}")
    reached = [0.9] * 10
    missed = [0.5] * 10
    runs = [rising("ikc", seed, reached) for seed in range(3)] + [rising("vkc", seed, missed) for seed in range(3)]
    # Seconds 50 against more than 100: the order is sure, and the bound counts.
    row = one(shown, runs)
    assert row["ours [95 %]"].startswith("0.5 ×")
    assert row["answer"] == "yes"
    turned = [rising("vkc", seed, reached) for seed in range(3)] + [rising("ikc", seed, missed) for seed in range(3)]
    assert one(shown, turned)["answer"] == "no"
    both = [rising(name, seed, missed) for name in ("ikc", "vkc") for seed in range(3)]
    row = one(shown, both)
    assert (row["ours [95 %]"], row["answer"]) == ("order open in 3 of 3", "not settled")


def test_a_target_that_is_passed_after_the_planned_rounds_is_missed(tmp_path) -> None:
    shown = exhibit(tmp_path, UNTIL.replace("METRIC", "total/delay_s"), "{seeds: 2, rounds: 10}")
    late = {"ikc": [0.1] * 10 + [0.9] * 10, "vkc": [0.1] * 14 + [0.9] * 6}
    runs = [rising(name, seed, values) for seed in (0, 1) for name, values in late.items()]
    row = one(shown, runs)
    assert (row["ours [95 %]"], row["answer"]) == ("order open in 2 of 2", "not settled")


@pytest.mark.parametrize(
    "asked, answer",
    [
        ("expect: near, margin: 1.25, reason: why", "not settled"),
        ("expect: less, to: 0.5", "not settled"),
        ("expect: less, to: 1.5", "yes"),
        ("expect: less", "yes"),
    ],
)
def test_a_bound_decides_only_what_lies_beyond_it(tmp_path, asked: str, answer: str) -> None:
    """A ratio of at most 0.85 may be near 1 or not, and above a half or not."""
    claims = UNTIL.replace("METRIC", "round").replace("expect: less", asked)
    shown = exhibit(tmp_path, claims, "{seeds: 3, rounds: 20}")
    own = [[0.1] * (12 - (seed == 1)) + [0.9] * (8 + (seed == 1)) for seed in range(3)]
    runs = [rising("ikc", seed, values) for seed, values in enumerate(own)]
    runs += [rising("vkc", seed, [0.1] * 20) for seed in range(3)]
    row = one(shown, runs)
    assert row["answer"] == answer
    assert ("a bound in 3 of 3" in row["ours [95 %]"]) == (answer == "yes")


def test_what_is_open_for_one_unit_is_open_for_every_unit(tmp_path) -> None:
    shown = exhibit(
        tmp_path, UNTIL.replace("METRIC", "round").replace("less", "less, every: true"), "{seeds: 2, rounds: 9}"
    )
    missed = [rising(name, seed, [0.5] * 9) for name in ("ikc", "vkc") for seed in (0, 1)]
    assert one(shown, missed)["answer"] == "not settled"


def test_the_best_loss_is_the_least(tmp_path) -> None:
    claims = "[{text: a, compare: [[IKC, VKC]], endpoint: {metric: test_loss, by: best, over: 1}, expect: less}]"
    shown = exhibit(tmp_path, claims, "{seeds: 3, rounds: 3}")
    losses = {"ikc": [2.0, 0.3, 0.2], "vkc": [1.5, 0.7, 0.6]}
    runs = [run({metrics.TEST_LOSS: [loss + seed / 100 for loss in values]}, f"scheduling.name={name}", f"seed={seed}")
            for name, values in losses.items() for seed in range(3)]  # fmt: skip
    row = one(shown, runs)
    assert row["ours [95 %]"].startswith("-0.40")
    assert row["answer"] == "yes"


def test_a_target_of_accuracy_is_judged_by_it_beside_a_metric_of_ones_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("def f1(outputs, targets): ...\n")
    columns = {metrics.ACCURACY: [0.9] * 3, "f1": [0.1, 0.1, 0.7]}
    assert judge.passage(run(columns, "target={metric: 'own.py:f1', value: 0.6}"), 0.5, 1) == 1


def test_the_units_whose_order_is_open_are_counted_and_not_their_runs(tmp_path) -> None:
    shown = exhibit(tmp_path, "[{text: a, compare: [[IKC, VKC]], endpoint: {until: 0.9}, scale: points}]")
    row = one(shown, curves("ikc", [0.5] * 4 + [0.95]) + curves("vkc", [0.5] * 5))
    assert row["ours [95 %]"].startswith("order open in 5 of 5")


@pytest.mark.parametrize("endpoint", ["{metric: r2, by: mean}", "{metric: r2, until: 0.5}", "{metric: r2, by: last}"])
@pytest.mark.parametrize("kind", ["every: false", "every: true"])
def test_runs_without_the_metric_do_not_count(tmp_path, endpoint: str, kind: str) -> None:
    shown = exhibit(tmp_path, f"[{{text: a, compare: [[IKC, VKC]], endpoint: {endpoint}, {kind}}}]", "{seeds: 5}")
    row = one(shown, curves("ikc", [0.6] * 5) + curves("vkc", [0.7] * 5))
    assert (row["n"], row["answer"], row["ours [95 %]"]) == ("0 of 5 seeds", "", "")


def test_a_metric_of_some_rounds_is_read_at_the_last_one_before_the_target(tmp_path) -> None:
    shown = exhibit(tmp_path, "[{text: a, compare: [[IKC]], to: 2, endpoint: {metric: clustering/ari, until: 0.5}}]")
    values = {metrics.ACCURACY: [0.6] * 4, metrics.CLUSTERING_ARI: [0.3, np.nan, np.nan, np.nan]}
    row = one(shown, [run(values, "scheduling.name=ikc", f"seed={seed}") for seed in range(5)])
    assert row["ours [95 %]"].startswith("0.30")


def test_a_run_that_stopped_before_it_passed_the_target_is_not_whole(tmp_path) -> None:
    shown = exhibit(tmp_path, UNTIL.replace("METRIC", "round"), "{seeds: 2, rounds: 10}")
    runs = [rising("ikc", seed, [0.7, 0.81]) for seed in (0, 1)] + [rising("vkc", seed, [0.5] * 10) for seed in (0, 1)]
    row = one(shown, runs)
    assert (row["answer"], row["n"]) == ("", "2 of 2 seeds, 2 of 10 rounds")
    # One that stopped after it passed it is.
    runs = [rising("ikc", seed, [0.81] * 5) for seed in (0, 1)] + [rising("vkc", seed, [0.5] * 10) for seed in (0, 1)]
    assert one(shown, runs)["answer"] == "yes"


WASTED = "[{text: a, compare: [[IKC, VKC]], endpoint: {metric: round/wasted_j, END}, scale: log, expect: less ALSO}]"


@pytest.mark.parametrize("also", ["", ", at: [H = 10, H = 30]", ", at: [H = 30, H = 10]", ", every: true"])
@pytest.mark.parametrize("end", ["by: last, over: 1", "until: 0.5"])
@pytest.mark.parametrize("odd", [0.0, -1.0])
def test_a_ratio_of_a_number_that_is_not_above_0_settles_nothing(tmp_path, also: str, end: str, odd: float) -> None:
    """Of five seeds one has no logarithm: its ratio is not known, in whichever place its comparison stands."""
    shown = exhibit(tmp_path, WASTED.replace("END", end).replace("ALSO", also), "{seeds: 5, rounds: 5}")
    places = [(name, h, seed) for name in ("ikc", "vkc") for h in (10, 30) for seed in range(5)]
    runs = []
    for name, h, seed in places if "at" in also else [place for place in places if place[1] == 30]:
        value = odd if (name, h, seed) == ("vkc", 30, 0) else {"ikc": 1.0, "vkc": 3.0}[name] + seed / 10
        columns = {metrics.ACCURACY: [0.4 if (name, seed) == ("vkc", 4) else 0.6] * 5}
        columns |= {metrics.ROUND_WASTED_J: [value] * 5}
        runs.append(run(columns, f"scheduling.name={name}", f"scheduling.num_scheduled={h}", f"seed={seed}"))
    row = one(shown, runs)
    assert row["answer"] == "not settled"
    assert "order open in 1 of 5" in row["ours [95 %]"]


def test_a_fleet_without_a_ratio_settles_nothing(tmp_path) -> None:
    claims = "[{text: a, compare: [[IKC, VKC]], endpoint: {metric: round/delay_s}, scale: log, expect: less}]"
    runs = [run({metrics.ROUND_DELAY_S: values}, f"scheduling.name={name}")
            for name, values in (("ikc", [1.0, 2.0, 3.0, 0.0]), ("vkc", [2.0, 4.5, 6.0, 0.0]))]  # fmt: skip
    row = one(exhibit(tmp_path, claims, "{fleets: 4}"), runs)
    assert (row["answer"], row["ours [95 %]"]) == ("not settled", "order open in 1 of 4")


def test_a_common_level_is_the_highest_that_all_compared_runs_pass(tmp_path) -> None:
    claims = UNTIL.replace("METRIC", "round").replace("over: 5", "over: 1, common: true")
    shown = exhibit(tmp_path, claims, "{seeds: 2, rounds: 4}")
    own, other = [0.5, 0.7, 0.75, 0.9], [0.4, 0.5, 0.6, 0.7]
    runs = [rising(name, seed, values) for seed in (0, 1) for name, values in (("ikc", own), ("vkc", other))]
    assert "(2 and 4)" in one(shown, runs)["ours [95 %]"]  # rounds to 0.7


def test_a_validation_part_passes_targets_and_chooses_the_best_round(tmp_path) -> None:
    columns = {metrics.ACCURACY: [0.9, 0.5, 0.6], metrics.on_validation(metrics.ACCURACY): [0.1, 0.8, 0.7]}
    runs = [run(columns, f"seed={seed}", "scheduling.name=ikc") for seed in (0, 1)]
    assert judge.passage(runs[0], 0.75, 1) == 2
    claims = "[{text: a, compare: [[IKC]], to: 55, endpoint: {by: best, over: 1}, scale: points, expect: less}]"
    row = one(exhibit(tmp_path, claims, "{seeds: 2, rounds: 3}"), runs)
    assert row["ours [95 %]"].startswith("50.00 points")


def test_a_change_is_a_difference_of_differences(tmp_path) -> None:
    claims = f'[{{text: "{{case}}", compare: [[IKC, VKC]], change: [[H = 30, H = 10]], {MEAN}, expect: less}}]'
    ten, thirty = "scheduling.num_scheduled=10", "scheduling.num_scheduled=30"
    wide, narrow = ([value + lead + 0.0001 * place for place, value in enumerate(VKC)] for lead in (0.02, 0.005))
    runs = [*curves("ikc", wide, ten), *curves("vkc", VKC, ten), *curves("ikc", narrow, thirty),
            *curves("vkc", [value + 0.0001 * (value > 0.8) for value in VKC], thirty)]  # fmt: skip
    row = one(exhibit(tmp_path, claims), runs)
    assert row["the paper"] == "H = 30 against H = 10"
    assert row["ours [95 %]"].startswith("-1.51 points")
    assert row["answer"] == "yes"


def test_runs_of_two_splits_are_judged_apart(tmp_path) -> None:
    shown = exhibit(tmp_path, LEADS, "{split: official, seeds: 5, rounds: 4}")
    official = {"settings": {"data.split": "official"}}
    former = curves("ikc", VKC) + curves("vkc", IKC)
    new = curves("ikc", IKC, **official) + curves("vkc", VKC, **official)
    table = judged(shown, [*former, *new])
    assert list(zip(table["split"], table["answer"], strict=True)) == [("official", "yes"), ("stratified", "no")]
    assert "split" not in judged(shown, new)
    assert list(judged(shown, former)["split"]) == ["stratified"]
    mixed = curves("ikc", IKC, **official) + curves("vkc", VKC)
    assert list(judged(shown, mixed)["n"]) == ["0 of 5 seeds"] * 2


def test_a_claim_on_two_splits_counts_once_by_the_planned_if_that_answers_it(tmp_path) -> None:
    """Of b, the planned split has no runs of FedAvg, and d has none at all."""
    more = [LEADS[1:-1].replace("text: a", f"text: {name}").replace("[IKC,", f"[{other},")
            for name, other in (("b", "FedAvg"), ("d", "H = 30"))]  # fmt: skip
    claims = f"{LEADS[:-1]}, {more[0]}, {{text: c, not_tested: too weak}}, {more[1]}]"
    path = tmp_path / "claims.yaml"
    text = HEAD.replace("PLAN", "{split: official, seeds: 5, rounds: 4}").replace("CLAIMS", claims)
    path.write_text(text.replace("plan:", "forms: [full], plan:"), encoding="utf-8")
    made = read(path)
    former = curves("ikc", VKC) + curves("vkc", IKC) + curves("fedavg", VKC)
    official = {"settings": {"data.split": "official"}}
    runs = [*former, *curves("ikc", IKC, **official), *curves("vkc", VKC, **official)]
    record = sweep("x", runs)
    table = judge.verdicts(made.exhibits["x"], record)
    assert list(table["answer"]) == ["yes", "", "not tested", "", "no", "no", "not tested", ""]
    assert judge.tally(made, False, {"x": table}) == "1 yes, 1 no, 1 not tested, 1 with too few runs"
    counted = page.tally(results_page.answers(made.exhibits["x"], record))
    assert counted == {"yes": 1, "no": 1, "not tested": 1, "fewer runs than planned": 1}
    assert judge.tally(made, False, {}) == "1 not tested, 3 with too few runs"
    assert "Not run: 3 claims" in results_page.answers(made.exhibits["x"], None)


def test_runs_that_differ_in_another_setting_are_not_pooled(tmp_path) -> None:
    shown = exhibit(tmp_path, LEADS)
    runs = curves("ikc", IKC) + curves("vkc", VKC)
    other = curves("ikc", [0.1] * 5, "training.batch_size=7")
    row = one(shown, runs + other)
    assert row["answer"] == "yes"
    assert "training.batch_size=7" in row["notes"]
    assert "1 runs that no claim names" in one(shown, [*runs, *curves("oort", [0.1])])["notes"]


def test_a_claim_that_does_not_say_which_of_two_runs_of_a_seed_counts_has_no_answer(tmp_path) -> None:
    shown = exhibit(tmp_path, f"{LEADS[:-1]}, {{text: b, compare: [[H = 10, H = 30]], at: [IKC, VKC], {MEAN}}}]")
    h30 = "scheduling.num_scheduled=30"
    runs = [*curves("ikc", IKC), *curves("vkc", VKC), *curves("ikc", IKC, h30), *curves("vkc", [0.1] * 5, h30)]
    row = judged(shown, runs).records[0]
    assert (row["n"], row["answer"]) == ("0 of 5 seeds", "")
    assert row["notes"] == "the claim names no value of scheduling.num_scheduled, in which its runs differ"


@pytest.mark.parametrize("own, other", [([10] * 5, [30] * 5), ([10, 10, 10, 30, 30],) * 2])
def test_a_claim_whose_runs_differ_in_what_it_does_not_name_has_no_answer(
    tmp_path, own: list[int], other: list[int]
) -> None:
    """The schedulers have run with unlike H, or some seeds with one H and some with another."""
    runs = [
        run({metrics.ACCURACY: [value] * 4}, f"scheduling.name={name}", f"seed={seed}", f"scheduling.num_scheduled={h}")
        for name, values, counts in (("ikc", IKC, own), ("vkc", VKC, other))
        for seed, (value, h) in enumerate(zip(values, counts, strict=True))
    ]
    claims = f"{LEADS[:-1]}, {{text: b, compare: [[H = 10, H = 30]], {MEAN}}}]"
    row = judged(exhibit(tmp_path, claims), runs).records[0]
    assert (row["n"], row["answer"], row["ours [95 %]"]) == ("0 of 5 seeds", "", "")
    assert row["notes"] == "the claim names no value of scheduling.num_scheduled, in which its runs differ"


def test_what_may_differ_leaves_nothing_open(tmp_path) -> None:
    shown = exhibit(tmp_path, LEADS).model_copy(update={"free": ["training."]})
    runs = curves("ikc", IKC, "training.batch_size=7") + curves("vkc", VKC)
    assert one(shown, runs)["answer"] == "yes"


def test_a_modified_checkout_is_named(tmp_path) -> None:
    runs = curves("ikc", IKC, commit=f"{CLEAN}-dirty") + curves("vkc", VKC)
    assert "5 runs of a modified checkout" in one(exhibit(tmp_path, LEADS), runs)["notes"]


def test_fleets_are_the_units_of_a_study_of_assignments(tmp_path) -> None:
    claims = "[{text: a, compare: [[IKC, VKC]], endpoint: {metric: round/delay_s}, scale: log, expect: less}]"
    own, other = [1.0, 2.0, 3.0, 5.0], [1.5, 2.5, 4.5, 5.5]
    runs = [
        run({metrics.ROUND_DELAY_S: values}, f"scheduling.name={name}")
        for name, values in (("ikc", own), ("vkc", other))
    ]
    row = one(exhibit(tmp_path, claims, "{fleets: 4}"), runs)
    assert (row["n"], row["answer"]) == ("4 of 4 fleets", "yes")
    assert float(row["p"]) == pytest.approx(ttest_rel(np.log(own), np.log(other)).pvalue, abs=5e-4)
    assert one(exhibit(tmp_path, claims, "{fleets: 5}"), runs)["answer"] == ""


@pytest.mark.parametrize("metric", [metrics.WALL_TRAIN_S, metrics.WALL_LEARN_S, metrics.ASSIGNER_STEPS_PER_S])
def test_no_speeds_of_two_machines_are_compared(tmp_path, metric: str) -> None:
    claims = f"[{{text: a, compare: [[IKC, VKC]], endpoint: {{metric: {metric}, by: mean}}, scale: log, expect: less}}]"
    shown = exhibit(tmp_path, claims, "{seeds: 2}")
    for cpu, answer in (("one", "yes"), ("two", "")):
        runs = [run({metric: [(1.0 + seed / 100) * factor]}, f"scheduling.name={name}", f"seed={seed}", cpu=where)
                for name, factor, where in (("ikc", 1, "one"), ("vkc", 2, cpu)) for seed in (0, 1)]  # fmt: skip
        assert one(shown, runs)["answer"] == answer


def test_latencies_of_two_machines_are_not_compared(tmp_path) -> None:
    claims = "[{text: a, compare: [[IKC, VKC]], endpoint: {metric: wall/assign_s}, scale: log, expect: less}]"
    shown = exhibit(tmp_path, claims, "{fleets: 2}")
    runs = [run({metrics.WALL_ASSIGN_S: [1.0, 2.0]}, "scheduling.name=ikc"),
            run({metrics.WALL_ASSIGN_S: [2.0, 5.0]}, "scheduling.name=vkc", cpu="two")]  # fmt: skip
    assert one(shown, runs)["n"] == "0 of 2 fleets"


def test_a_claim_that_no_plan_can_test_says_why(tmp_path) -> None:
    row = one(exhibit(tmp_path, "[{text: a, not_tested: too weak}]"), [])
    assert (row["answer"], row["notes"], row["n"]) == ("not tested", "too weak", "")


def test_five_seeds_rarely_see_a_smaller_spread() -> None:
    """The note on spreads in tune_configs/claims.yaml has the power of the F test, two-sided at 5 %."""
    note = next(claim.not_tested for claim in paper("zhang").exhibits["fig3"].claims if claim.not_tested)
    for seeds in (5, 10):
        df = seeds - 1
        power = [f.cdf(f.ppf(0.025, df, df) / ratio**2, df, df) for ratio in (0.75, 0.5)]
        assert f"{power[0]:.2f} to {power[1]:.2f}" in note


def test_a_run_is_drawn_up_to_its_target_and_judged_whole() -> None:
    shown = paper("zhang").exhibits["fig7"]
    curve = [0.5] * 5 + [0.9] * 10
    runs = [rising("ikc", 0, curve, f"data.name={name}") for name in ("fashion_mnist", "digits")]
    cut, whole = judge.drawn(shown, sweep(shown.config, runs)).runs
    assert (len(cut.rounds), cut.target) == (10, 0.875)
    assert cut.last(metrics.ROUNDS_TO_TARGET) == 10
    assert cut.last(metrics.DELAY_TO_TARGET_S) == cut.last(metrics.TOTAL_DELAY_S) == 100
    touched = rising("ikc", 0, [0.9] + [0.5] * 9, "data.name=fashion_mnist", "target_accuracy=0.6")
    touched.history.values[metrics.ROUNDS_TO_TARGET] = 1.0  # one round is at its own target, no five are at this one
    (missed,) = judge.drawn(shown, sweep(shown.config, [touched])).runs
    assert np.isnan(missed.last(metrics.ROUNDS_TO_TARGET))
    assert (len(whole.rounds), whole.target) == (15, None)
    other = paper("zhang").exhibits["fig3"]
    assert [len(each.rounds) for each in judge.drawn(other, sweep(other.config, runs)).runs] == [15, 15]


def test_a_borrowed_run_ends_where_it_passes_the_target() -> None:
    lender = sweep("fig3_fashion_scheduling", [rising("ikc", 0, [0.5] * 5 + [0.9] * 10, "data.name=fashion_mnist"),
                                               rising("vkc", 0, [0.9] * 15, "data.name=fashion_mnist")])  # fmt: skip
    shown = paper("zhang").exhibits["fig7"]
    borrowed = judge.with_borrowed({lender.name: lender}, [shown])[shown.config]
    (only,) = borrowed.runs
    assert only.ended
    assert only.target == 0.875
    assert len(only.rounds) == 10
    assert only.part == "fig3_fashion_scheduling"


# Of a rate of 0.05, so many draws have as many wrong answers with a probability of about 0.01.
@pytest.mark.parametrize("draws, most", [(15, 4), pytest.param(60, 8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", chance.EXHIBITS)
def test_chance_rarely_gives_an_answer(name: str, draws: int, most: int) -> None:
    assert chance.wrong_answers(*chance.EXHIBITS[name](), draws=draws) < most
