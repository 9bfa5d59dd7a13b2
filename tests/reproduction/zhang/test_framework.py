"""hflray.reproduction.zhang.framework: Figure 7's costs are those of the round that reached the target."""

from __future__ import annotations

from hflray import metrics
from hflray.report.runs import Run, Sweep
from hflray.reproduction.exhibits import EXHIBITS, with_borrowed
from hflray.reproduction.zhang.framework import borrow
from tests.conftest import says
from tests.report.fabricated import answers, judged, run, sweep

TEN, FASHION, CIFAR, BYTES, EXPENSIVE, STEADY, HALF, THIRD, HIGHER, ROUNDS, MANY = range(11)
COSTS = {"fashion_mnist": {30: 100.0, 50: 150.0, 70: 200.0, 100: 300.0},
         "cifar10": {30: 149.0, 50: 120.0, 70: 200.0, 100: 310.0}}  # fmt: skip
LENGTHS = {30: 60, 50: 40, 70: 35, 100: 30}  # rounds by H
TARGET = {"fashion_mnist": 0.875, "cifar10": 0.56}


def whole(data: str, h: int, objective: float, seed: int = 0, rounds: int = 30, reach: bool = True) -> Run:
    """Return a run that reaches its target in its fifth round from the end, or never; later rounds are expensive."""
    scale = TARGET[data] / 0.875
    spread = 0.01 * (seed - 2) / h
    curve = [scale * 0.8 + spread] * (rounds - 5) + [scale * (0.9 if reach else 0.8) + spread] * 5
    after = [objective * 1000] * 4
    total = [objective / 2] * (rounds - 5) + [objective, *after]
    sent = 1e9 * (5 if h == 30 and data == "cifar10" else 1)
    values = {
        metrics.ACCURACY: curve,
        metrics.TOTAL_OBJECTIVE: total,
        metrics.TOTAL_DELAY_S: [value * (1 if h != 30 else 0.5) for value in total],
        metrics.TOTAL_ENERGY_J: total,
        metrics.ROUND_MESSAGE_BITS: [8e6 * h] * rounds,
        metrics.TOTAL_MESSAGE_BITS: [sent] * rounds,
    }
    return run(values, f"data.name={data}", f"scheduling.num_scheduled={h}", f"target_accuracy={TARGET[data]}",
               f"seed={seed}")  # fmt: skip


def runs(seeds: int = 5, costs=COSTS, ten: int = 150) -> list[Run]:
    reaching = [whole(data, h, cost + seed / 10, seed, LENGTHS[h]) for data, by in costs.items()
                for h, cost in by.items() for seed in range(seeds)]  # fmt: skip
    return reaching + [whole(data, 10, 80.0, seed, ten, False) for data in costs for seed in range(seeds)]


def test_the_papers_figure_agrees() -> None:
    assert answers("fig7", runs()) == ["yes"] * 11


def test_two_seeds_are_so_far_and_one_tests_no_cost() -> None:
    two = answers("fig7", runs(2))
    assert two[STEADY] == "not settled"
    assert two[:STEADY] + two[HALF:] == ["so far yes"] * 10
    verdicts = answers("fig7", runs(1))
    assert [verdicts[number] for number in (TEN, HIGHER)] == ["so far yes"] * 2
    assert verdicts[STEADY].startswith("not tested: needs IKC at 2 values of H: needs a second seed of IKC at H = 10")
    costs = verdicts[1:STEADY] + verdicts[HALF:HIGHER] + verdicts[ROUNDS:]
    assert all(answer.startswith("not tested: needs a second seed") for answer in costs)


def test_opposite_costs_do_not_agree() -> None:
    against = {"fashion_mnist": {30: 300.0, 50: 250.0, 70: 200.0, 100: 100.0},
               "cifar10": {30: 310.0, 50: 320.0, 70: 200.0, 100: 120.0}}  # fmt: skip
    verdicts = answers("fig7", runs(costs=against))
    assert [verdicts[number] for number in (FASHION, CIFAR, EXPENSIVE, HALF)] == ["no"] * 4
    assert verdicts[TEN] == "yes"


def test_ten_that_reaches_the_target_is_a_no() -> None:
    higher_h = [run for run in runs() if run.config.scheduling.num_scheduled != 10]
    reaching = [whole("fashion_mnist", 10, 80.0, seed) for seed in range(5)]
    table = judged("fig7", higher_h + reaching)
    assert table["agree"][TEN] == "no"
    assert "5 of 5 runs reached 87.5% in rounds 26, 26, 26, 26, 26" in table["ours"][TEN]
    assert "may stop before" in table["if not, our guess why"][TEN]
    assert answers("fig7", higher_h + reaching[:1])[TEN] == "so far no"


