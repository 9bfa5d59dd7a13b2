"""Protocols: which claims an exhibit is judged by, and how, written before its runs are made (``claims.yaml``).

A file ``claims.yaml`` lies beside the sweep files of a paper. It names selections of settings (``select``), and for
each figure or table its sweep file, its drawings, its plan and its claims. A claim compares one selection with another
one, or with a number, in each of its cases. It says what is measured (`Endpoint`), on which scale, which answer the
paper gives, and how large a difference would have to be to matter (`Claim.margin`, with the reason). The plan says how
many seeds or fleets there are to be, how many rounds, on which split of the data, and how likely any of the exhibit's
answers may be wrong by chance. `hflray.reproduction.judge` gives the answers.

The placeholders ``{case}``, ``{one}`` and ``{other}`` in a claim's text make a claim of its own for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hflray import metrics
from hflray.config import Split
from hflray.config.explanations import explain
from hflray.errors import ConfigError, nearest
from hflray.report.ranking import REFERENCE
from hflray.report.runs import SweepRecord
from hflray.support.reader import parse_yaml, read_bytes
from hflray.support.shipped import CLAIMS, CONFIGS
from hflray.support.text import shorten

FOLDER = Path(__file__).parent
PAPERS = {"zhang": CONFIGS} | {
    name: FOLDER / name for name in ("mtgc", "hierfavg", "asynchfl", "niidbench", "tsdp", "association")
}
Settings = dict[str, Any]  # dotted keys and the values that a run must have
Least = Annotated[int, Field(ge=1)]
Two = Annotated[int, Field(ge=2)]  # one seed has no interval
Share = Annotated[float, Field(gt=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Endpoint(_Part):
    """What is measured of a run.

    Attributes:
        metric: a metric of the glossary.
        by: its mean over the rounds, its best or its last value; of a study of fleets, each value (None). The best
            round is that of the validation part where there is one.
        over: number of rounds in the moving mean whose best or last value counts, and by which a target is passed.
        until: the accuracy at whose first passage the metric is read, in place of `by`.
        common: whether a lower accuracy counts if not all compared runs pass `until`: the highest that all pass.
    """

    metric: str = metrics.ACCURACY
    by: Literal["mean", "best", "last"] | None = None
    over: Least = 5
    until: Share | None = None
    common: bool = False

    @model_validator(mode="after")
    def _has_a_best(self) -> Endpoint:
        row = metrics.METRICS.get(self.metric)
        if self.by == "best" and row is not None and not row.better:
            raise ValueError(f"by: {self.metric} has no best value; ask for its mean or its last value")
        return self


class Claim(_Part):
    """A claim.

    Attributes:
        text: the claim in words.
        compare: pairs of names of selections; with `to`, one name may stand alone.
        at: the cases, by the names of selections; all have to agree. Without one, all runs are one case.
        change: pairs of cases in place of `at`. What is judged is how far the comparison in the first exceeds that in
            the second.
        endpoint: what is measured.
        scale: ``points`` of a share, ``difference``, or ``log`` for ratios.
        expect: whether the first is more, less or near.
        to: the number that stands in place of the second selection, or to which the comparison is related: a ratio
            on the scale ``log``.
        margin: the least difference that matters; a ratio on the scale ``log``. It decides what is near. Of more or
            less it says whether the difference is one that matters, and never the answer alone.
        reason: the reason of the margin.
        every: whether each single unit has to agree, as arithmetic says, in place of the mean.
        seeds, rounds: the plan of this claim, where it is not the exhibit's.
        guess: our guess why the answer is no, should it be.
        note: what a reader of any answer has to know.
        not_tested: the reason why no plan of ours can test the claim.
    """

    text: str
    compare: list[list[str]] = []
    at: list[str] = []
    change: list[list[str]] = []
    endpoint: Endpoint = Endpoint()
    scale: Literal["points", "difference", "log"] = "difference"
    expect: Literal["more", "less", "near"] = "more"
    to: float | None = None
    margin: Annotated[float, Field(gt=0)] | None = None
    reason: str = ""
    every: bool = False
    seeds: Two | None = None
    rounds: Least | None = None
    guess: str = ""
    note: str = ""
    not_tested: str = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Claim:
        if self.not_tested:
            return self
        if not self.compare or any(len(pair) != 2 - (self.to is not None and len(pair) == 1) for pair in self.compare):
            raise ValueError("compare: needs pairs of two names, or one name and `to`")
        if self.expect == "near" and self.margin is None:
            raise ValueError("margin: is needed to say what is near")
        if self.margin is not None and not self.reason:
            raise ValueError("reason: is needed for the margin")
        if self.scale == "log" and ((self.margin or 2) <= 1 or (self.to is not None and self.to <= 0)):
            raise ValueError("margin: is a ratio above 1 on the scale log, and `to` is one above 0")
        if any(len(pair) != 2 for pair in self.change):
            raise ValueError("change: needs pairs of two cases")
        if self.at and self.change:
            raise ValueError("at and change: exclude each other")
        return self


class StudyPlan(_Part):
    """How much evidence there is to be, and how sure the answers are.

    Attributes:
        split: the split of the data (`data.split`); None: the data have one only.
        seeds: number of seeds, which are 0, 1, 2 and so on; or
        fleets: number of fleets of seed 0, which are the units of a study of assignments.
        rounds: number of rounds (of environment steps, where an assigner learns) of each run.
        alpha: the largest probability that chance gives any claim of the exhibit a yes or a no.
    """

    split: Split | None = None
    seeds: Two | None = None
    fleets: Two | None = None
    rounds: Least | None = None
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05

    @model_validator(mode="after")
    def _has_units(self) -> StudyPlan:
        if (self.seeds is None) == (self.fleets is None):
            raise ValueError("seeds, fleets: one of them is needed")
        return self


class Borrowed(_Part):
    """Runs of another exhibit's sweep that are this exhibit's as well: the selection, each up to an accuracy."""

    select: str
    until: Share


class Exhibit(_Part):
    """A figure or table of a paper, or one of ours.

    Attributes:
        label: its name in the paper.
        config: the stem of the sweep file that makes its runs.
        shows: what it shows.
        drawings: registered names of figures, or references, by the stem of their file.
        forms: the forms of the paper that it belongs to; none for what is beyond the paper.
        claimant: whose the claims are.
        reference: the scheduler with which the ranking compares the others.
        summarised: whether RESULTS.md has the summary of its groups besides the ranking of its schedulers.
        borrows: the runs that it borrows, by the name of their sweep.
        targets: the accuracies up to which its drawings and tables show a run, by the names of selections.
        where: the settings that all of its judged runs have.
        free: the settings that may differ besides those of the compared selections; one that ends in a point is a
            section.
        plan: the plan; without one there are no claims.
        claims: the claims.
        select: the selections by name.
    """

    label: str
    config: str
    shows: str
    drawings: dict[str, str] = {}
    forms: list[Literal["full", "quick"]] = []
    claimant: str = "the paper"
    reference: str = REFERENCE
    summarised: bool = True
    borrows: dict[str, Borrowed] = {}
    targets: dict[str, Share] = {}
    where: Settings = {}
    free: list[str] = []
    plan: StudyPlan | None = None
    claims: list[Claim] = []
    select: dict[str, Settings] = {}

    def _find(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.select:
                raise ValueError(f"no selection is called {name!r}{nearest(name, self.select)}")

    @model_validator(mode="after")
    def _names_are_there(self) -> Exhibit:
        self._find([*self.targets, *(selection.select for selection in self.borrows.values())])
        if self.claims and self.plan is None:
            raise ValueError("plan: is needed for claims")
        for claim in self.claims:
            self._find([selection for group in (*claim.compare, claim.at, *claim.change) for selection in group])
            if claim.endpoint.metric not in metrics.METRICS and claim.endpoint.metric != "round":
                hint = nearest(claim.endpoint.metric, metrics.METRICS)
                raise ValueError(f"claims: no metric of the glossary is called {claim.endpoint.metric!r}{hint}")
            of_seeds = self.plan and not self.plan.fleets and not claim.not_tested
            if of_seeds and (claim.endpoint.by is None) == (claim.endpoint.until is None):
                raise ValueError(f"claims: {claim.text!r} needs an endpoint with either by or until")
        return self


class Paper(_Part):
    """A paper whose results are repeated: a file ``claims.yaml``.

    Attributes:
        title, source: its title, and where it can be read.
        about: what of it is repeated, in a line.
        takes: how long the full and the quick form took here, in words.
        exhibits: its exhibits by name.
        select: the selections that its exhibits share.
        shared: claims that several exhibits have, for YAML's anchors.
        name, folder: its name in commands, and the folder of its sweep files.
    """

    title: str
    source: str
    about: str
    takes: list[str]
    exhibits: dict[str, Exhibit]
    select: dict[str, Settings] = {}
    shared: list[Any] = []
    name: str = ""
    folder: str = ""

    def of_form(self, quick: bool) -> dict[str, Exhibit]:
        """Return the exhibits of a form by name."""
        return {name: shown for name, shown in self.exhibits.items() if ("quick" if quick else "full") in shown.forms}

    def sweep_file(self, shown: Exhibit) -> Path:
        """Return the sweep file that makes the runs of an exhibit."""
        return Path(self.folder) / f"{shown.config}.yaml"


@dataclass(frozen=True)
class Contrast:
    """One comparison of a claim.

    Attributes:
        label: its name among the claim's comparisons; empty if it is the only one.
        sides: the settings of the runs, of the first and the second side; with a change, of both sides in both cases,
            case by case. A side is missing where a number stands in its place.
        names: the names of the sides.
    """

    label: str
    sides: tuple[Settings, ...]
    names: tuple[str, ...]


def expanded(shown: Exhibit) -> Iterator[tuple[Claim, list[Contrast]]]:
    """Yield the claims of an exhibit with their comparisons, one for each placeholder's value in the text."""
    for claim in shown.claims:
        if claim.not_tested:
            yield claim, []
            continue
        cases: list[list[str]] = claim.change or [[name] for name in claim.at] or [[]]
        pair_groups = _grouped(claim.text, claim.compare)
        case_groups = [[case] for case in cases] if "{case}" in claim.text else [cases]
        for case_group in case_groups:
            for pair_group in pair_groups:
                text = claim.text.replace("{case}", " against ".join(case_group[0]))
                text = text.replace("{one}", pair_group[0][0]).replace("{other}", pair_group[0][-1])
                contrasts = [
                    _contrast(shown, pair, case, len(pair_group) > 1, len(case_group) > 1)
                    for case in case_group
                    for pair in pair_group
                ]
                yield claim.model_copy(update={"text": text}), contrasts


