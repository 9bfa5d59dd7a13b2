"""The paper's figures and tables: what runs each, how it is drawn, what is claimed of it, and whether we agree.

A claim is tested on whatever runs there are: what the runs cannot tell is said, and an answer from a part of the sweep
is marked "so far".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.errors import ConfigError, nearest
from hflray.report import figures
from hflray.report.figures import Draw, over_seeds
from hflray.report.runs import Run, Sweep, pretty

TARGETS = {"fashion_mnist": 0.875, "cifar10": 0.56}
NEAR = 0.25  # a ratio within this share of the paper's agrees with it


class CannotTell(Exception):
    """The runs do not tell; the message says what would."""


@dataclass(frozen=True)
class Verdict:
    """What our runs say of a claim, in numbers, and whether that agrees."""

    ours: str
    agrees: bool


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in words, its test, and our guess why, should we differ."""

    text: str
    test: Callable[[Sweep], Verdict]
    guess: str = ""


@dataclass(frozen=True)
class Exhibit:
    """A figure or table: its label, the sweep file, what it shows, its drawings by file stem, and its claims."""

    label: str
    config: str
    shows: str
    drawings: dict[str, Draw]
    claims: tuple[Claim, ...] = ()


def _split(runs: list[Run], key: str) -> dict[int | str, list[Run]]:
    """Runs by the value of a dotted key, smallest first."""
    found: dict[int | str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.settings[key], []).append(run)
    return dict(sorted(found.items(), key=lambda item: str(item[0]).zfill(6)))


def _schedulers(sweep: Sweep) -> dict[int | str, dict[int | str, list[Run]]]:
    """Runs by H, then by scheduler; those H that have at least IKC and one more."""
    split = {h: _split(runs, "scheduling.name") for h, runs in _split(sweep.runs, figures.H).items()}
    found = {h: by for h, by in split.items() if "ikc" in by and len(by) > 1}
    if not found:
        raise CannotTell("needs runs of IKC and of another scheduler at one H")
    return found


def _common(groups: dict[int | str, list[Run]]) -> float:
    """The target if all reached it, else the highest accuracy that every group's mean curve reached."""
    best = min(float(over_seeds(runs, metrics.ACCURACY)["mean"].max()) for runs in groups.values())
    target = TARGETS.get(next(iter(groups.values()))[0].config.data.name, 1.0)
    return min(best, target)


def _first(runs: list[Run], accuracy: float) -> int:
    """The first round in which the mean curve has this accuracy, which it has."""
    mean = over_seeds(runs, metrics.ACCURACY)["mean"]
    return int(mean.index[mean >= accuracy][0])


def above(sweep: Sweep) -> Verdict:
    """IKC's curve lies above the others: mean difference over the rounds that both have."""
    texts, gaps = [], []
    for h, by in _schedulers(sweep).items():
        mine = over_seeds(by["ikc"], metrics.ACCURACY)["mean"]
        for other in [name for name in by if name != "ikc"]:
            both = 100 * (mine - over_seeds(by[other], metrics.ACCURACY)["mean"]).dropna()
            gaps.append(float(both.mean()))
            seeds = f"{len(by['ikc'])} seed{'s' if len(by['ikc']) > 1 else ''}"
            texts.append(f"H = {h}: {gaps[-1]:+.2f} points over {pretty(other)} (mean of {len(both)} rounds, {seeds})")
    return Verdict("; ".join(texts), all(gap > 0 for gap in gaps))


def sooner(sweep: Sweep) -> Verdict:
    """Rounds to the target: IKC before VKC before FedAvg."""
    texts, agree = [], []
    for h, by in _schedulers(sweep).items():
        accuracy = _common(by)
        rounds = [_first(by[name], accuracy) for name in ("ikc", "vkc", "fedavg") if name in by]
        names = [pretty(name) for name in ("ikc", "vkc", "fedavg") if name in by]
        pairs = ", ".join(f"{name} {count}" for name, count in zip(names, rounds, strict=True))
        texts.append(f"H = {h}: {pairs} rounds to {accuracy:.1%}")
        agree.append(rounds == sorted(rounds))
    return Verdict("; ".join(texts), all(agree))


