"""HierFAVG: client-edge-cloud hierarchical federated averaging (Liu, Zhang, Song, Letaief: "Client-edge-cloud
hierarchical federated learning", 2020, arXiv 1905.06641).

In its words κ₁ is the number of local steps before an edge averages, and κ₂ the number of edge averages in a round.
With κ₂ = 1 and κ₁ = 60 it is plain federated averaging with a cloud behind relays ("cloud-only" below).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from hflray import metrics
from hflray.report import figures
from hflray.report.labels import pretty
from hflray.report.runs import Run, Sweep
from hflray.reproduction.contests import Contest, is_near, learns_faster, spends_less
from hflray.reproduction.evidence import Claim, Finding, Needs, NotTested
from hflray.reproduction.exhibits import Exhibit
from hflray.reproduction.papers import Paper

PARTITION, STEPS, ITERATIONS = "data.partition", "training.local_iterations", "training.edge_iterations"
FREE = (PARTITION, STEPS, ITERATIONS)
KAPPA = (60, 30, 15, 6)  # κ₁ of the sweep files, with κ₁κ₂ = 60
CLOUD_ONLY, MOST_OFTEN = f"κ₁ = {KAPPA[0]}", f"κ₁ = {KAPPA[-1]}"
EDGE_NIID, EDGE_IID, IID = (pretty(name) for name in ("edge_noniid", "edge_iid", "iid"))


def _kappa(run: Run) -> str:
    steps = run.config.training.local_iterations
    return f"κ₁ = {steps}" if steps * run.config.training.edge_iterations == KAPPA[0] else ""


def _partition(run: Run) -> str:
    return pretty(run.config.data.partition)


BEST_FIRST = ("yes", "so far yes", "not settled", "so far no", "no")

BY_KAPPA = Contest(FREE, case_of=_partition, name_of=_kappa)
BY_PARTITION = Contest(FREE, case_of=_kappa, name_of=_partition)


def best_between(sweep: Sweep, needs: Needs, target: float) -> Finding:
    """Test whether one κ₁ between the ends needs less energy to an accuracy than both ends, by the best of them.

    Raises:
        NotTested: none of them has the least evidence beside both ends.
    """
    findings: list[Finding] = []
    reasons: list[str] = []
    for kappa in KAPPA[1:-1]:
        pairs = [(f"κ₁ = {kappa}", end) for end in (CLOUD_ONLY, MOST_OFTEN)]
        try:
            findings.append(
                spends_less(
                    sweep, needs, contest=BY_KAPPA, pairs=pairs, cases=[EDGE_NIID], metric=metrics.TOTAL_ENERGY_J,
                    target=target,
                )
            )  # fmt: skip
        except NotTested as reason:
            reasons.append(str(reason))
    if not findings:
        raise NotTested("; ".join(reasons))
    return min(findings, key=lambda finding: BEST_FIRST.index(finding.answer))


def costs(needs: Needs, target: float) -> tuple[Claim, ...]:
    """Return the claims about what is spent on edge-NIID data until the accuracy `target`."""
    often = [(f"κ₁ = {fewer}", CLOUD_ONLY) for fewer in KAPPA[1:]]
    spends = partial(spends_less, contest=BY_KAPPA, cases=[EDGE_NIID], target=target)
    return (
        Claim(
            "the hierarchy needs less time to a target accuracy than cloud-only averaging", needs,
            partial(spends, pairs=often, metric=metrics.TOTAL_DELAY_S), UPLINK,
        ),
        Claim(
            "it needs less energy to a target accuracy than cloud-only averaging", needs,
            partial(spends, pairs=often, metric=metrics.TOTAL_ENERGY_J), UPLINK,
        ),
        Claim(
            "a κ₁ in between needs the least energy", needs,
            partial(best_between, target=target), UPLINK,
        ),
    )  # fmt: skip


def claims(seeds: int, rounds: int, target: float) -> tuple[Claim, ...]:
    """Return the claims.

    Args:
        seeds, rounds: the whole evidence. Half of the rounds is the least, because curves cross before that.
        target: the accuracy to which seconds and joules are counted, on edge-NIID data.
    """
    needs = Needs(least_seeds=2, seeds=seeds, least_steps=rounds // 2, steps=rounds)
    steps = [(f"κ₁ = {fewer}", f"κ₁ = {more}") for more, fewer in pairwise(KAPPA)]
    return (
        Claim(
            "for a fixed κ₁κ₂ a smaller κ₁ learns faster in rounds", needs,
            partial(learns_faster, contest=BY_KAPPA, pairs=steps, cases=[EDGE_NIID, EDGE_IID]),
        ),
        Claim(
            "edge-IID data are nearly as good as IID data if edges average often (κ₁ = 6)", needs,
            partial(is_near, contest=BY_PARTITION, pairs=[(EDGE_IID, IID)], cases=[MOST_OFTEN], within=2.0),
        ),
        Claim(
            "edge-NIID data stay behind edge-IID data (κ₁ = 6)", needs,
            partial(learns_faster, contest=BY_PARTITION, pairs=[(EDGE_IID, EDGE_NIID)], cases=[MOST_OFTEN]),
        ),
        *costs(needs, target),
    )  # fmt: skip


UPLINK = (
    "the bill is ours and not theirs: an upload to an edge is dear beside a step, and the hop to the cloud is cheap, "
    "while their cloud is ten times as far as an edge"
)
PAPER = Paper(
    name="hierfavg",
    title="Client-edge-cloud hierarchical federated learning (HierFAVG)",
    source="arXiv 1905.06641",
    about="how often edges average, how labels lie over edges, and the time and energy to a target",
    takes=("about 2.5 hours on two CPUs (three times one seed)", "about 20 minutes"),
    full={
        "hierfavg": Exhibit(
            "Figures 2 to 4, Table II", "hierfavg", "accuracy and cost by κ₁ and partition, Fashion-MNIST",
            {"hierfavg": figures.curves}, claims(3, 100, 0.45),
        ),
    },
    quick={
        "hierfavg_quick": Exhibit(
            "In small", "hierfavg_quick", "accuracy and cost by κ₁ and partition, digits, 20 rounds",
            {"hierfavg_quick": figures.curves}, claims(5, 20, 0.8),
        ),
        "hierfavg_far_quick": Exhibit(
            "In small, with a far cloud", "hierfavg_far_quick", "cost by κ₁ if a cloud hop takes ten uploads, digits",
            {"hierfavg_far_quick": figures.curves}, costs(Needs(2, 5, 10, 20), 0.8),
        ),
    },
)  # fmt: skip