def _grouped(text: str, pairs: list[list[str]]) -> list[list[list[str]]]:
    """Return the pairs of each claim: one where the text names the other, those of one first where it names that."""
    if "{other}" in text:
        return [[pair] for pair in pairs]
    if "{one}" in text:
        return [[pair for pair in pairs if pair[0] == first] for first in dict.fromkeys(pair[0] for pair in pairs)]
    return [pairs]


def _contrast(shown: Exhibit, pair: list[str], case: list[str], names_pair: bool, names_case: bool) -> Contrast:
    words = [" against ".join(case)] * names_case + [" and ".join(pair)] * names_pair
    named = [[name, selection] for selection in case for name in pair] or [[name] for name in pair]
    sides = []
    for names in named:
        settings = dict(shown.where)
        for selection in names:
            settings |= shown.select[selection]
        sides.append(settings)
    return Contrast(", ".join(words), tuple(sides), tuple(map(", ".join, named)))


def read(path: Path) -> Paper:
    """Return the paper of a file ``claims.yaml``. Raises ConfigError: the file cannot be read, or a key is wrong."""
    try:
        tree = parse_yaml(read_bytes(path).decode())
        if not isinstance(tree, dict):
            keys = ", ".join(name for name, field in Paper.model_fields.items() if field.is_required())
            raise ValueError(f"got {shorten(tree)}; accepted: a mapping with the keys {keys}; write them")
        _share_selections(tree)
        tree |= {"name": path.parent.name, "folder": str(path.parent)}
        made = Paper.model_validate(tree, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, Paper).partition(chr(10))[0]}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return made


