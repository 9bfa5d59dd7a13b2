"""hflray.reproduction.zhang.scheduling: the claims on Figures 3 and 4 get the answers that made-up curves call for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hflray.reproduction.zhang.scheduling import deciding_text
from tests.conftest import says
from tests.report.fabricated import accuracy, answers, judged

ALL = (10, 30, 50, 70)
SEEDS = range(5)
RATE = {"ikc": 1.6, "vkc": 1.2, "fedavg": 0.85}
ABOVE, SOONER, CLOSER, FEWER, STEADIER = range(5)


def curve(h: int, scheduler: str, seed: int, rounds: int = 60) -> list[float]:
    """Return a curve as in the paper: IKC is before VKC and VKC before FedAvg, closer and steadier with H.

    All schedulers reach 87.5 % within 60 rounds.
    """
    speed = 1 + (RATE[scheduler] - 1) * 10 / h
    wobble = 0.001 * (seed - 2) * 10 / h
    steps = np.arange(1, rounds + 1)
    return list(0.95 * (1 - np.exp(-steps * speed * (1 + h / 30) / 21)) + wobble)


def runs(hs=ALL, schedulers=tuple(RATE), seeds=SEEDS, rounds=60, like=curve):
    return [accuracy(h, name, like(h, name, seed, rounds), seed) for h in hs for name in schedulers for seed in seeds]


def test_the_whole_evidence_gives_a_plain_yes() -> None:
    assert answers("fig3", runs()) == ["yes"] * 5


def test_figure_4_needs_more_rounds_than_figure_3() -> None:
    four = [accuracy(run.config.scheduling.num_scheduled, run.config.scheduling.name, list(run.series("accuracy")),
                     run.seed, "data.name=cifar10") for run in runs()]  # fmt: skip
    assert answers("fig4", four)[:1] == ["so far yes"]


@pytest.mark.parametrize("part", [{"seeds": (0, 1)}, {"hs": (10, 30)}, {"rounds": 50}])
def test_a_part_of_the_evidence_gives_so_far(part) -> None:
    table = judged("fig3", runs(**part))
    # Two seeds have a spread, but the spread has no interval.
    steadier = "not settled" if "seeds" in part else "so far yes"
    assert list(table["agree"]) == ["so far yes"] * 4 + [steadier]
    evidence = table["evidence"][ABOVE]
    assert {"seeds": "2 of 5 seeds (0, 1)", "hs": "Missing: H = 50, 70", "rounds": "the first 50 of 60 rounds"}[
        next(iter(part))
    ] in evidence


def test_one_seed_tests_nothing() -> None:
    verdicts = answers("fig3", runs(seeds=(0,)))
    three = "VKC at H = 10, FedAvg at H = 10"
    assert verdicts[ABOVE].startswith(f"not tested: needs a second seed of IKC at H = 10, {three}")
    assert verdicts[SOONER].startswith(f"not tested: needs a second seed of IKC at H = 10, {three}")
    assert verdicts[CLOSER].startswith(
        f"not tested: needs IKC, VKC, FedAvg at 2 values of H: needs a second seed of IKC at H = 10, {three}"
    )
    for claim in (FEWER, STEADIER):
        assert verdicts[claim].startswith(
            "not tested: needs IKC at 2 values of H: needs a second seed of IKC at H = 10"
        )


def test_the_opposite_is_a_no() -> None:
    swap = {"ikc": "fedavg", "vkc": "vkc", "fedavg": "ikc"}

    def against(seeds):
        return runs(seeds=seeds, like=lambda h, name, seed, rounds: curve(80 - h, swap[name], seed, rounds))

    assert answers("fig3", against(range(10))) == ["no"] * 5
    table = judged("fig3", against(SEEDS))
    assert list(table["agree"]) == ["no"] * 4 + ["not settled"]
    assert says(table["evidence"][STEADIER], "9 of 9 intervals contradict the claim at 95 %", "99.44 %")
    few = answers("fig3", runs(seeds=(0, 1), like=lambda h, n, s, r: curve(80 - h, swap[n], s, r)))
    assert few == ["so far no"] * 4 + ["not settled"]


def test_a_spread_or_a_span_that_one_seed_makes_smaller_is_not_settled() -> None:
    """Without seed 4, the spread and the span at H = 30 are those at H = 10."""
    width = {"ikc": 1.4, "vkc": 1.0, "fedavg": 0.85}

    def like(h: int, name: str, seed: int, rounds: int) -> list[float]:
        level = 0.8 + 0.001 * seed * (width[name] + (h == 10 and seed == 4))
        return [level + (0.02 if name == "ikc" and (h, seed) == (10, 4) else 0.0)] * rounds

    table = judged("fig3", runs(hs=(10, 30), like=like))
    assert list(table["agree"][[CLOSER, STEADIER]]) == ["not settled"] * 2
    assert says(table["ours"][CLOSER], "H = 30: 0.11 (not settled)")


def test_a_tie_of_all_does_not_agree() -> None:
    same = runs(like=lambda h, name, seed, rounds: curve(30, "ikc", 2, rounds))
    table = judged("fig3", same)
    assert list(table["agree"]) == ["no"] * 5
    assert "a tie" in table["ours"][ABOVE]
    assert "FedAvg − IKC +0.0 ± 0.0 (a tie)" in table["ours"][SOONER]


def test_a_tie_of_two_is_within_the_papers_claim_and_of_the_ends_is_not() -> None:
    like = {"ikc": "ikc", "vkc": "ikc", "fedavg": "fedavg"}
    assert answers("fig3", runs(like=lambda h, n, s, r: curve(10, like[n], s, r)))[SOONER] == "yes"
    like = {"ikc": "ikc", "vkc": "fedavg", "fedavg": "ikc"}
    assert answers("fig3", runs(like=lambda h, n, s, r: curve(10, like[n], s, r)))[SOONER] == "no"


def test_a_wide_interval_that_contains_0_is_not_settled() -> None:
    rng = np.random.default_rng(0)
    noisy = runs(
        hs=(30,), like=lambda h, n, s, r: list(np.full(r, 0.88 + 0.02 * rng.standard_normal()) + (n == "ikc") / 1e4)
    )
    table = judged("fig3", noisy)
    assert "not settled" in table["ours"][ABOVE]
    assert table["agree"][ABOVE] == "not settled"


def test_a_small_lead_of_all_seeds_is_a_tie() -> None:
    """IKC is 0.3 points above the others, ± 0.05 over the seeds."""
    close = runs(hs=(30,), like=lambda h, n, s, r: list(np.full(r, 0.88) + (n == "ikc") * (0.003 + (s - 2) / 4e3)))
    table = judged("fig3", close)
    assert "+0.30 ± 0.05 points over VKC (a tie), higher in 60 of 60" in table["ours"][ABOVE]
    assert table["agree"][ABOVE] == "no"


def test_without_vkc_no_comparison_with_it_is_tested() -> None:
    verdicts = answers("fig3", runs(schedulers=("ikc", "fedavg")))
    assert all(says(verdict, "not tested", *(f"VKC at H = {h}" for h in ALL)) for verdict in verdicts[:3])
    assert verdicts[FEWER] == "so far yes"  # IKC and FedAvg are each compared with themselves across H
    assert "VKC" in judged("fig3", runs(schedulers=("ikc", "fedavg")))["evidence"][FEWER]
    partial = [*runs(hs=(10, 30)), *runs(hs=(50, 70), schedulers=("ikc", "fedavg"))]
    table = judged("fig3", partial)
    assert table["agree"][ABOVE] == "so far yes"
    assert "Missing: needs runs of VKC at H = 50, needs runs of VKC at H = 70" in table["evidence"][ABOVE]


def test_three_rounds_test_no_claim() -> None:
    verdicts = answers("fig3", runs(rounds=3))
    assert verdicts[ABOVE].startswith("not tested: needs 20 rounds of IKC at H = 10")
    assert all(answer.startswith("not tested") for answer in verdicts)
    assert all(answer.startswith("not tested") for answer in answers("fig3", []))


def test_curves_of_unequal_length_are_judged_on_their_common_rounds() -> None:
    """IKC is ahead for 30 rounds; its fall after FedAvg's last round must not count."""

    def falls(h, name, seed, rounds):
        values = curve(h, name, seed, 60 if name == "ikc" else 30)
        return values[:30] + [0.0] * 30 if name == "ikc" else values

    table = judged("fig3", runs(hs=(10,), like=falls))
    assert table["agree"][ABOVE] == "so far yes"
    assert "of 30 rounds" in table["ours"][ABOVE]
    assert "the first 30 of 60 rounds" in table["evidence"][ABOVE]


