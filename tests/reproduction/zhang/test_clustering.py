"""hflray.reproduction.zhang.clustering: Table II's ratios and ARI."""

from __future__ import annotations

from hflray import metrics
from hflray.report.runs import Run
from tests.report.fabricated import answers, judged, run

PAPER = {("fashion_mnist", "ikc"): (3.1, 23.5), ("fashion_mnist", "vkc"): (128.0, 671.0),
         ("cifar10", "ikc"): (3.1, 23.5), ("cifar10", "vkc"): (252.6, 1317.0)}  # fmt: skip


def cluster(data: str, scheduler: str, seed: int, delay: float, energy: float, ari: float = 1.0) -> Run:
    names = (metrics.CLUSTERING_DELAY_S, metrics.CLUSTERING_ENERGY_J, metrics.CLUSTERING_ARI)
    values = dict(zip(names, ([delay], [energy], [ari]), strict=True))
    return run(values, f"data.name={data}", f"scheduling.name={scheduler}", f"seed={seed}")


def table(seeds: int = 5, **instead: tuple[float, ...]) -> list[Run]:
    runs = []
    for (data, scheduler), values in PAPER.items():
        costs = instead.get(f"{data}_{scheduler}", values)
        runs += [cluster(data, scheduler, seed, *costs) for seed in range(seeds)]
    return runs


def test_the_papers_own_table_agrees() -> None:
    assert answers("table2", table(), "clustering") == ["yes", "yes", "yes"]


def test_fewer_seeds_or_one_data_set_are_so_far() -> None:
    assert answers("table2", table(1), "clustering") == ["so far yes"] * 3
    half = [run for run in table() if run.config.data.name == "cifar10"]
    verdicts = judged("table2", half, "clustering")
    assert list(verdicts["agree"]) == ["so far yes"] * 3
    assert "Missing: needs runs of IKC on Fashion-MNIST, VKC on Fashion-MNIST" in verdicts["evidence"][0]


def test_one_ratio_far_from_the_papers_is_a_no() -> None:
    verdicts = judged("table2", table(cifar10_vkc=(100.0, 1317.0, 0.9)), "clustering")
    assert list(verdicts["agree"]) == ["no", "yes", "no"]
    assert "CIFAR-10: 32 ×, by seed 32 to 32 × (the paper: 81 ×)" in verdicts["ours"][0]
    assert verdicts["if not, our guess why"][0]
    assert not verdicts["if not, our guess why"][1]
    assert answers("table2", table(2, cifar10_vkc=(100.0, 1317.0)), "clustering")[0] == "so far no"


def test_one_imperfect_ari_settles_the_claim() -> None:
    assert answers("table2", table(1, cifar10_vkc=(252.6, 1317.0, 0.9)), "clustering")[2] == "no"


def test_without_vkc_no_ratio_is_tested() -> None:
    alone = [run for run in table() if run.config.scheduling.name == "ikc"]
    verdicts = answers("table2", alone, "clustering")
    assert verdicts[0].startswith("not tested: needs runs of VKC on Fashion-MNIST")
    assert verdicts[2] == "so far yes"
    assert all(answer.startswith("not tested") for answer in answers("table2", [], "clustering"))
