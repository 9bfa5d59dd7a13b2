"""Async-HFL: asynchronous updates on both levels, with a selection of devices and their association (Yu et al.:
"Async-HFL: Efficient and robust asynchronous federated learning in hierarchical IoT networks", 2023, arXiv 2301.06646).

Its abstract claims 1.08 to 1.31 times the speed of others and up to 21.6 % less traffic, and its ablation crosses
selection with association. The sweep files say what stands for either here.
"""

from __future__ import annotations

from functools import partial

from hflray import metrics
from hflray.report import figures
from hflray.report.runs import Run
from hflray.reproduction.contests import Contest, spends_less
from hflray.reproduction.evidence import Claim, Needs
from hflray.reproduction.exhibits import Exhibit
from hflray.reproduction.papers import Paper

CLOCKS = {"synchronous": "synchronous", "semi_synchronous": "semi-synchronous"}
NEITHER, SELECTION, ASSOCIATION, BOTH = "neither", "selection", "association", "both"
ABLATION = {
    ("fedavg", "random"): NEITHER, ("oort", "random"): SELECTION, ("fedavg", "local_search"): ASSOCIATION,
    ("oort", "local_search"): BOTH,
}  # fmt: skip
WORLD = "one world"


def _name(run: Run) -> str:
    kind = run.config.clock.cloud.kind
    choice = ABLATION.get((run.config.scheduling.name, run.config.assignment.name), "")
    if run.config.clock.edge.asynchronous is not None:
        return choice if kind == "asynchronous" else ""
    return CLOCKS.get(kind, "") if choice == NEITHER else ""


CONTEST = Contest(("clock.", "scheduling.name", "assignment.name"), case_of=lambda run: WORLD, name_of=_name)


def claims(seeds: int, rounds: int, target: float) -> tuple[Claim, ...]:
    """Return the claims. The whole evidence is `seeds` and `rounds`, in which runs reach the accuracy `target`."""
    needs = Needs(least_seeds=2, seeds=seeds, least_steps=rounds // 3, steps=rounds)
    spends = partial(spends_less, contest=CONTEST, cases=[WORLD], target=target)
    against_clocks = [(BOTH, name) for name in CLOCKS.values()]
    time, traffic = metrics.TOTAL_DELAY_S, metrics.TOTAL_MESSAGE_BITS
    return (
        Claim(
            "Async-HFL needs less time to a target than synchronous and semi-synchronous clouds", needs,
            partial(spends, pairs=against_clocks, metric=time),
        ),
        Claim("it needs less traffic than both", needs, partial(spends, pairs=against_clocks, metric=traffic), MANY),
        Claim(
            "selection and association together need less time than either alone", needs,
            partial(spends, pairs=[(BOTH, SELECTION), (BOTH, ASSOCIATION)], metric=time),
        ),
        Claim(
            "either alone needs less time than neither", needs,
            partial(spends, pairs=[(SELECTION, NEITHER), (ASSOCIATION, NEITHER)], metric=time),
        ),
    )  # fmt: skip


MANY = "each arrival is damped, so that more uploads are needed; the paper's synchronous baselines wait for all devices"
PAPER = Paper(
    name="asynchfl",
    title="Asynchronous federated learning in hierarchical IoT networks (Async-HFL)",
    source="arXiv 2301.06646",
    about="time and traffic to a target beside other clocks; selection and association crossed",
    takes=("about 10 hours on two CPUs (three times seed 0)", "about 15 minutes"),
    full={
        "asynchfl": Exhibit(
            "Its comparison and its ablation", "asynchfl", "time and traffic to 75 %, Fashion-MNIST",
            {"asynchfl": figures.curves}, claims(3, 100, 0.75),
        ),
    },
    quick={
        "asynchfl_quick": Exhibit(
            "In small", "asynchfl_quick", "time and traffic to 90 %, digits, a fifth of slow devices",
            {"asynchfl_quick": figures.curves}, claims(5, 60, 0.9),
        ),
    },
)  # fmt: skip