def test_a_dropped_run_is_named_and_does_not_count() -> None:
    bad = accuracy(10, "ikc", [0.0] * 60, 7)  # no other run has this seed
    table = judged("fig3", [*runs(hs=(10,)), bad])
    assert table["agree"][ABOVE] == "so far yes"
    assert f"Not used: {bad.name} (no run of VKC at H = 10, FedAvg at H = 10 has its seed)" in table["evidence"][ABOVE]
    other = accuracy(10, "ikc", [0.0] * 60, 0, "assignment.name=hfel")
    table = judged("fig3", [*runs(hs=(10,)), other])
    assert table["agree"][ABOVE] == "so far yes"
    assert f"Not used: {other.name} (assignment.name='hfel')" in table["evidence"][ABOVE]


def test_the_evidence_names_runs_from_a_modified_checkout() -> None:
    clean = runs(hs=(10,))
    assert "modified" not in judged("fig3", clean)["evidence"][ABOVE]
    dirty = accuracy(10, "ikc", curve(10, "ikc", 0), 0, commit="abc-dirty")
    table = judged("fig3", [dirty, *clean[1:]])
    assert f"From a modified checkout: {dirty.name}" in table["evidence"][ABOVE]


def test_without_the_target_the_highest_common_accuracy_is_compared() -> None:
    low = runs(like=lambda h, n, s, r: [0.9 * value for value in curve(h, n, s, r)])
    table = judged("fig3", low)
    assert table["agree"][SOONER] == "so far yes"
    assert "the highest that all runs reached (the target is 87.5%)" in table["ours"][SOONER]