def _share_selections(tree: Mapping[str, Any]) -> None:
    """Give each exhibit of a file the selections that all share; what is no mapping stays as it is."""
    shared, exhibits = tree.get("select") or {}, tree.get("exhibits")
    if not isinstance(shared, dict):
        raise ValueError(
            f"select: got {shorten(shared)}; accepted: names, each with the settings of its runs; correct it"
        )
    for shown in exhibits.values() if isinstance(exhibits, dict) else ():
        if isinstance(shown, dict) and isinstance(selections := shown.get("select") or {}, dict):
            shown["select"] = shared | selections


@cache
def paper(name: str) -> Paper:
    """Return the paper called `name`, or that of a folder or a file ``claims.yaml``. Raises ConfigError: see `read`."""
    if name not in PAPERS:
        folder = Path(name)
        if folder.is_dir() and not (folder / CLAIMS).is_file():
            raise ConfigError(f"{name}: holds no {CLAIMS}; write one (docs/howto/claims.md), or name another folder")
        if folder.exists():
            return read(folder / CLAIMS if folder.is_dir() else folder)
        accepted = f"{', '.join(PAPERS)}, or a folder with a file {CLAIMS}"
        raise ConfigError(f"NAME: unknown paper '{name}'{nearest(name, PAPERS)}; accepted: {accepted}")
    return read(PAPERS[name] / CLAIMS).model_copy(update={"name": name})


def exhibits() -> dict[str, Exhibit]:
    """Return the exhibits of our own paper, and ours beyond it, by name."""
    return {name: shown for name, shown in paper("zhang").exhibits.items() if "quick" not in shown.forms}


def exhibit_of(sweep: SweepRecord) -> Exhibit | None:
    """Return the exhibit that a sweep belongs to, of any paper, or None."""
    name = sweep.name.removesuffix("-smoke")
    return next((shown for key in PAPERS for shown in paper(key).exhibits.values() if shown.config == name), None)
