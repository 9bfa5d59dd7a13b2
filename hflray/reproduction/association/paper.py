"""A question on which the field disagrees: one paper finds that the association of devices with edges does not affect
convergence, and another builds on its effect. `hflray.reproduction.association.schedulers` has the associations.

With Q = 1 the cloud's mean is that of all devices, whatever the association is. So the question is about Q > 1.
"""

from __future__ import annotations

from functools import partial

from hflray.report import figures
from hflray.report.runs import Run
from hflray.reproduction.contests import Contest, is_near, learns_faster
from hflray.reproduction.evidence import Claim, Needs
from hflray.reproduction.exhibits import Exhibit
from hflray.reproduction.papers import Paper
from hflray.support.references import short

BALANCED, ALIKE, DEALT, COST = "class balance", "alike devices", "no look at classes", "cost"
NAMES = {"Balanced": BALANCED, "Alike": ALIKE, "Dealt": DEALT, "fedavg": COST}
FREE = ("scheduling.name", "data.majority_fraction", "training.edge_iterations")
ONCE, FIVE, TWENTY = "Q = 1", "Q = 5", "Q = 20"


def _case(run: Run) -> str:
    return f"Q = {run.config.training.edge_iterations}, majority {run.config.data.majority_fraction:g}"


CONTEST = Contest(FREE, case_of=_case, name_of=lambda run: NAMES.get(short(run.config.scheduling.name), ""))


def _cases(*iterations: str) -> list[str]:
    return [f"{text}, majority {share}" for text in iterations for share in ("0.8", "1")]


NEEDS = Needs(least_seeds=2, seeds=10, least_steps=2, steps=2)
near = partial(is_near, contest=CONTEST, within=1.0, by="last")
faster = partial(learns_faster, contest=CONTEST, by="last")
CLAIMS = (
    Claim(
        "with Q = 1 the association has no effect (arithmetic)", NEEDS,
        partial(near, pairs=[(BALANCED, ALIKE), (BALANCED, COST)], cases=_cases(ONCE)),
    ),
    Claim(
        "with Q = 5 or 20 it has no effect: class balance ends within one point of no look at classes", NEEDS,
        partial(near, pairs=[(BALANCED, DEALT)], cases=_cases(FIVE, TWENTY)),
    ),
    Claim(
        "class balance ends higher than no look at classes", NEEDS,
        partial(faster, pairs=[(BALANCED, DEALT)], cases=_cases(FIVE, TWENTY)),
    ),
    Claim(
        "class balance ends higher than alike devices", NEEDS,
        partial(faster, pairs=[(BALANCED, ALIKE)], cases=_cases(FIVE, TWENTY)),
    ),
    Claim(
        "class balance ends higher than association by cost", NEEDS,
        partial(faster, pairs=[(BALANCED, COST)], cases=_cases(FIVE, TWENTY)),
    ),
)  # fmt: skip
EXHIBITS = {
    "association": Exhibit(
        "The question", "association", "accuracy after equally much training, by association, majority and Q, digits",
        {"association": figures.curves}, CLAIMS,
    ),
}  # fmt: skip
PAPER = Paper(
    name="association",
    title="Does it matter for accuracy at which edge a device trains?",
    source="a question on which papers disagree",
    about="association by class balance, by likeness, by cost and without a look, ten seeds",
    takes=("about 25 minutes", "the same"),
    full=EXHIBITS,
    quick=EXHIBITS,
)
