"""hflray.reproduction.association.schedulers: what each association does with classes, by hand and in a run."""

from __future__ import annotations

import numpy as np

from hflray.config import ExperimentConfig, load_config
from hflray.experiment import Experiment
from hflray.reproduction.association.schedulers import Alike, Balanced, Dealt

# Six devices of one class each, two of each class.
PURE = np.array([[9, 0, 0], [9, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9], [0, 0, 9]])
PLACE = "hflray.reproduction.association.schedulers:"


def edges(kind: type, counts: np.ndarray, num_edges: int) -> list[int]:
    return list(kind(num_devices=len(counts), num_scheduled=len(counts)).deal(counts, num_edges))


def test_balance_gives_each_edge_each_class() -> None:
    dealt = np.array(edges(Balanced, PURE, 2))
    for edge in (0, 1):
        assert PURE[dealt == edge].sum(axis=0).tolist() == [9, 9, 9]


def test_alike_devices_share_an_edge() -> None:
    assert edges(Alike, PURE, 3) == [0, 0, 1, 1, 2, 2]
    assert edges(Alike, PURE[::-1], 3) == [2, 2, 1, 1, 0, 0]


def test_without_a_look_the_numbers_decide() -> None:
    assert edges(Dealt, PURE, 3) == [0, 1, 2, 0, 1, 2]


def test_all_give_even_numbers_and_balance_is_the_most_even() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.multinomial(40, rng.dirichlet(np.full(10, 0.2), 29))
        far = {}
        for kind in (Balanced, Dealt, Alike):
            dealt = np.array(edges(kind, counts, 3))
            assert sorted(np.bincount(dealt)) == [9, 10, 10]
            held = np.array([counts[dealt == edge].sum(axis=0) for edge in range(3)])
            far[kind] = ((held - counts.sum(axis=0) / 3) ** 2).sum()
        assert far[Balanced] < far[Dealt] <= far[Alike]


def config(name: str, iterations: int) -> ExperimentConfig:
    return load_config(None, [
        f"scheduling.name={PLACE}{name}", "fleet.num_devices=9", "fleet.num_edges=3", "scheduling.num_scheduled=9",
        "model.name=logistic", "data.samples_per_device=[20, 20]", "data.majority_fraction=1.0", "max_rounds=2",
        "training.backend=serial", f"training.edge_iterations={iterations}", "training.local_iterations=1",
        "data.partition=majority",
    ])  # fmt: skip


def losses_of(config: ExperimentConfig) -> list[float]:
    with Experiment(config) as experiment:
        return [record.test_loss for record in experiment]


def test_the_association_matters_with_more_than_one_edge_iteration_only() -> None:
    """With Q = 1 the cloud's mean is that of all devices, but for rounding."""
    losses = {(name, q): losses_of(config(name, q)) for name in ("Balanced", "Alike") for q in (1, 3)}
    np.testing.assert_allclose(losses["Balanced", 1], losses["Alike", 1], rtol=1e-5)
    assert abs(losses["Balanced", 3][-1] - losses["Alike", 3][-1]) > 1e-3
