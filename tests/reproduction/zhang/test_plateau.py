"""hflray.reproduction.zhang.plateau: each variant of the training is compared with Figure 7's on the same seeds."""

from __future__ import annotations

from hflray import metrics
from hflray.report.runs import Run
from tests.report.fabricated import answers, judged, run

GAINS = {  # points of accuracy by the setting that a variant changes
    "training.batch_size=16": 0.2,
    "training.batch_size=256": -2.0,
    "training.weight_decay=0.005": 2.0,
    "training.local_iteration=step": 2.0,
    "data.partition=iid": 5.0,
}
AWAY = {2: 2.0}  # by seed, what single steps lose there, so that their gain is not settled


def one(*settings: str, gain: float = 0.0, seed: int = 0, rounds: int = 60, h: int = 10) -> Run:
    """Return a run whose last ten rounds have 50 %, the gain and a fifth of a point per seed; the others have 10 %."""
    accuracy = [0.1] * (rounds - 10) + [0.5 + (gain + seed / 5) / 100] * 10
    return run({metrics.ACCURACY: accuracy}, "data.name=cifar10", f"scheduling.num_scheduled={h}", f"seed={seed}",
               "training.local_iteration=epoch", *settings)  # fmt: skip


def runs(seeds: int, rounds: int = 60) -> list[Run]:
    variants = [
        one(setting, gain=gain - (AWAY.get(seed, 0.0) if setting.endswith("step") else 0.0), seed=seed, rounds=rounds)
        for setting, gain in GAINS.items()
        for seed in range(seeds)
    ]
    return [*(one(seed=seed, rounds=rounds) for seed in range(seeds)), *variants]


def test_a_variant_raises_the_accuracy_or_not() -> None:
    assert answers("fig7_plateau", runs(5)) == ["no", "no", "yes", "yes", "yes"]
    assert answers("fig7_plateau", runs(3)) == ["so far no", "so far no", "so far yes", "not settled", "so far yes"]
    table = judged("fig7_plateau", runs(3))
    assert table["ours"][0] == "50.4 and 50.2 %, +0.20 ± 0.00 points (a tie)"
    assert table["ours"][4] == "55.2 and 50.2 %, +5.00 ± 0.00 points"
    assert table["evidence"][4] == "3 of 5 seeds (0, 1, 2), the first 60 rounds"
    assert next(iter(table)) == "our guess"


def test_one_seed_or_fewer_rounds_test_nothing_and_another_h_is_not_compared() -> None:
    for few in (runs(1), runs(3, rounds=59)):
        assert {answer.split(":")[0] for answer in answers("fig7_plateau", few)} == {"not tested"}
    with_others = [*runs(2), *(one("training.weight_decay=0.005", gain=9.0, seed=seed, h=30) for seed in range(2))]
    assert judged("fig7_plateau", with_others)["ours"][2] == "52.1 and 50.1 %, +2.00 ± 0.00 points"
    missing = judged("fig7_plateau", [one(seed=seed) for seed in range(3)])["agree"]
    assert missing[0] == "not tested: needs runs of batch size 16"
    assert missing[4] == "not tested: needs runs of IID"