def steps_at(rounds: int) -> list[float]:
    """Return a curve of 60 rounds that is at 50 % before this round and at 90 % from it on."""
    return [0.9 if number >= rounds else 0.5 for number in range(1, 61)]


def test_rounds_are_compared_seed_by_seed() -> None:
    """VKC needs 1, 2 and 3 rounds more than IKC: 2 ± 4.303 · 1/√3 = 2 ± 2.48. FedAvg needs 10 to 12 more: 11 ± 2.48."""
    later = {"ikc": lambda seed: 0, "vkc": lambda seed: 1 + seed, "fedavg": lambda seed: 10 + seed}
    table = judged("fig3", runs((10,), seeds=range(3), like=lambda h, n, s, r: steps_at(20 + 5 * s + later[n](s))))
    means, gaps = "H = 10: IKC 25.0, VKC 27.0, FedAvg 36.0 rounds to 87.5%", "FedAvg − VKC +9.0 ± 0.0"
    assert says(table["ours"][SOONER], means, "VKC − IKC +2.0 ± 2.5 (not settled)", gaps, "FedAvg − IKC +11.0 ± 2.5")
    assert table["agree"][SOONER] == "not settled"
    against = judged("fig3", runs((10,), seeds=range(3), like=lambda h, n, s, r: steps_at(20 + 5 * s - later[n](s))))
    assert against["agree"][SOONER] == "so far no"


def test_rounds_that_one_seed_saves_with_h_are_not_settled() -> None:
    """H = 30 saves 0, 0 and 9 rounds: −3 ± 12.9."""
    saved = {10: lambda seed: 0, 30: lambda seed: 9 * (seed == 2)}
    table = judged("fig3", runs((10, 30), seeds=range(3), like=lambda h, n, s, r: steps_at(40 - saved[h](s))))
    assert says(table["ours"][FEWER], "H = 10: 40.0, H = 30: 37.0 (-3.0 ± 12.9, not settled) (to 87.5%)")
    assert table["agree"][FEWER] == "not settled"


def test_a_printed_level_has_the_digits_that_decide() -> None:
    """At 87.15 % the three need 1, 2 and 3 rounds. At 87.2 % the last never gets there, and at 87.1 % all need one."""
    curves = [pd.Series(values, index=range(1, 4)) for values in (
        [0.8715, 0.873, 0.874], [0.8714, 0.8718, 0.872], [0.8711, 0.8714, 0.8715],
    )]  # fmt: skip
    assert deciding_text(0.8715, curves) == "87.15%"
    assert deciding_text(0.8700, curves) == "87.0%"
    steady = [pd.Series([0.5, 0.8715])]
    assert deciding_text(0.8715, steady) == "87.1%"  # every printed digit that changes no count is left out


def test_runs_with_unlike_shares_are_judged_at_their_only_h() -> None:
    assert answers("fig3_unlike", runs(hs=(10,))) == ["yes"] * 2
    swap = {"ikc": "fedavg", "vkc": "vkc", "fedavg": "ikc"}
    assert answers("fig3_unlike", runs(hs=(10,), like=lambda h, n, s, r: curve(h, swap[n], s, r))) == ["no"] * 2
