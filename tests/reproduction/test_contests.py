"""hflray.reproduction.contests: what is faster, nearer and cheaper, by numbers worked out by hand."""

from __future__ import annotations

from functools import partial

import pytest

from hflray import metrics
from hflray.report.runs import Run
from hflray.reproduction.contests import Contest, is_near, learns_faster, spends_less
from hflray.reproduction.evidence import Needs, NotTested
from tests.report.fabricated import run, sweep

NEEDS = Needs(least_seeds=2, seeds=3, least_steps=2, steps=4)
CONTEST = Contest(
    ("scheduling.name", "data.partition"), lambda one: one.config.data.partition, lambda one: one.config.scheduling.name
)
PAIR = [("ikc", "fedavg")]
faster = partial(learns_faster, contest=CONTEST, pairs=PAIR, cases=["iid"])


def runs(scheduler: str, curves: list[list[float]], partition: str = "iid", pace_s: float = 10.0) -> list[Run]:
    """Return a run for each curve, whose rounds take `pace_s`, s."""
    return [
        run(
            {metrics.ACCURACY: curve, metrics.TOTAL_DELAY_S: [pace_s * (n + 1) for n in range(len(curve))]},
            f"scheduling.name={scheduler}", f"data.partition={partition}", f"seed={seed}",
        )
        for seed, curve in enumerate(curves)
    ]  # fmt: skip


LOW = [[0.1, 0.3, 0.5, 0.7], [0.1, 0.3, 0.5, 0.71], [0.1, 0.3, 0.5, 0.72]]
HIGH = [[0.2, 0.4, 0.6, 0.8], [0.2, 0.4, 0.6, 0.82], [0.2, 0.4, 0.6, 0.81]]


def test_the_higher_curve_learns_faster() -> None:
    """The means over four rounds differ by 10, 10.25 and 9.75 points: 10 ± 4.303 · 0.25/√3 = 0.62."""
    both = sweep("s", runs("ikc", HIGH) + runs("fedavg", LOW))
    finding = faster(both, NEEDS)
    assert finding.answer == "yes"
    assert finding.ours == "iid: ikc against fedavg +10.00 ± 0.62 points"
    backwards = learns_faster(both, NEEDS, contest=CONTEST, pairs=[("fedavg", "ikc")], cases=["iid"])
    assert backwards.answer == "no"


def test_less_evidence_gives_so_far_and_too_little_none() -> None:
    some = sweep("s", runs("ikc", HIGH[:2]) + runs("fedavg", LOW))
    assert faster(some, NEEDS).answer == "so far yes"
    with pytest.raises(NotTested, match="needs a second seed of ikc, iid, fedavg, iid"):
        faster(sweep("s", runs("ikc", HIGH[:1]) + runs("fedavg", LOW)), NEEDS)
    with pytest.raises(NotTested, match="needs runs of fedavg, iid"):
        faster(sweep("s", runs("ikc", HIGH)), NEEDS)


def test_every_case_has_to_agree_and_an_absent_one_is_missing() -> None:
    both = [*runs("ikc", HIGH), *runs("fedavg", LOW)]
    turned = [*runs("ikc", LOW, "dirichlet"), *runs("fedavg", HIGH, "dirichlet")]
    cases = ["iid", "dirichlet"]
    found = learns_faster(sweep("s", both + turned), NEEDS, contest=CONTEST, pairs=PAIR, cases=cases)
    assert found.answer == "no"
    partly = learns_faster(sweep("s", both), NEEDS, contest=CONTEST, pairs=PAIR, cases=cases)
    assert partly.answer == "so far yes"
    assert partly.missing == ["needs runs of ikc, dirichlet, fedavg, dirichlet"]


def test_other_settings_that_differ_are_not_compared() -> None:
    other = [
        run({metrics.ACCURACY: curve}, "scheduling.name=ikc", "data.partition=iid", f"seed={seed}", "fleet.num_edges=7")
        for seed, curve in enumerate(HIGH[:1])
    ]
    finding = faster(sweep("s", [*runs("ikc", HIGH), *runs("fedavg", LOW), *other]), NEEDS)
    assert finding.answer == "yes"
    assert "fleet.num_edges=7" in finding.evidence_text


def test_near_means_that_the_whole_interval_is_near() -> None:
    """The difference is 10 ± 0.62 points."""
    both = sweep("s", runs("ikc", HIGH) + runs("fedavg", LOW))
    answers = [
        is_near(both, NEEDS, contest=CONTEST, pairs=PAIR, cases=["iid"], within=within).answer for within in (11, 10, 9)
    ]
    assert answers == ["yes", "not settled", "no"]


def spent(mine: list[Run], yours: list[Run], target: float) -> tuple[str, str]:
    finding = spends_less(
        sweep("s", mine + yours), NEEDS, contest=CONTEST, pairs=PAIR, cases=["iid"],
        metric=metrics.TOTAL_DELAY_S, target=target,
    )  # fmt: skip
    return finding.answer, finding.ours


def test_who_reaches_the_target_sooner_has_spent_less() -> None:
    """60 % is reached after three rounds of 10 s, and after four of 10 s."""
    answer, ours = spent(runs("ikc", HIGH), runs("fedavg", LOW), 0.6)
    assert answer == "yes"
    assert ours == "iid: ikc against fedavg 0.75 times the s (medians 30 and 40) to 60%"
    # With rounds of 20 s it needs 60 s against 40 s.
    assert spent(runs("ikc", HIGH, pace_s=20), runs("fedavg", LOW), 0.6)[0] == "no"


def test_a_censored_run_that_may_need_less_settles_nothing() -> None:
    """75 % is never reached by the lower curves, after 40 s; the higher ones need 40 s, or 400 s."""
    answer, ours = spent(runs("ikc", HIGH, pace_s=9), runs("fedavg", LOW), 0.75)
    assert answer == "yes"
    assert "with 3 of 6 runs that miss it" in ours
    assert spent(runs("ikc", HIGH, pace_s=100), runs("fedavg", LOW), 0.75)[0] == "not settled"
    # Nobody reaches it.
    assert spent(runs("ikc", HIGH, pace_s=9), runs("fedavg", LOW), 0.95)[0] == "not settled"
