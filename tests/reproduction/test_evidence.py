"""hflray.reproduction.evidence: only comparable runs are compared, unused ones are named, and a tie does not agree."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest

from hflray import metrics
from hflray.report.series import last_step
from hflray.reproduction.evidence import (
    Claim,
    Finding,
    Gap,
    Needs,
    NotTested,
    Part,
    compare_fairly,
    describe_seeds,
    gap_over_seeds,
    join_names,
    name_verdicts,
    select_alike,
    split,
)
from tests.conftest import says
from tests.report.fabricated import accuracy, run

NEEDS = Needs(least_seeds=1, seeds=2, least_steps=2, steps=4, contestants=("ikc", "fedavg"))


def run_of(scheduler: str, rounds: int, seed: int, *overrides: str):
    return accuracy(30, scheduler, [seed + number / 10 for number in range(rounds)], seed, *overrides)


def test_contestants_are_compared_on_the_same_seeds_up_to_their_last_common_round() -> None:
    groups = {
        "ikc": [run_of("ikc", 6, 0), run_of("ikc", 9, 1), run_of("ikc", 9, 2)],
        "fedavg": [run_of("fedavg", 4, 0), run_of("fedavg", 8, 1)],
    }
    comparison = compare_fairly(groups, NEEDS, metrics.ACCURACY)
    assert (comparison.seeds, comparison.steps, comparison.whole) == ([0, 1], 4, True)
    assert comparison.coverage == "seeds 0, 1, the first 4 rounds"
    assert [run.seed for run in comparison.groups["ikc"]] == [0, 1]
    assert list(comparison.curve("ikc", metrics.ACCURACY).index) == [1, 2, 3, 4]
    assert [len(values) for values in comparison.each("fedavg", metrics.ACCURACY)] == [4, 4]
    assert comparison.dropped == [f"{groups['ikc'][2].name} (no run of fedavg has its seed)"]


def test_a_run_under_way_is_not_used_where_other_seeds_are_complete() -> None:
    groups = {
        "ikc": [run_of("ikc", 4, 0), run_of("ikc", 4, 1)],
        "fedavg": [run_of("fedavg", 4, 0), run_of("fedavg", 3, 1)],
    }
    comparison = compare_fairly(groups, NEEDS, metrics.ACCURACY)
    assert (comparison.seeds, comparison.steps, comparison.whole) == ([0], 4, False)
    assert comparison.coverage == "1 of 2 seeds (0), the first 4 rounds"
    assert len(comparison.dropped) == 2
    assert comparison.dropped[1] == f"{groups['fedavg'][1].name} (its seed has only 3 rounds)"


def test_less_than_the_least_evidence_is_not_tested() -> None:
    with pytest.raises(NotTested, match="needs runs of FedAvg"):
        compare_fairly(
            {"ikc": [run_of("ikc", 4, 0)], "fedavg": []}, NEEDS, metrics.ACCURACY, {"ikc": "IKC", "fedavg": "FedAvg"}
        )
    with pytest.raises(NotTested, match="needs a seed that all have: ikc, fedavg"):
        compare_fairly({"ikc": [run_of("ikc", 4, 0)], "fedavg": [run_of("fedavg", 4, 1)]}, NEEDS, metrics.ACCURACY)
    with pytest.raises(NotTested, match="needs 2 rounds of ikc, fedavg; there are 1"):
        compare_fairly({"ikc": [run_of("ikc", 4, 0)], "fedavg": [run_of("fedavg", 1, 0)]}, NEEDS, metrics.ACCURACY)
    two = Needs(least_seeds=2, least_steps=2, steps=4)
    with pytest.raises(NotTested, match="needs a second seed of ikc"):
        compare_fairly({"ikc": [run_of("ikc", 4, 0), run_of("ikc", 1, 1)]}, two, metrics.ACCURACY)


def test_the_longer_of_two_runs_of_a_seed_is_used_and_the_other_is_named() -> None:
    short, long = run_of("ikc", 3, 0, "training.threads=1"), run_of("ikc", 5, 0)
    comparison = compare_fairly({"ikc": [long, short]}, NEEDS, metrics.ACCURACY)
    assert comparison.groups["ikc"] == [long]
    assert comparison.dropped == [f"{short.name} (a longer run has its seed)"]


def test_runs_that_differ_in_other_settings_are_not_mixed() -> None:
    runs = [run_of("ikc", 3, 0), run_of("fedavg", 3, 0), run_of("ikc", 3, 1)]
    other = [run_of("ikc", 9, 0, "assignment.name=hfel"), run_of("fedavg", 9, 0, "assignment.name=hfel")]
    selected, dropped = select_alike(runs + other, ("scheduling.name",))
    assert selected == runs
    assert dropped == [f"{run.name} (assignment.name='hfel')" for run in other]
    assert len(select_alike(runs + other, ("scheduling.name", "assignment."))[0]) == 5
    assert select_alike([], ()) == ([], [])


def test_a_gap_whose_interval_contains_0_is_not_settled() -> None:
    clear = Gap.of([3.0, 4.0, 5.0], [1.0, 2.1, 2.9])
    assert (clear.above, clear.below, clear.tie) == (True, False, False)
    assert clear.mean == pytest.approx(2.0)
    assert clear.error == pytest.approx(4.302653 * 0.1 / math.sqrt(3))  # t of 97.5 % with 2 degrees of freedom
    assert clear.text() == "+2.00 ± 0.25"
    unclear = Gap.of([1.0, 3.0], [2.0, 1.0])
    assert (unclear.above, unclear.below, unclear.tie) == (False, False, False)
    assert unclear.text() == "+0.50 ± 19.06"  # 12.706 · 1.5
    assert (unclear.agrees(1), clear.agrees(1), clear.agrees(-1)) == (None, True, False)
    assert Gap.of([2.0, 3.0], [2.0, 3.0]).tie


@pytest.mark.parametrize(
    "mean, half_width, verdict",
    [
        (0.13, 0.09, "a tie"),  # from 0.04 to 0.22: above 0, and within ± 0.5
        (-0.2, 0.29, "a tie"),  # from −0.49 to 0.09
        (0.0, 0.51, "not settled"),
        (0.3, 0.31, "not settled"),
        (0.3, 0.25, ""),  # from 0.05 to 0.55
        (-0.73, 0.17, ""),
    ],
)
def test_a_tie_of_curves_is_an_interval_within_the_margin(mean: float, half_width: float, verdict: str) -> None:
    deviation = half_width / 2.7764451 * math.sqrt(5)  # of five seeds, 4 degrees of freedom
    steps = [mean + deviation * step for step in (-math.sqrt(2), 0, 0, 0, math.sqrt(2))]
    gap = Gap.of(steps, [0.0] * 5, margin=0.5)
    assert (gap.mean, gap.error) == (pytest.approx(mean), pytest.approx(half_width, rel=1e-6))
    assert gap.verdict == verdict
    assert (gap.above, gap.below) == (verdict == "" and mean > 0, verdict == "" and mean < 0)
    assert gap.agrees(1) is (None if verdict == "not settled" else gap.above)


def test_what_is_not_settled_is_no_answer_and_a_no_comes_first() -> None:
    unsettled = Part(None, True)
    assert Finding("", [YES, unsettled], "", []).answer == "not settled"
    assert Finding("", [NO, unsettled], "", []).answer == "no"
    assert Finding("", [SO_FAR_NO, unsettled], "", []).answer == "so far no"
    gaps = {"a": Gap(0.0, 0.0, 5), "b": Gap(0.0, 1.0, 5), "c": Gap(2.0, 1.0, 5)}
    assert name_verdicts("x", gaps) == " (x and a: a tie; x and b: not settled)"


YES, NO, SO_FAR_YES, SO_FAR_NO = Part(True, True), Part(False, True), Part(True, False), Part(False, False)


@pytest.mark.parametrize(
    "parts, missing, answer",
    [
        ([YES, YES], [], "yes"),
        ([YES, YES], ["H = 70"], "so far yes"),
        ([YES, SO_FAR_YES], [], "so far yes"),
        ([YES, NO], [], "no"),
        ([SO_FAR_YES, NO], ["H = 70"], "no"),  # one counterexample with whole evidence is enough
        ([YES, SO_FAR_NO], [], "so far no"),
    ],
)
def test_the_answer_follows_from_its_parts(parts, missing, answer) -> None:
    assert Finding("", parts, "", [], missing).answer == answer


def test_a_no_needs_an_interval_that_holds_for_all_gaps_of_the_claim_together() -> None:
    # Of three seeds, Student's t of 95 % is 4.30. For one of six gaps it is that of 1 − 0.05 / 6 = 99.17 %, which is
    # 10.89, by the closed form of two degrees of freedom.
    level = 1 - 0.05 / 6
    gap = Gap.of([-4.0, -5.0, -6.0], [0.0] * 3)
    wide = gap.among(6)
    assert (wide.mean, wide.count) == (-5.0, 3)
    assert gap.error == pytest.approx(4.302653 / math.sqrt(3))
    assert wide.error == pytest.approx(level * math.sqrt(2 / (1 - level**2)) / math.sqrt(3))
    assert gap.among(1) == gap
    weak, strong = Part.of(gap, 1, True), Part.of(Gap.of([-4.9, -5.0, -5.1], [0.0] * 3), 1, True)
    agrees = [Part.of(Gap.of([4.0, 5.0, 6.0], [0.0] * 3), 1, True)] * 5
    assert (weak.agrees, strong.agrees, agrees[0].agrees) == (False, False, True)
    assert Finding("", [weak], "", []).answer == "no"
    assert Finding("", [weak, *agrees], "", []).answer == "not settled"
    assert Finding("", [strong, *agrees], "", []).answer == "no"
    assert Finding("", agrees, "", []).answer == "yes"  # each of them has to agree, which no number of them makes easy
    # Comparisons without an interval do not count, and they contradict by themselves.
    assert Finding("", [weak, YES, YES, YES], "", []).answer == "no"
    assert Finding("", [weak, NO, *agrees], "", []).answer == "no"


def test_the_evidence_says_that_an_interval_contradicts_by_itself_only() -> None:
    weak = Part.of(Gap.of([-4.0, -5.0, -6.0], [0.0] * 3), 1, True)
    agrees = [Part.of(Gap.of([4.0, 5.0, 6.0], [0.0] * 3), 1, True)] * 5
    text = Finding("", [weak, *agrees], "seeds 0, 1, 2", []).evidence_text
    assert says(text, "seeds 0, 1, 2. ", "1 of 6 intervals contradicts", "95 %", "99.17 %")
    assert "contradict" not in Finding("", [weak], "seeds 0, 1, 2", []).evidence_text
    assert "contradict" not in Finding("", [weak, NO, *agrees], "seeds 0, 1, 2", []).evidence_text


def test_a_tie_within_the_margin_contradicts_if_it_stays_one_among_all() -> None:
    near, exact = Gap.of([0.0, 0.2, 0.1], [0.0] * 3, margin=0.5), Gap.of([0.0] * 3, [0.0] * 3, margin=0.5)
    apart = [Part.of(Gap.of([4.0, 5.0, 6.0], [0.0] * 3, margin=0.5), 1, True)] * 5
    assert (near.tie, near.among(6).tie, exact.among(6).tie) == (True, False, True)
    assert Finding("", [Part.of(near, 1, True), *apart], "", []).answer == "not settled"
    assert Finding("", [Part.of(exact, 1, True), *apart], "", []).answer == "no"
    # A tie whose wider interval lies above 0 and beyond the margin contradicts no longer.
    above = Gap.of([0.39, 0.41, 0.40], [0.0] * 3, margin=0.43)
    assert (above.tie, above.among(6).above) == (True, True)
    assert Finding("", [Part.of(above, 1, True), *apart], "", []).answer == "not settled"


def test_one_choice_that_agrees_is_enough_and_the_answer_counts_them() -> None:
    assert Finding("", [YES, NO], "", [], choices=True).answer == "yes with 1 of 2 choices that the paper leaves open"
    assert Finding("", [YES, SO_FAR_NO], "", [], choices=True).answer.startswith("so far yes with 1 of 2")
    assert Finding("", [NO, NO], "", [], choices=True).answer == "no"
    unsettled = Part(None, True)
    assert Finding("", [YES, unsettled], "", [], choices=True).answer.startswith("yes with 1 of 2")
    assert Finding("", [NO, unsettled], "", [], choices=True).answer == "not settled"
    assert Finding("", [NO, unsettled], "", []).answer == "no"
    assert Finding("", [YES, YES], "", [], choices=True).answer == "yes"


def test_the_evidence_names_modified_missing_and_unused_runs() -> None:
    clean, dirty = run({"x": [1.0]}, "seed=1"), run({"x": [1.0]}, "seed=2", commit="abc-dirty")
    assert Finding("", [YES], "seeds 1", [clean]).evidence_text == "seeds 1"
    text = Finding("", [YES], "seeds 1, 2", [clean, dirty], ["H = 70"], ["another (3 rounds)"]).evidence_text
    facts = ("seeds 1, 2", "Missing", "H = 70", "Not used", "another (3 rounds)", "modified", dirty.full_name)
    assert says(text, *facts)
    assert Finding("", [YES], "seed 2", [dirty]).evidence_text == "seed 2. From a modified checkout: all of it"
    many = Finding("", [YES], "s", [clean], dropped=[f"r{number}" for number in range(9)]).evidence_text
    assert many == "s. Not used: r0; r1; r2; r3 and 5 more"


def test_a_claim_needs_five_seeds_for_a_plain_answer_unless_it_says_otherwise() -> None:
    needs = Needs()
    assert (needs.least_seeds, needs.seeds, needs.least_steps, needs.steps, needs.least_scheduled) == (1, 5, 0, 0, 1)
    assert (needs.contestants, needs.scheduled, needs.data) == ((), (), ())


def test_one_pair_has_no_interval_and_settles_nothing() -> None:
    single = Gap.of([1.0], [2.0])
    assert math.isnan(single.error)
    assert (single.tie, single.above, single.below, single.settled) == (False, False, False, False)
    assert (single.text(), Gap.of([2.0], [2.0]).text()) == ("-1.00", "+0.00")


def test_a_comparison_is_whole_with_enough_seeds_and_steps() -> None:
    def compare(rounds: int, *seeds: int):
        return compare_fairly({"ikc": [run_of("ikc", rounds, seed) for seed in seeds]}, NEEDS, metrics.ACCURACY)

    assert [compare(4, 0, 1).whole, compare(5, 0, 1, 2).whole, compare(3, 0, 1).whole, compare(4, 0).whole] == [
        True, True, False, False,
    ]  # fmt: skip
    assert compare(3, 0, 1).coverage == "seeds 0, 1, the first 3 of 4 rounds"
    assert compare(4, 0, 1).coverage == "seeds 0, 1, the first 4 rounds"
    no_steps = compare_fairly({"ikc": [run_of("ikc", 3, 7)]}, Needs(seeds=1), metrics.ACCURACY)
    assert no_steps.coverage == "seed 7"
    assert [run.seed for run in compare(4, 1, 0).runs] == [0, 1]


def test_too_few_seeds_are_counted() -> None:
    three = Needs(least_seeds=3, least_steps=2, steps=4)
    with pytest.raises(NotTested, match=r"needs 3 seeds of ikc; there are 2$"):
        compare_fairly({"ikc": [run_of("ikc", 4, 0), run_of("ikc", 4, 1)]}, three, metrics.ACCURACY)
    # With exactly the least seeds and steps, the claim is judged.
    exact = compare_fairly({"ikc": [run_of("ikc", 2, seed) for seed in range(3)]}, three, metrics.ACCURACY)
    assert (exact.seeds, exact.steps, exact.whole) == ([0, 1, 2], 2, False)


def test_seeds_as_text() -> None:
    assert describe_seeds([3], Needs(seeds=1)) == "seed 3"
    assert describe_seeds([3, 4], Needs(seeds=2)) == "seeds 3, 4"
    assert describe_seeds([3, 4], Needs(seeds=3)) == "2 of 3 seeds (3, 4)"


def test_the_last_step_is_that_of_the_metric() -> None:
    sparse = run({metrics.ACCURACY: [0.1, 0.2, 0.3]}, steps=[1, 4, 9])
    assert last_step(sparse, metrics.ACCURACY) == 9
    assert last_step(sparse, metrics.TEST_LOSS) == 0


def test_of_two_equally_large_sets_the_one_with_more_rounds_is_compared() -> None:
    short = [run_of("ikc", 3, 0), run_of("fedavg", 3, 0)]
    long = [run_of("ikc", 9, 0, "assignment.name=hfel"), run_of("fedavg", 9, 0, "assignment.name=hfel")]
    for runs in (short + long, long + short):
        assert select_alike(runs, ("scheduling.name",))[0] == long
    assert len(select_alike(short, ())[0]) == 1  # the compared setting is not free


def test_at_most_three_differences_of_an_unused_run_are_named() -> None:
    runs = [run_of("ikc", 3, 0), run_of("ikc", 3, 1)]
    settings = ("assignment.name=hfel", "cost.delay_weight=3", "training.batch_size=7", "fleet.area_km=2")
    other = run_of("ikc", 3, 0, *settings)
    (dropped,) = select_alike([*runs, other], ())[1]
    assert dropped.startswith(f"{other.name} (")
    assert dropped.count("=") == 3


def test_runs_are_split_by_number_and_not_by_their_first_digit() -> None:
    runs = [accuracy(h, "ikc", [0.5], seed) for h in (100, 30, 50) for seed in (0, 1)]
    groups = split(runs, "scheduling.num_scheduled")
    assert list(groups) == [30, 50, 100]
    assert [len(members) for members in groups.values()] == [2, 2, 2]


def test_four_names_are_named_and_more_are_counted() -> None:
    assert join_names(list("abcd")) == "a, b, c, d"
    assert join_names(list("abcde")) == "a, b, c, d and 1 more"


def test_a_choice_agrees_only_beside_another_that_does_not() -> None:
    assert Finding("", [YES, YES, NO], "", [], choices=True).answer.startswith("yes with 2 of 3")
    assert Finding("", [YES, NO], "", [], ["H = 70"], choices=True).answer.startswith("so far yes with 1 of 2")
    assert Finding("", [YES, NO], "", []).answer == "no"  # without `choices` all have to agree


def test_the_findings_of_choices_are_one_finding() -> None:
    one, two = run({"x": [1.0]}, "seed=1"), run({"x": [1.0]}, "seed=2")
    findings = {
        "first": Finding("3 s", [YES, YES], "seed 1", [one], ["H = 70"], ["far", "two"]),
        "second": Finding("4 s", [NO, YES], "seed 2", [two, one], [], ["far", "one"]),
    }
    both = Finding.of_choices(findings)
    assert both.answer == "so far yes with 1 of 2 choices that the paper leaves open"
    assert (both.ours, both.evidence) == ("first: 3 s. second: 4 s", "first: seed 1. second: seed 2")
    assert both.runs == [one, two]
    assert (both.missing, both.dropped) == (["H = 70"], ["far"])
    assert Finding.of_choices({"second": findings["second"]}) is findings["second"]


def test_findings_and_needs_cannot_be_changed() -> None:
    needs, gap = Needs(), Gap.of([1.0], [2.0])
    finding, claim = Finding("", [YES], "", []), Claim("", needs, lambda sweep, needs: None)
    comparison = compare_fairly({"ikc": [run_of("ikc", 4, 0)]}, NEEDS, metrics.ACCURACY)
    for thing, name in (
        (needs, "seeds"), (gap, "mean"), (finding, "ours"), (claim, "text"), (YES, "whole"), (comparison, "steps"),
    ):  # fmt: skip
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, 0)


def test_a_small_gap_is_above_or_below_and_never_both() -> None:
    higher, lower = Gap.of([1.5, 1.625], [1.0, 1.125]), Gap.of([1.0, 1.125], [1.5, 1.625])  # equal differences
    assert (higher.mean, higher.above, higher.below) == (0.5, True, False)
    assert (lower.mean, lower.above, lower.below) == (-0.5, False, True)


def test_a_curve_begins_where_all_runs_have_a_value() -> None:
    name = "scheduling.name=ikc"
    later = run({metrics.ACCURACY: [0.2, 0.4]}, name, "seed=0", steps=[2, 4])
    full = run({metrics.ACCURACY: [0.1, 0.2, 0.3, 0.4, 0.5]}, name, "seed=1")
    comparison = compare_fairly({"ikc": [later, full]}, NEEDS, metrics.ACCURACY)
    # Step 1 is the second run's alone; at step 3 the first run has the value between its neighbours.
    assert list(comparison.curve("ikc", metrics.ACCURACY).index) == [2, 3, 4]


def test_the_gap_of_a_mean_over_seeds_is_that_of_its_values() -> None:
    values = [1.0, 2.0, 4.0]
    gap = gap_over_seeds(lambda seeds: sum(values[seed] for seed in seeds) / len(seeds), 3)
    same = Gap.of(values, [0.0] * 3)
    assert (gap.mean, gap.error) == pytest.approx((same.mean, same.error))


def test_a_statistic_that_too_few_seeds_lack_settles_nothing() -> None:
    gap = gap_over_seeds(lambda seeds: 1.0 if len(seeds) > 1 else math.nan, 2)
    assert gap.agrees(1) is None