def test_the_rounds_to_the_target_are_compared_as_the_paper_does() -> None:
    table = judged("fig7", runs())
    assert "Fashion-MNIST, H = 100 against 30: 26.0 rounds and 56.0 rounds" in table["ours"][ROUNDS]
    assert table["ours"][MANY] == "CIFAR-10, H = 30 against 50: 56.0 rounds and 36.0 rounds"
    even = [whole(data, h, 100.0 + h, seed) for data in TARGET for h in (30, 50, 100) for seed in range(5)]
    table = judged("fig7", even)
    assert [table["agree"][number] for number in (ROUNDS, MANY)] == ["no", "no"]
    assert "26.0 rounds and 26.0 rounds (a tie)" in table["ours"][MANY]


def test_each_higher_h_must_reach_the_targets() -> None:
    reaching = [run for run in runs() if (run.config.data.name, run.config.scheduling.num_scheduled) != ("cifar10", 50)]
    table = judged("fig7", [*reaching, whole("cifar10", 50, 120.0, 0, 150, False)])
    assert table["agree"][HIGHER] == "so far no"
    assert "CIFAR-10 at H = 50: 0 of 1 run reached 56.0%" in table["ours"][HIGHER]
    longer_first = [whole("cifar10", 50, 120.0, seed, rounds, False) for seed, rounds in enumerate((120, 60))]
    table = judged("fig7", [*reaching, *longer_first])
    assert table["agree"][HIGHER] == "so far yes"
    unreached = "CIFAR-10 at H = 50 (120 of 150 rounds, its target not reached)"
    assert f"Missing: {unreached}" in table["evidence"][HIGHER]
    assert unreached in table["agree"][CIFAR], "the longest run says how far this H has come"


def test_a_comparison_of_two_h_does_not_name_the_runs_of_another() -> None:
    evidence = judged("fig7", runs())["evidence"]
    assert "at H = 10" in evidence[EXPENSIVE]
    assert "at H = 10" not in evidence[HALF]


def test_a_few_of_150_rounds_test_no_claim_on_the_target() -> None:
    verdicts = answers("fig7", runs(ten=6))
    assert verdicts[TEN].startswith("not tested: needs H = 10 for 150 rounds, or to its target; missing: Fashion-MNIST")
    assert "(6 of 150 rounds, its target not reached)" in verdicts[TEN]
    assert all(answer.startswith("not tested") for answer in answers("fig7", []))


def test_costs_need_runs_at_the_target_with_the_claimed_h() -> None:
    without = [run for run in runs() if run.config.scheduling.num_scheduled != 30]
    verdicts = judged("fig7", without)
    assert says(verdicts["agree"][FASHION], "not tested", "Fashion-MNIST", "H = 30", "another H", "87.5%")
    under_way = [*without, *(whole("fashion_mnist", 30, 1.0, seed, 40, False) for seed in range(5))]
    verdicts = judged("fig7", under_way)
    assert "Fashion-MNIST at H = 30 (40 of 150 rounds, its target not reached)" in verdicts["agree"][FASHION]
    part = [run for run in runs() if run.config.scheduling.num_scheduled in (30, 50)]
    verdicts = judged("fig7", part)
    assert verdicts["agree"][FASHION] == "so far yes"
    assert "Missing: Fashion-MNIST at H = 70, 100" in verdicts["evidence"][FASHION]


def test_a_tie_is_not_the_lowest() -> None:
    even = {data: by | {30: 100.0, 50: 100.0} for data, by in COSTS.items()}
    table = judged("fig7", runs(costs=even))
    assert [table["agree"][number] for number in (FASHION, CIFAR)] == ["no", "no"]
    assert "H = 30 against 50: 100 J and 100 J (a tie)" in table["ours"][FASHION]


def test_a_run_whose_seed_others_lack_is_named() -> None:
    extra = whole("fashion_mnist", 30, 1e9, seed=9)
    table = judged("fig7", [*runs(), extra])
    assert table["agree"][FASHION] == "yes"
    assert f"{extra.name} (no run to compare has its seed)" in table["evidence"][FASHION]


def test_an_h_with_one_seed_takes_no_seed_from_the_others() -> None:
    dense = [run for run in runs(3) if run.config.scheduling.num_scheduled != 70]
    lone = whole("fashion_mnist", 70, 200.0)
    before, table = judged("fig7", dense), judged("fig7", [*dense, lone])
    assert list(table["agree"]) == list(before["agree"])
    assert table["ours"][FASHION] == before["ours"][FASHION]
    lone_seed = "Missing: needs a second seed of Fashion-MNIST at H = 30, Fashion-MNIST at H = 70"
    assert says(table["evidence"][FASHION], "3 of 5 seeds (0, 1, 2)", lone_seed)


