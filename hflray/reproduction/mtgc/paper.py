"""MTGC: hierarchical federated learning with multi-timescale gradient correction (Fang et al. 2024, arXiv 2409.18448).

Its authors compare both corrections with each half alone and with plain averages (HFedAvg), where the labels differ
between edges, between the devices of an edge, or both.
"""

from __future__ import annotations

from functools import partial

from hflray.report import figures
from hflray.report.runs import Run
from hflray.reproduction.contests import Contest, learns_faster
from hflray.reproduction.evidence import Claim, Needs
from hflray.reproduction.exhibits import Exhibit
from hflray.reproduction.papers import Paper

BOTH, DEVICES, EDGES, PLAIN = "MTGC", "its half of the devices", "its half of the edges", "plain averages"
METHODS = {"both": BOTH, "devices": DEVICES, "edges": EDGES}
CASES = {(True, True): "both differ", (True, False): "edges differ", (False, True): "devices differ"}
FREE = ("data.partition_options.", "training.rule.")


def _method(run: Run) -> str:
    rule = run.config.training.rule
    if rule.name == "sgd":
        return PLAIN
    return METHODS[rule.options.get("corrections", "both")] if rule.name == "mtgc" else ""


def _case(run: Run) -> str:
    options = run.config.data.partition_options
    # The default of both is 0.1.
    heterogeneous = tuple(options.get(name, 0.1) is not None for name in ("edge_alpha", "device_alpha"))
    return CASES.get((heterogeneous[0], heterogeneous[1]), "neither differs")


CONTEST = Contest(FREE, case_of=_case, name_of=_method)


def claims(seeds: int, rounds: int) -> tuple[Claim, ...]:
    """Return the claims. The whole evidence is `seeds` and `rounds`; a third of the rounds is the least."""
    needs = Needs(least_seeds=2, seeds=seeds, least_steps=rounds // 3, steps=rounds)
    faster = partial(learns_faster, contest=CONTEST, cases=list(CASES.values()))
    return (
        Claim(
            "MTGC learns faster than each of its halves in all three cases", needs,
            partial(faster, pairs=[(BOTH, DEVICES), (BOTH, EDGES)]), HALF,
        ),
        Claim(
            "each half learns faster than plain averages in all three cases", needs,
            partial(faster, pairs=[(DEVICES, PLAIN), (EDGES, PLAIN)]), HALF,
        ),
        Claim(
            "MTGC learns faster than plain averages in all three cases", needs, partial(faster, pairs=[(BOTH, PLAIN)]),
        ),
    )  # fmt: skip


HALF = "where only edges differ the devices of an edge are alike, and the half of the devices has nothing to correct"
PAPER = Paper(
    name="mtgc",
    title="Hierarchical federated learning with multi-timescale gradient correction (MTGC)",
    source="arXiv 2409.18448",
    about="two corrections, each alone and neither, under three kinds of heterogeneity",
    takes=("about 83 hours on two CPUs (estimated)", "about 10 minutes"),
    full={
        "mtgc": Exhibit(
            "Figures of accuracy by round", "mtgc", "MTGC, its halves and plain averages, Fashion-MNIST",
            {"mtgc": figures.curves}, claims(3, 100),
        ),
    },
    quick={
        "mtgc_quick": Exhibit(
            "In small", "mtgc_quick", "MTGC, its halves and plain averages, digits, 20 rounds",
            {"mtgc_quick": figures.curves}, claims(5, 20),
        ),
    },
)  # fmt: skip
