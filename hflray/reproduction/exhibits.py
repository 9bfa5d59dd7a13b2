"""The paper's figures and tables, each with its sweep file, its drawings, and the paper's claims with our verdicts.

To add an exhibit, add an `Exhibit` to `EXHIBITS` below. It names the sweep file in ``tune_configs/`` that makes its
runs, its drawings (functions ``Sweep -> Figure``, such as those of `hflray.report.figures`) by the stem of their file,
and the paper's claims about it, if there are any. Claims live in a file of `hflray.reproduction.zhang`. Each claim
states its `Needs` and has a test, a function ``(sweep, needs) -> Finding`` that raises `NotTested` without the least
evidence (`hflray.reproduction.evidence`). The command, the page, RESULTS.md and ``list`` follow from the entry. The
exhibit's runs are exported to a folder with the name of the sweep file, or in parts to folders below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from hflray.errors import ConfigError, nearest
from hflray.report import figures
from hflray.report.figures import Draw
from hflray.report.ranking import REFERENCE
from hflray.report.runs import Run, Sweep
from hflray.reproduction.evidence import Claim, NotTested
from hflray.reproduction.zhang import assignment, clustering, framework, learning, plateau, scheduling


@dataclass(frozen=True)
class Exhibit:
    """A figure or table of the paper, or one of ours.

    Attributes:
        label: its name in the paper.
        config: the stem of the sweep file that makes its runs.
        shows: what it shows.
        drawings: its drawings by the stem of their file.
        claims: the claims about it.
        summarised: whether RESULTS.md has the summary of its groups besides the ranking of its schedulers.
        claimant: whose the claims are, which heads their column.
        reference: the scheduler that the ranking compares the others with.
        borrows: functions that return the runs of another exhibit's sweep that are this exhibit's as well, by the name
            of that sweep.
    """

    label: str
    config: str
    shows: str
    drawings: dict[str, Draw]
    claims: tuple[Claim, ...] = ()
    claimant: str = "the paper"
    summarised: bool = True
    reference: str = REFERENCE
    borrows: Mapping[str, Callable[[Sweep], list[Run]]] = field(default_factory=dict)


EXHIBITS: dict[str, Exhibit] = {
    "fig3": Exhibit(
        "Figure 3", "fig3_fashion_scheduling", "accuracy by round of IKC, VKC and FedAvg, H = 10 to 70, Fashion-MNIST",
        {"fig3": figures.curves}, scheduling.claims(60),
    ),
    "fig4": Exhibit(
        "Figure 4", "fig4_cifar_scheduling", "accuracy by round of IKC, VKC and FedAvg, H = 10 to 70, CIFAR-10",
        {"fig4": figures.curves}, scheduling.claims(100),
    ),
    "table2": Exhibit(
        "Table II", "table2_clustering", "delay, energy and ARI of the clustering (Algorithm 2)",
        {"table2": figures.clustering_bars}, clustering.CLAIMS,
    ),
    "fig5": Exhibit(
        "Figure 5", "fig5_readings", "Algorithm 5 by the readings that the paper leaves open, with their ceilings",
        {"fig5": figures.readings}, learning.CLAIMS_BY_READING,
    ),
    "fig5_transitions": Exhibit(
        "Figure 5 with single transitions", "fig5_literal",
        "Algorithm 5 with 128 single transitions a minibatch, linear gains and the geographic start",
        {"fig5_transitions": figures.learning}, learning.CLAIMS,
    ),
    "fig5_more": Exhibit(
        "Beyond Figure 5", "fig5_assigner_learning",
        "the D3QN assigner learning with other features and teachers than the paper's",
        {"fig5_more": figures.learning},
    ),
    "fig6": Exhibit(
        "Figure 6", "fig6_assignment", "T, E, objective and latency of the assigners over 100 fleets",
        {"fig6": figures.assignment_bars}, assignment.CLAIMS,
    ),
    "fig7": Exhibit(
        "Figure 7", "fig7_framework", "the whole framework to its target accuracies, H = 10 to 100, both data sets",
        {"fig7": figures.framework}, framework.CLAIMS,
        borrows={"fig3_fashion_scheduling": framework.borrow, "fig4_cifar_scheduling": framework.borrow},
    ),
    "lambda": Exhibit(
        "Beyond the paper: λ", "lambda_sweep", "seconds against joules over λ", {"lambda_pareto": figures.pareto}
    ),
    "noniid": Exhibit(
        "Beyond the paper: how uneven the labels are", "noniid_sweep", "IKC and FedAvg over partitions",
        {"noniid": figures.curves},
    ),
    "fig3_unlike": Exhibit(
        "Figure 3 with unlike majority shares", "fig3_unlike_shares",
        "accuracy by round of IKC, VKC and FedAvg, H = 10, Fashion-MNIST by Dirichlet(0.05)",
        {"fig3_unlike": figures.curves}, scheduling.claims_with_unlike_shares(60),
    ),
    "fig7_unlike": Exhibit(
        "Figure 7 with unlike majority shares", "fig7_unlike_shares",
        "the framework to its target accuracy, H = 10 and 30, Fashion-MNIST by Dirichlet(0.05)",
        {"fig7_unlike": figures.framework}, framework.claims_with_unlike_shares(),
    ),
    "fig7_plateau": Exhibit(
        "What keeps Figure 7 below its target on CIFAR-10", "fig7_plateau",
        "accuracy by round at H = 10 with other mini-batches, weight decay, single steps and IID data",
        {"fig7_plateau": figures.curves}, plateau.claims(), claimant="our guess",
    ),
    "fig7_decay": Exhibit(
        "Figure 7 with weight decay", "fig7_weight_decay",
        "the framework to its target accuracy with a weight decay of 0.005, H = 10 to 100, CIFAR-10",
        {"fig7_decay": figures.framework}, framework.claims_with_weight_decay(),
    ),
    "joint": Exhibit(
        "Beyond the paper: devices and edges in one step", "joint_cost",
        "joint_cost against IKC with local search, to 92 % on digits", {"joint_cost": figures.ranks},
    ),
    "benchmark": Exhibit(
        "Beyond the paper: the benchmark of schedulers", "benchmark_scheduling",
        "all schedulers to a target accuracy, with two assigners, on two data sets, over three partitions",
        {"benchmark": figures.ranks}, summarised=False,
    ),
    "equal": Exhibit(
        "Beyond the paper: schedulers that learn from delays", "benchmark_equal",
        "Oort, UCB, IKC and FedAvg with equal bandwidth, where a device's delay is its own, to 80 % on digits",
        {"equal": figures.ranks}, summarised=False,
    ),
    "agent": Exhibit(
        "Beyond the paper: an agent learns to schedule", "scheduling_agent",
        "RLlib's PPO on hflray/Scheduling-v0, and what it needs to 85 % on held-out fleets", {"agent": figures.agent},
    ),
    "agent_trained": Exhibit(
        "Beyond the paper: the learned scheduler where devices train", "scheduling_agent_trained",
        "the policy of scheduling_agent.yaml against energy_aware and others, to 85 % on digits",
        {"agent_trained": figures.ranks}, summarised=False, reference="energy_aware",
    ),
}  # fmt: skip


def exhibit(name: str) -> Exhibit:
    """Return the exhibit called `name`. Raises ConfigError: there is none."""
    if name not in EXHIBITS:
        accepted = ", ".join(EXHIBITS)
        raise ConfigError(f"--figure: unknown figure '{name}'{nearest(name, EXHIBITS)}; accepted: {accepted}")
    return EXHIBITS[name]


def exhibit_of(sweep: Sweep) -> str | None:
    """Return the name of the exhibit that a sweep belongs to, or None."""
    name = sweep.name.removesuffix("-smoke")
    return next((key for key, value in EXHIBITS.items() if value.config == name), None)


def with_borrowed(sweeps: Mapping[str, Sweep], exhibits: Iterable[Exhibit]) -> dict[str, Sweep]:
    """Return sweeps by name, each with the runs that its exhibit borrows; of two runs of a trial, with its own.

    An exhibit that has borrowed runs only gets a sweep of these.
    """
    whole = dict(sweeps)
    for shown in exhibits:
        for lender, choose in shown.borrows.items():
            if lender not in sweeps:
                continue
            own = whole.get(shown.config, Sweep(shown.config, shown.config, sweeps[lender].task, shown.shows, []))
            trials = {run.identity for run in own.runs}
            runs = [
                replace(run, part="/".join(filter(None, (lender, run.part))))
                for run in choose(sweeps[lender])
                if run.identity not in trials
            ]
            if runs:
                parts = own.parts | {run.part: "borrowed, each run up to its target" for run in runs}
                whole[shown.config] = replace(own, runs=[*own.runs, *runs], parts=parts)
    return whole


def verdicts(shown: Exhibit, sweep: Sweep) -> pd.DataFrame:
    """Return one row per claim of the exhibit, with our numbers, our answer and its evidence."""
    rows = []
    for claim in shown.claims:
        try:
            finding = claim.test(sweep, claim.needs)
        except NotTested as reason:
            rows.append((claim.text, "", f"not tested: {reason}", "", ""))
            continue
        guess = claim.guess if finding.answer.removeprefix("so far ") == "no" else ""
        rows.append((claim.text, finding.ours, finding.answer, finding.evidence_text, guess))
    return pd.DataFrame(rows, columns=[shown.claimant, "ours", "agree", "evidence", "if not, our guess why"])