def closer(sweep: Sweep) -> Verdict:
    """The difference between the schedulers shrinks with H."""
    gaps = {}
    for h, by in _schedulers(sweep).items():
        if "fedavg" in by:
            curves = [over_seeds(by[name], metrics.ACCURACY)["mean"] for name in ("ikc", "fedavg")]
            gaps[h] = 100 * float((curves[0] - curves[1]).dropna().mean())
    if len(gaps) < 2:
        raise CannotTell("needs IKC and FedAvg at two H at least")
    values = list(gaps.values())
    text = ", ".join(f"H = {h}: {gap:+.2f}" for h, gap in gaps.items())
    return Verdict(f"IKC over FedAvg in points: {text}", values == sorted(values, reverse=True))


def more_devices(sweep: Sweep) -> Verdict:
    """More devices a round: fewer rounds to the same accuracy."""
    by = _split([run for run in sweep.runs if run.config.scheduling.name == "ikc"], figures.H)
    if len(by) < 2:
        raise CannotTell("needs IKC at two H at least")
    accuracy = _common(by)
    rounds = {h: _first(runs, accuracy) for h, runs in by.items()}
    values = list(rounds.values())
    text = ", ".join(f"H = {h}: {count}" for h, count in rounds.items())
    return Verdict(f"IKC's rounds to {accuracy:.1%}: {text}", values == sorted(values, reverse=True))


def steadier(sweep: Sweep) -> Verdict:
    """The spread over seeds falls with H."""
    by = {h: runs for h, runs in _split(_main(sweep), figures.H).items() if len({run.seed for run in runs}) > 1}
    if len(by) < 2:
        raise CannotTell("needs two seeds at two H at least")
    spreads = {}
    for h, runs in by.items():
        per_data = _split(runs, figures.DATA).values()
        spreads[h] = 100 * float(np.mean([over_seeds(part, metrics.ACCURACY)["std"].mean() for part in per_data]))
    values = list(spreads.values())
    text = ", ".join(f"H = {h}: {value:.2f}" for h, value in spreads.items())
    return Verdict(f"standard deviation of IKC's accuracy in points: {text}", values == sorted(values, reverse=True))


def _main(sweep: Sweep) -> list[Run]:
    return [run for run in sweep.runs if run.config.scheduling.name == "ikc"]


def ratio(sweep: Sweep, metric: str, what: str, paper: dict[str, float]) -> Verdict:
    """VKC's clustering over IKC's, by data set, beside the paper's."""
    texts, agree = [], []
    for data, expected in paper.items():
        runs = [run for run in sweep.runs if run.config.data.name == data]
        by = _split(runs, "scheduling.name")
        if "ikc" in by and "vkc" in by:
            found = float(np.mean([r.last(metric) for r in by["vkc"]]) / np.mean([r.last(metric) for r in by["ikc"]]))
            texts.append(f"{pretty(data)}: {found:.0f} × (the paper: {expected:.0f} ×)")
            agree.append(abs(found / expected - 1) <= NEAR)
    if not texts:
        raise CannotTell("needs the clustering of IKC and VKC on one data set")
    return Verdict(f"{what} {', '.join(texts)}", all(agree))


def perfect(sweep: Sweep) -> Verdict:
    """Clusters are the majority classes: ARI 1.0 everywhere."""
    found = {label: [run.last(metrics.CLUSTERING_ARI) for run in runs] for label, runs in sweep.groups().items()}
    found = {label: values for label, values in found.items() if np.isfinite(values).all()}
    if not found:
        raise CannotTell("needs runs that cluster: IKC's or VKC's")
    text = "; ".join(f"{label}: {np.mean(values):.3f} (least {min(values):.3f})" for label, values in found.items())
    return Verdict(text, all(np.mean(values) >= 0.9995 for values in found.values()))


