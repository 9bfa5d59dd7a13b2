"""Figure 5: the return of an episode while D3QN learns from HFEL-300 by Algorithm 5, judged for each reading of it.

A run is Algorithm 5 if it has the settings that the paper prints (`PRINTED`), the features of equation (24), one
deployment and a minibatch of `MINIBATCHES`. Other runs are named with the difference and not judged. Three things that
the paper leaves open decide how much can be learned, so that each `Reading` of them has claims of its own. Other
settings that the paper leaves open may differ too: each group of runs with the same values is judged as one choice.

A run of fewer units than the paper's is judged unless a longer run has more, and its answer is "so far" at most. A
policy that still improves at its end (`gain`) is not judged, unless it agrees already.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hflray import metrics
from hflray.assignment.features import PAPERS
from hflray.report.labels import DEPLOYMENT
from hflray.report.readings import FEATURES, IMPROVING, READINGS, Reading, gain, improves
from hflray.report.runs import Run, Sweep
from hflray.report.series import last_step
from hflray.reproduction.evidence import Claim, Finding, Needs, NotTested, Part, describe_seeds, join_names

PLATEAU = 17.0  # the return, of at most 50, around which the paper's curve settles
TOLERANCE = 2.0  # a settled curve is within this distance of the plateau and rises by no more than this
UNITS = 256  # of each LSTM, as the paper prints
# What the paper prints.
PRINTED: dict[str, Any] = {
    "learning.architecture": "bilstm", "learning.teacher.name": "hfel", "learning.teacher.exchanges": 300,
    "learning.reward": "teacher", "learning.td_loss": "squared", "learning.td": 1.0, "learning.ce": 0.0,
    "learning.double_q": False, "learning.gamma": 0.99, "learning.update_every": 1, "learning.grad_clip": None,
}  # fmt: skip
# The paper's O is 128 transitions. Whole episodes need fewer passes of the network.
MINIBATCHES = {("transitions", 128): "128 single transitions", ("episodes", 150): "three whole episodes"}


def unlike_the_paper(run: Run) -> list[str]:
    """Return the settings of a run that Algorithm 5 does not allow, such as ``learning.features=db``."""
    settings = run.settings
    differences = [f"{key}={settings.get(key)}" for key, value in PRINTED.items() if settings.get(key) != value]
    if settings.get(FEATURES) not in PAPERS:
        differences.insert(0, f"{FEATURES}={settings.get(FEATURES)}")
    minibatch = settings.get("learning.replay"), settings.get("learning.train_batch")
    if minibatch not in MINIBATCHES:
        differences.append(f"a minibatch of {minibatch[1]} ({minibatch[0]})")
    if not isinstance(settings.get(DEPLOYMENT), int):
        differences.append(f"{DEPLOYMENT}=null")  # the features (24) do not contain B_m, which must therefore be fixed
    return differences


def runs_of_algorithm_5(sweep: Sweep, needs: Needs, reading: Reading | None) -> tuple[list[Run], list[str]]:
    """Return a sweep's runs of Algorithm 5, of one reading if it is given, and the unused runs with the reasons.

    All of them have as many units as the longest run.

    Raises:
        NotTested: there is none of the least length.
    """
    used, dropped = [], []
    for run in sweep.runs:
        steps = last_step(run, metrics.ASSIGNER_RETURN)
        differences = unlike_the_paper(run)
        if reading is not None and (differences or Reading.of(run) != reading):
            continue  # a claim on one reading does not name the runs of the others
        if differences:
            dropped.append(f"{run.full_name} (not the paper's: {join_names(differences)})")
        elif steps < needs.least_steps or len(run.series(metrics.ASSIGNER_RETURN)) < 10:
            dropped.append(f"{run.full_name} ({steps:,} {needs.unit})")
        else:
            used.append(run)
    if not used:
        existing = f"; there is {join_names(dropped, '; ')}" if dropped else ""
        file = "fig5_literal" if reading is None else "fig5_readings"
        raise NotTested(f"needs {needs.least_steps:,} {needs.unit} of Algorithm 5 (tune_configs/{file}.yaml){existing}")
    units = _units(max(used, key=lambda run: (last_step(run, metrics.ASSIGNER_RETURN), _units(run))))
    dropped += [f"{run.full_name} ({_units(run)} units, and the longest run has {units})" for run in used
                if _units(run) != units]  # fmt: skip
    return [run for run in used if _units(run) == units], dropped


def _units(run: Run) -> int:
    return int(run.settings["learning.hidden"])


def settles(sweep: Sweep, needs: Needs, reading: Reading | None = None) -> Finding:
    """Test whether the return of an episode rises and settles around 17 of 50.

    The steps that all runs have are divided into tenths. The return rises if the mean of the last tenth is above that
    of the first. It has settled if the last tenth is within `TOLERANCE` of `PLATEAU` and at most `TOLERANCE` above the
    tenth before.

    Raises:
        NotTested: there is no run of Algorithm 5 of the least length, or none agrees and one still improves.
    """
    used, dropped = runs_of_algorithm_5(sweep, needs, reading)
    common = min(last_step(run, metrics.ASSIGNER_RETURN) for run in used)
    texts, parts, improving = [], [], []
    for label, runs in _groups(sweep, used).items():
        tenths = np.mean([_tenths(run, common) for run in runs], axis=0)
        first, before, last = float(tenths[0]), float(tenths[-2]), float(tenths[-1])
        text = f"{f'{label}: ' if label else ''}from {first:.1f} through {before:.1f} to {last:.1f}"
        settled = last > first and abs(last - PLATEAU) <= TOLERANCE and last - before <= TOLERANCE
        if not settled and any(improves(run) for run in runs):
            improving.append(text)
            continue
        texts.append(text)
        parts.append(Part(settled, _whole(runs, common, needs)))
    if improving and not any(part.agrees for part in parts):
        raise NotTested(
            f"needs a policy that has stopped improving; after {common:,} {needs.unit} the last quarter's return is "
            f"{max(gain(run) for run in used):.1f} above the quarter before, more than {IMPROVING:g} "
            f"({join_names(improving, '; ')})"
        )
    ours = f"means of the first, the last but one and the last tenth: {'; '.join(texts)}"
    missing = [f"an end of {text}, which still improves" for text in improving]
    return Finding(ours, parts, _evidence(used, common, needs), used, missing, dropped, choices=True)


def costs_less(sweep: Sweep, needs: Needs, reading: Reading | None = None) -> Finding:
    """Test whether the policy's assignments cost less than HFEL-300's, by the mean objective over held-out fleets.

    The number is the mean of the last tenth of the evaluations. HFEL-300 starts from the geographic assignment.

    Raises:
        NotTested: see `settles`.
    """
    used, dropped = runs_of_algorithm_5(sweep, needs, reading)
    common = min(last_step(run, metrics.ASSIGNER_RETURN) for run in used)
    metric = metrics.assigner_ratio("hfel-300")
    texts, parts = [], []
    for label, runs in _groups(sweep, used).items():
        ratio = float(np.mean([_tenths(run, common, metric)[-1] for run in runs]))
        if ratio >= 1 and any(improves(run) for run in runs):
            raise NotTested(
                f"needs a policy that has stopped improving; after {common:,} {needs.unit} it costs {ratio:.2f} times "
                "HFEL-300's objective and still improves"
            )
        texts.append(f"{f'{label}: ' if label else ''}{ratio:.2f} times HFEL-300's objective")
        parts.append(Part(ratio < 1, _whole(runs, common, needs)))
    return Finding("; ".join(texts), parts, _evidence(used, common, needs), used, (), dropped, choices=True)


def _groups(sweep: Sweep, used: list[Run]) -> dict[str, list[Run]]:
    return Sweep(sweep.name, sweep.title, sweep.task, "", used).groups()


def _whole(runs: list[Run], common: int, needs: Needs) -> bool:
    papers = all(_units(run) == UNITS for run in runs)
    return papers and common >= needs.steps and len({run.seed for run in runs}) >= needs.seeds


def _evidence(used: list[Run], common: int, needs: Needs) -> str:
    short = f" of {needs.steps:,}" if common < needs.steps else ""
    text = f"{describe_seeds(sorted({run.seed for run in used}), needs)}, the first {common:,}{short} {needs.unit}"
    minibatches = {MINIBATCHES[run.settings["learning.replay"], run.settings["learning.train_batch"]] for run in used}
    text += f", minibatches of {join_names(sorted(minibatches))}"
    fewer = sorted({_units(run) for run in used} - {UNITS})
    return text + (f", {join_names(fewer)} of {UNITS} units" if fewer else "")


def _tenths(run: Run, common: int, metric: str = metrics.ASSIGNER_RETURN) -> list[float]:
    """Return the means of the ten tenths of a learning curve up to the step `common`."""
    values = run.series(metric)
    values = values[values.index <= common]
    tenth = np.minimum(9, (values.index.to_numpy() - 1) * 10 // common)
    means = values.groupby(tenth).mean().reindex(range(10)).interpolate(limit_direction="both")
    return [float(mean) for mean in means]


SETTLES = "the return of an episode rises and settles around 17 of 50"
COSTS_LESS = "the policy's assignments cost less than HFEL-300's (Figure 6)"
# The paper draws one run and does not say how long it was, so that one seed and 300,000 steps are enough.
NEEDS = Needs(seeds=1, least_steps=20_000, steps=300_000, unit="environment steps")
CLAIMS = (Claim(SETTLES, NEEDS, settles), Claim(COSTS_LESS, NEEDS, costs_less))
BY_HEART = (
    "with one update for each environment step, a transition is drawn 150 times, and the network learns the buffer by "
    "heart; the rows with 3 draws test this"
)
LOW_CEILING = "even cross-entropy on the teacher's labels returns less than 17: see the supervised ceiling"
DEAR_CEILING = (
    "with linear gains, even cross-entropy on the teacher's labels costs eight times HFEL-300's objective: see the "
    "ceiling's objective"
)


def guess(reading: Reading, text: str) -> str:
    """Return our guess why a reading's answer to a claim is no, should it be."""
    if reading.features == "paper_db" and (reading.start == "best_gain" or text == COSTS_LESS):
        return BY_HEART
    return LOW_CEILING if text == SETTLES else DEAR_CEILING


CLAIMS_BY_READING = tuple(
    Claim(f"{reading}: {text}", NEEDS, partial(test, reading=reading), guess(reading, text))
    for reading in READINGS
    for text, test in ((SETTLES, settles), (COSTS_LESS, costs_less))
)