def test_seeds_of_h_10_that_miss_the_target_take_no_seed_from_the_other_h() -> None:
    missing = [whole("fashion_mnist", 10, 80.0, seed, 150, False) for seed in range(4)]
    higher_h = [run for run in runs() if run.config.scheduling.num_scheduled != 10]
    table = judged("fig7", [*higher_h, *missing, whole("fashion_mnist", 10, 80.0, 4)])
    assert table["agree"][FASHION] == "yes"
    assert "Fashion-MNIST at H = 10 at the target with seed 0, 1, 2, 3" in table["evidence"][FASHION]


def test_seeds_that_only_h_10_has_do_not_keep_h_10_from_the_comparison() -> None:
    higher_h = [run for run in runs(3) if run.config.scheduling.num_scheduled != 10]
    cheaper = [whole("fashion_mnist", 10, 80.0, seed) for seed in range(5)]
    unended = [whole("fashion_mnist", 10, 80.0, seed, 60, False) for seed in range(5, 10)]
    table = judged("fig7", [*higher_h, *cheaper, *unended])
    assert table["agree"][FASHION] == "so far no"
    assert says(table["ours"][FASHION], "H = 30 against 10: 100 J and 80 J", "H = 30 against 50: 100 J and 150 J")
    assert "3 of 5 seeds (0, 1, 2)" in table["evidence"][FASHION]
    assert "5 runs at H = 10 (60 of 150 rounds, its target not reached)" in table["evidence"][FASHION]


def test_ikcs_runs_of_figure_3_are_borrowed_up_to_their_targets() -> None:
    """`whole` reaches its target in round 26 of 30, and not at all with ``reach=False``."""
    reaching, short = whole("fashion_mnist", 30, 100.0), whole("fashion_mnist", 10, 80.0, reach=False)
    vkc = run({metrics.ACCURACY: [0.9]}, "scheduling.name=vkc")
    lender = sweep("fig3_fashion_scheduling", [reaching, short, vkc])
    lent = borrow(lender)
    assert [len(each.rounds) for each in lent] == [26, 30]
    assert lent[0].last(metrics.TOTAL_OBJECTIVE) == 100.0
    assert [each.target for each in lent] == [0.875, 0.875]
    only = with_borrowed({lender.name: lender}, EXHIBITS.values())["fig7_framework"]
    assert [each.part for each in only.runs] == ["fig3_fashion_scheduling"] * 2
    assert set(only.parts) == {"fig3_fashion_scheduling"}


def test_an_own_run_of_the_same_trial_is_not_borrowed() -> None:
    own, lent = whole("fashion_mnist", 30, 100.0), whole("fashion_mnist", 30, 200.0)
    sweeps: dict[str, Sweep] = {
        "fig7_framework": sweep("fig7_framework", [own]), "fig3_fashion_scheduling": sweep("fig3", [lent])
    }  # fmt: skip
    both = with_borrowed(sweeps, EXHIBITS.values())
    assert both["fig7_framework"].runs == [own]
    assert both["fig3_fashion_scheduling"].runs == [lent]


def test_borrowed_runs_that_may_still_reach_the_target_are_counted_beside_the_verdict() -> None:
    short = [whole("fashion_mnist", 10, 80.0, seed, 60, False) for seed in range(4)]
    table = judged("fig7", [*short, whole("fashion_mnist", 10, 80.0, 4)])
    assert table["agree"][TEN] == "so far no"
    assert says(
        table["ours"][TEN], "1 of 1 run reached 87.5% in round 26,", "4 more of fewer rounds may still reach it"
    )


def test_unlike_shares_say_who_reaches_the_target() -> None:
    as_guessed = [run for run in runs() if run.config.data.name == "fashion_mnist"]
    verdicts = answers("fig7_unlike", as_guessed)
    assert verdicts[:2] == ["yes", "yes"]
    assert says(verdicts[2], "not tested", "Fashion-MNIST at H = 10 (its target is not reached in 150 rounds)")
    all_reach = [whole("fashion_mnist", h, cost, seed) for h, cost in ((10, 80.0), (30, 100.0)) for seed in range(5)]
    assert answers("fig7_unlike", all_reach) == ["no", "yes", "no"]
    none_reaches = [whole("fashion_mnist", 30, 100.0, seed, 150, False) for seed in range(5)]
    assert answers("fig7_unlike", none_reaches)[1] == "no"


def test_runs_with_weight_decay_are_judged_by_the_claims_that_cifar_decides() -> None:
    cifar = [run for run in runs() if run.config.data.name == "cifar10"]
    of_figure_7 = dict(zip(judged("fig7", runs())["the paper"], answers("fig7", runs()), strict=True))
    table = judged("fig7_decay", cifar)
    assert set(table["the paper"]) == {text for text in of_figure_7 if "Fashion" not in text}
    assert not table["agree"].str.contains("not tested").any()
    assert {text: of_figure_7[text] for text in table["the paper"] if "CIFAR" in text} == {
        text: answer for text, answer in zip(table["the paper"], table["agree"], strict=True) if "CIFAR" in text
    }