def settles(sweep: Sweep) -> Verdict:
    """The return of an episode rises and settles around 17 of 50; with the paper's teacher, if there is such a run."""
    found: dict[str, tuple[float, float]] = {}
    papers: list[tuple[float, float]] = []
    for label, runs in sweep.groups().items():
        series = [one for run in runs if len(one := run.series(metrics.ASSIGNER_RETURN)) >= 10]
        if series:
            tenths = [max(1, len(one) // 10) for one in series]
            first = float(np.mean([one.iloc[:few].mean() for one, few in zip(series, tenths, strict=True)]))
            last = float(np.mean([one.iloc[-few:].mean() for one, few in zip(series, tenths, strict=True)]))
            found[label or sweep.name] = first, last
            teacher = runs[0].config.learning.teacher
            papers += [(first, last)] if (teacher.name, teacher.start) == ("hfel", "geographic") else []
    if not found:
        raise CannotTell("needs ten points of a learning curve")
    text = "; ".join(f"{label}: from {first:.1f} to {last:.1f}" for label, (first, last) in found.items())
    judged = papers or list(found.values())
    agrees = all(last > first and abs(last - 17) <= 2 for first, last in judged)
    return Verdict(f"{text} (means of the first and last tenth)", agrees)


def _assigners(sweep: Sweep, metric: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for run in sweep.runs:
        if run.config.allocation.coupling == "per_edge" and not run.settings["assignment.polish_ms"]:
            name = run.config.assignment.name
            label = f"HFEL-{run.config.assignment.exchanges}" if name == "hfel" else pretty(name)
            values = run.series(metric)
            found[label] = float(values.median() if metric == metrics.WALL_ASSIGN_S else values.mean())
    return found


PAPERS = ("D3QN", "HFEL-100", "HFEL-300", "geographic")  # the assigners of Figure 6


def lowest(sweep: Sweep, winner: str, metric: str, form: str) -> Verdict:
    """Of the paper's assigners, `winner` has the lowest mean of a metric."""
    found = {name: value for name, value in _assigners(sweep, metric).items() if name in PAPERS}
    if winner not in found or len(found) < 2:
        raise CannotTell(f"needs {winner} beside another of {', '.join(PAPERS)}")
    text = ", ".join(f"{name} {form.format(value)}" for name, value in sorted(found.items(), key=lambda item: item[1]))
    return Verdict(text, min(found, key=lambda name: found[name]) == winner)


def quick(sweep: Sweep) -> Verdict:
    """D3QN and geographic assign faster than HFEL."""
    found = {name: 1e3 * value for name, value in _assigners(sweep, metrics.WALL_ASSIGN_S).items() if name in PAPERS}
    slow = [value for name, value in found.items() if name.startswith("HFEL")]
    fast = [value for name, value in found.items() if not name.startswith("HFEL")]
    if "D3QN" not in found or not slow:
        raise CannotTell("needs D3QN and HFEL")
    text = ", ".join(f"{name} {value:.2f} ms" for name, value in sorted(found.items(), key=lambda item: item[1]))
    return Verdict(text, max(fast) < min(slow))


def _ended(sweep: Sweep, data: str) -> dict[int | str, list[Run]]:
    """Runs of a data set by H; those that have ended."""
    return _split([run for run in sweep.runs if run.ended and run.config.data.name == data], figures.H)


def _reaches(runs: list[Run]) -> bool:
    return all(run.reached(TARGETS[run.config.data.name]) is not None for run in runs)


def too_few(sweep: Sweep) -> Verdict:
    """H = 10 does not reach the targets."""
    texts, agree = [], []
    for data in TARGETS:
        runs = _ended(sweep, data).get(10)
        if runs:
            best = max(float(run.series(metrics.ACCURACY).max()) for run in runs)
            rounds = max(int(run.rounds["round"].iloc[-1]) for run in runs)
            texts.append(f"{pretty(data)}: {best:.1%} at best in {rounds} rounds (target {TARGETS[data]:.1%})")
            agree.append(not any(run.reached(TARGETS[data]) for run in runs))
    if not texts:
        raise CannotTell("needs ended runs at H = 10")
    return Verdict("; ".join(texts), all(agree))


def _means(sweep: Sweep, data: str, metric: str) -> dict[int, float]:
    """Mean totals by H of the runs that reached the target."""
    groups = {h: runs for h, runs in _ended(sweep, data).items() if _reaches(runs)}
    if len(groups) < 2:
        raise CannotTell(f"needs two H at least that reached {TARGETS[data]:.1%} on {pretty(data)}")
    return {int(h): float(np.mean([run.last(metric) for run in runs])) for h, runs in groups.items()}


def best_h(sweep: Sweep, data: str, metric: str, expected: int, largest: bool = False) -> Verdict:
    """The H with the smallest (or largest) total of a metric."""
    scale, unit = (1 / 8e6, "MB") if metric == metrics.TOTAL_MESSAGE_BITS else (1.0, "J")
    means = {h: value * scale for h, value in _means(sweep, data, metric).items()}
    text = ", ".join(f"H = {h}: {value:,.0f} {unit}" for h, value in means.items())
    found = (max if largest else min)(means, key=lambda h: means[h])
    return Verdict(text, found == expected)


def all_is_dear(sweep: Sweep) -> Verdict:
    """H = 100 costs most: objective, T and E."""
    texts, agree = [], []
    names = ((metrics.TOTAL_OBJECTIVE, "objective"), (metrics.TOTAL_DELAY_S, "T"), (metrics.TOTAL_ENERGY_J, "E"))
    for data in TARGETS:
        for metric, what in names:
            try:
                means = _means(sweep, data, metric)
            except CannotTell:
                continue
            if 100 in means:
                most = max(means, key=lambda h: means[h])
                texts.append(f"{pretty(data)}, {what}: most at H = {most}")
                agree.append(most == 100)
    if not texts:
        raise CannotTell("needs H = 100 and another H that reached the target")
    return Verdict("; ".join(texts), all(agree))


def half_is_enough(sweep: Sweep) -> Verdict:
    """H = 50 reaches the target and costs less than all devices."""
    texts, agree = [], []
    for data in TARGETS:
        try:
            means = _means(sweep, data, metrics.TOTAL_OBJECTIVE)
        except CannotTell:
            continue
        if {50, 100} <= set(means):
            texts.append(f"{pretty(data)}: objective {means[50]:,.0f} J at H = 50, {means[100]:,.0f} J at H = 100")
            agree.append(means[50] < means[100])
    if not texts:
        raise CannotTell("needs H = 50 and H = 100, both to the target")
    return Verdict("; ".join(texts), all(agree))


def third_saves(sweep: Sweep) -> Verdict:
    """H = 30 spends less energy than H = 50 and sends less a round."""
    texts, agree = [], []
    for data in TARGETS:
        try:
            energy = _means(sweep, data, metrics.TOTAL_ENERGY_J)
            bits = _means(sweep, data, metrics.ROUND_MESSAGE_BITS)
        except CannotTell:
            continue
        if {30, 50} <= set(energy):
            texts.append(f"{pretty(data)}: {energy[30]:,.0f} J and {bits[30] / 8e6:.0f} MB a round at H = 30, "
                         f"{energy[50]:,.0f} J and {bits[50] / 8e6:.0f} MB at H = 50")  # fmt: skip
            agree.append(energy[30] < energy[50] and bits[30] < bits[50])
    if not texts:
        raise CannotTell("needs H = 30 and H = 50, both to the target")
    return Verdict("; ".join(texts), all(agree))


UNEVEN = "our partition gives every device the same majority share, and the paper does not say how it drew the rest"
SCHEDULING = (
    Claim("IKC's learning curve lies above VKC's and FedAvg's", above, UNEVEN),
    Claim("rounds to the target accuracy: IKC ≤ VKC ≤ FedAvg", sooner, UNEVEN),
    Claim("the difference between the three shrinks as H grows", closer),
    Claim("more scheduled devices reach the same accuracy in fewer rounds", more_devices),
    Claim("more scheduled devices: a smaller spread over the five runs", steadier),
)
UNPUBLISHED = (
    "depends on choices the paper does not publish: noise, D_n drawn, how its clustering is assigned and billed"
)
PATIENCE = "we stop at 150 rounds; the paper does not say where it stops"
EXHIBITS: dict[str, Exhibit] = {
    "fig3": Exhibit(
        "Figure 3", "fig3_fashion_scheduling", "accuracy by round of IKC, VKC and FedAvg, H = 10 to 70, Fashion-MNIST",
        {"fig3": figures.curves}, SCHEDULING,
    ),
    "fig4": Exhibit(
        "Figure 4", "fig4_cifar_scheduling", "accuracy by round of IKC, VKC and FedAvg, H = 10 to 70, CIFAR-10",
        {"fig4": figures.curves}, SCHEDULING,
    ),
    "table2": Exhibit(
        "Table II", "table2_clustering", "delay, energy and ARI of the clustering (Algorithm 2)",
        {"table2": figures.clustering_bars},
        (
            Claim("the mini model clusters 41 × (CIFAR-10: 81 ×) faster than VKC's model",
                  partial(ratio, metric=metrics.CLUSTERING_DELAY_S, what="delay",
                          paper={"fashion_mnist": 41.0, "cifar10": 81.0}), UNPUBLISHED),
            Claim("and takes 29 × (56 ×) less energy",
                  partial(ratio, metric=metrics.CLUSTERING_ENERGY_J, what="energy",
                          paper={"fashion_mnist": 29.0, "cifar10": 56.0}), UNPUBLISHED),
            Claim("at an ARI of 1.0 for all", perfect, "some devices' weights end nearer to another class's"),
        ),
    ),
    "fig5": Exhibit(
        "Figure 5", "fig5_assigner_learning", "the learning curve of the D3QN assigner", {"fig5": figures.learning},
        (
            Claim("the return of an episode rises and settles around 17 of 50", settles,
                  "17 is the ceiling of HFEL's labels from the geographic start; from the best-gain start it is 27"),
        ),
    ),
    "fig6": Exhibit(
        "Figure 6", "fig6_assignment", "T, E, objective and latency of the assigners over 100 fleets",
        {"fig6": figures.assignment_bars},
        (
            Claim("D3QN has the lowest delay T",
                  partial(lowest, winner="D3QN", metric=metrics.ROUND_DELAY_S, form="{:.1f} s")),
            Claim("HFEL-300 has the lowest energy E",
                  partial(lowest, winner="HFEL-300", metric=metrics.ROUND_ENERGY_J, form="{:.1f} J")),
            Claim("D3QN has the lowest objective",
                  partial(lowest, winner="D3QN", metric=metrics.ROUND_OBJECTIVE, form="{:.1f} J")),
            Claim("D3QN and geographic decide quickly, HFEL slowly", quick,
                  "our allocation is exact in microseconds, so that HFEL's search is quick as well"),
        ),
    ),
    "fig7": Exhibit(
        "Figure 7", "fig7_framework", "the whole framework to its target accuracies, H = 10 to 100, both data sets",
        {"fig7": figures.framework},
        (
            Claim("H = 10 cannot reach the target accuracies", too_few, PATIENCE),
            Claim("Fashion-MNIST: the objective is lowest at H = 30",
                  partial(best_h, data="fashion_mnist", metric=metrics.TOTAL_OBJECTIVE, expected=30)),
            Claim("CIFAR-10: the objective is lowest at H = 50",
                  partial(best_h, data="cifar10", metric=metrics.TOTAL_OBJECTIVE, expected=50)),
            Claim("CIFAR-10: H = 30 sends the most bytes in total",
                  partial(best_h, data="cifar10", metric=metrics.TOTAL_MESSAGE_BITS, expected=30, largest=True)),
            Claim("scheduling all (H = 100) costs most of all: objective, T and E", all_is_dear),
            Claim("the spread over seeds falls with H", steadier),
            Claim("half of the devices is enough in general", half_is_enough),
            Claim("30 % where energy and messages a round matter most", third_saves),
        ),
    ),
    "lambda": Exhibit(
        "Beyond the paper: λ", "lambda_sweep", "seconds against joules over λ", {"lambda_pareto": figures.pareto}
    ),
    "noniid": Exhibit(
        "Beyond the paper: how uneven the labels are", "noniid_sweep", "IKC and FedAvg over partitions",
        {"noniid": figures.curves},
    ),
}  # fmt: skip


def exhibit(name: str) -> Exhibit:
    """The exhibit called `name`. Raises ConfigError: there is none."""
    if name not in EXHIBITS:
        known = ", ".join(EXHIBITS)
        raise ConfigError(f"--figure: unknown figure '{name}'{nearest(name, EXHIBITS)}; accepted: {known}")
    return EXHIBITS[name]


def exhibit_of(sweep: Sweep) -> str | None:
    """The name of the exhibit that a sweep's file is for, or None."""
    name = sweep.name.removesuffix("-smoke")
    return next((key for key, value in EXHIBITS.items() if value.config == name), None)


def verdicts(shown: Exhibit, sweep: Sweep, wanted: int) -> pd.DataFrame:
    """The claims beside what our runs say.

    Args:
        shown: the exhibit.
        sweep: runs of its configuration.
        wanted: how many runs the whole configuration has; with fewer that have ended, answers are "so far".
    """
    whole = sum(run.ended for run in sweep.runs) >= wanted
    rows = []
    for claim in shown.claims:
        try:
            verdict = claim.test(sweep)
            answer = ("" if whole else "so far ") + ("yes" if verdict.agrees else "no")
            guess = "" if verdict.agrees else claim.guess
            rows.append((claim.text, verdict.ours, answer, guess))
        except CannotTell as reason:
            rows.append((claim.text, "", f"not tested: {reason}", ""))
    return pd.DataFrame(rows, columns=["the paper", "ours", "agree", "if not, our guess why"])
