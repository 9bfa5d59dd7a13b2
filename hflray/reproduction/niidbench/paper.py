"""NIID-Bench (Li, Diao, Chen, He: "Federated learning on non-IID data silos", 2022) as Flower ran it again, which found
that SCAFFOLD collapses with few labels a client, where FedAvg and FedProx do not.

Flower reports the best accuracy of a run, and so do the claims here.
"""

from __future__ import annotations

from functools import partial

from hflray.report import figures
from hflray.report.labels import pretty
from hflray.report.runs import Run
from hflray.reproduction.contests import Contest, is_near, learns_faster
from hflray.reproduction.evidence import Claim, Needs
from hflray.reproduction.exhibits import Exhibit
from hflray.reproduction.papers import Paper

FEDAVG, SCAFFOLD, PROX, NOVA = pretty("fedavg"), "SCAFFOLD", "FedProx", "FedNova"
RULES = {"sgd": FEDAVG, "scaffold": SCAFFOLD, "fedprox": PROX, "fednova": NOVA}
IID, DIRICHLET = pretty("iid"), pretty("dirichlet")
ONE, TWO, THREE = "1 label", "2 labels", "3 labels"
FREE = ("data.partition", "data.partition_options.", "training.rule.")


def _case(run: Run) -> str:
    if run.config.data.partition != "shards":
        return pretty(run.config.data.partition)
    count = run.config.data.partition_options.get("labels_per_device", 2)
    return f"{count} label{'s' if count > 1 else ''}"


def _rule(run: Run) -> str:
    return RULES.get(run.config.training.rule.name, "")


BY_RULE = Contest(FREE, case_of=_case, name_of=_rule)
BY_CASE = Contest(FREE, case_of=_rule, name_of=_case)


def claims(seeds: int, rounds: int) -> tuple[Claim, ...]:
    """Return the claims. The whole evidence is `seeds` and `rounds`; half of the rounds is the least."""
    needs = Needs(least_seeds=2, seeds=seeds, least_steps=rounds // 2, steps=rounds)
    higher = partial(learns_faster, by="best")
    near = partial(is_near, contest=BY_RULE, by="best")
    return (
        Claim(
            "with IID data all four rules end within one point of FedAvg", needs,
            partial(near, pairs=[(SCAFFOLD, FEDAVG), (PROX, FEDAVG), (NOVA, FEDAVG)], cases=[IID], within=1.0),
        ),
        Claim(
            "FedProx ends within one point of FedAvg with Dirichlet, 2 and 3 labels", needs,
            partial(near, pairs=[(PROX, FEDAVG)], cases=[DIRICHLET, TWO, THREE], within=1.0),
        ),
        Claim(
            "the fewer labels a client has, the lower FedAvg ends: 1 < 2 < 3 labels < IID", needs,
            partial(higher, contest=BY_CASE, pairs=[(TWO, ONE), (THREE, TWO), (IID, THREE)], cases=[FEDAVG]),
        ),
        Claim(
            "SCAFFOLD collapses with 1 and 2 labels: it ends lower than FedAvg", needs,
            partial(higher, contest=BY_RULE, pairs=[(FEDAVG, SCAFFOLD)], cases=[ONE, TWO]), SCALE,
        ),
        Claim(
            "FedNova ends lower than FedAvg with 1 and 2 labels", needs,
            partial(higher, contest=BY_RULE, pairs=[(FEDAVG, NOVA)], cases=[ONE, TWO]), SAME,
        ),
    )  # fmt: skip


SCALE = (
    "with momentum our variates are divided by how far it carries a gradient, and Flower's by the rate alone, so that "
    "they are up to ten times a gradient"
)
SAME = "clients have equally many samples here, so that FedNova's factors are all alike and it is FedAvg"
PAPER = Paper(
    name="niidbench",
    title="Federated learning on non-IID data silos (NIID-Bench), as Flower ran it again",
    source="Li, Diao, Chen, He 2022",
    about="FedAvg, SCAFFOLD, FedProx and FedNova over five partitions, without a hierarchy",
    takes=("about 38 hours on two CPUs (estimated)", "about 15 minutes"),
    full={
        "niidbench": Exhibit(
            "Table of Fashion-MNIST", "niidbench", "best accuracy of four rules over five partitions, Fashion-MNIST",
            {"niidbench": figures.curves}, claims(3, 50),
        ),
    },
    quick={
        "niidbench_quick": Exhibit(
            "In small", "niidbench_quick", "best accuracy of four rules over five partitions, digits, 20 rounds",
            {"niidbench_quick": figures.curves}, claims(5, 20),
        ),
    },
)  # fmt: skip
