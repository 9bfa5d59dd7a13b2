"""hflray.report.evidence: what is compared is comparable, what is not used is named, and a tie is not agreement."""

from __future__ import annotations

import math

import pytest

from hflray import metrics
from hflray.report.evidence import Finding, Gap, Needs, NotTested, Part, alike, fair
from tests.report.fabricated import accuracy, run

NEEDS = Needs(least_seeds=1, seeds=2, least_steps=2, steps=4, contestants=("ikc", "fedavg"))


def of(scheduler: str, rounds: int, seed: int, *more: str):
    return accuracy(30, scheduler, [seed + number / 10 for number in range(rounds)], seed, *more)


def test_the_same_seeds_up_to_the_last_round_that_all_have() -> None:
    groups = {
        "ikc": [of("ikc", 6, 0), of("ikc", 9, 1), of("ikc", 9, 2)],
        "fedavg": [of("fedavg", 4, 0), of("fedavg", 8, 1)],
    }
    found = fair(groups, NEEDS, metrics.ACCURACY)
    assert (found.seeds, found.steps, found.whole) == ([0, 1], 4, True)
    assert found.said == "seeds 0, 1, the first 4 rounds"
    assert [run.seed for run in found.groups["ikc"]] == [0, 1]
    assert list(found.curve("ikc", metrics.ACCURACY).index) == [1, 2, 3, 4]
    assert [len(values) for values in found.each("fedavg", metrics.ACCURACY)] == [4, 4]
    assert found.dropped == [f"{groups['ikc'][2].name} (its seed is not there for fedavg)"]


def test_a_run_under_way_is_not_used_where_others_are_done() -> None:
    groups = {"ikc": [of("ikc", 4, 0), of("ikc", 4, 1)], "fedavg": [of("fedavg", 4, 0), of("fedavg", 3, 1)]}
    found = fair(groups, NEEDS, metrics.ACCURACY)
    assert (found.seeds, found.steps, found.whole) == ([0], 4, False)
    assert found.said == "1 of 2 seeds (0), the first 4 rounds"
    assert len(found.dropped) == 2
    assert found.dropped[1] == f"{groups['fedavg'][1].name} (of its seed there are 3 rounds)"


def test_what_is_less_than_the_least_is_not_tested() -> None:
    with pytest.raises(NotTested, match="needs runs of FedAvg"):
        fair({"ikc": [of("ikc", 4, 0)], "fedavg": []}, NEEDS, metrics.ACCURACY, {"ikc": "IKC", "fedavg": "FedAvg"})
    with pytest.raises(NotTested, match="needs a seed that all have: ikc, fedavg"):
        fair({"ikc": [of("ikc", 4, 0)], "fedavg": [of("fedavg", 4, 1)]}, NEEDS, metrics.ACCURACY)
    with pytest.raises(NotTested, match="needs 2 rounds of ikc, fedavg; there are 1"):
        fair({"ikc": [of("ikc", 4, 0)], "fedavg": [of("fedavg", 1, 0)]}, NEEDS, metrics.ACCURACY)
    two = Needs(least_seeds=2, least_steps=2, steps=4)
    with pytest.raises(NotTested, match="needs 2 seeds of ikc; there is one"):
        fair({"ikc": [of("ikc", 4, 0), of("ikc", 1, 1)]}, two, metrics.ACCURACY)


def test_of_two_runs_of_a_seed_the_longer_is_used_and_the_other_named() -> None:
    short, long = of("ikc", 3, 0, "training.threads=1"), of("ikc", 5, 0)
    found = fair({"ikc": [long, short]}, NEEDS, metrics.ACCURACY)
    assert found.groups["ikc"] == [long]
    assert found.dropped == [f"{short.name} (a longer run has its seed)"]


def test_runs_that_differ_in_more_are_not_mixed() -> None:
    mine = [of("ikc", 3, 0), of("fedavg", 3, 0), of("ikc", 3, 1)]
    other = [of("ikc", 9, 0, "assignment.name=hfel"), of("fedavg", 9, 0, "assignment.name=hfel")]
    kept, dropped = alike(mine + other, ("scheduling.name",))
    assert kept == mine
    assert dropped == [f"{run.name} (assignment.name='hfel')" for run in other]
    assert len(alike(mine + other, ("scheduling.name", "assignment."))[0]) == 5
    assert alike([], ()) == ([], [])


def test_a_gap_within_its_standard_error_is_a_tie() -> None:
    clear = Gap.of([3.0, 4.0, 5.0], [1.0, 2.1, 2.9])
    assert (clear.above, clear.below, clear.tie) == (True, False, False)
    assert clear.mean == pytest.approx(2.0)
    assert clear.error == pytest.approx(0.1 / math.sqrt(3))
    assert clear.said() == "+2.00 ± 0.06"
    unclear = Gap.of([1.0, 3.0], [2.0, 1.0])
    assert (unclear.above, unclear.below, unclear.tie) == (False, False, True)
    assert unclear.said() == "+0.50 ± 1.50, a tie"
    assert Gap.of([1.0], [2.0]).below
    assert Gap.of([2.0], [2.0]).tie
    assert Gap.of([2.0, 3.0], [2.0, 3.0]).tie


YES, NO, SO_FAR_YES, SO_FAR_NO = Part(True, True), Part(False, True), Part(True, False), Part(False, False)


@pytest.mark.parametrize(
    "parts, missing, answer",
    [
        ([YES, YES], [], "yes"),
        ([YES, YES], ["H = 70"], "so far yes"),
        ([YES, SO_FAR_YES], [], "so far yes"),
        ([YES, NO], [], "no"),
        ([SO_FAR_YES, NO], ["H = 70"], "no"),  # one counterexample on whole evidence is enough
        ([YES, SO_FAR_NO], [], "so far no"),
    ],
)
def test_the_answer_follows_from_its_parts(parts, missing, answer) -> None:
    assert Finding("", parts, "", [], missing).answer == answer


def test_of_choices_one_is_enough_and_it_is_said_how_many() -> None:
    assert Finding("", [YES, NO], "", [], choices=True).answer == "yes with 1 of 2 choices that the paper leaves open"
    assert Finding("", [YES, SO_FAR_NO], "", [], choices=True).answer.startswith("so far yes with 1 of 2")
    assert Finding("", [NO, NO], "", [], choices=True).answer == "no"
    assert Finding("", [YES, YES], "", [], choices=True).answer == "yes"


def test_what_it_rests_on_names_what_is_modified_missing_and_not_used() -> None:
    clean, dirty = run({"x": [1.0]}, "seed=1"), run({"x": [1.0]}, "seed=2", commit="abc-dirty")
    assert Finding("", [YES], "seeds 1", [clean]).rests_on == "seeds 1"
    said = Finding("", [YES], "seeds 1, 2", [clean, dirty], ["H = 70"], ["another (3 rounds)"]).rests_on
    assert said == f"seeds 1, 2. Missing: H = 70. Not used: another (3 rounds). From a modified checkout: {dirty.said}"
    assert Finding("", [YES], "seed 2", [dirty]).rests_on == "seed 2. From a modified checkout: all of it"
    many = Finding("", [YES], "s", [clean], dropped=[f"r{number}" for number in range(9)]).rests_on
    assert many == "s. Not used: r0; r1; r2; r3 and 5 more"
