"""Figure 5: the return of an episode while the paper's D3QN learns from HFEL-300.

The claim is judged only on runs of Algorithm 5 as the paper prints it (`LITERAL`). Runs that differ in any of these
settings are named with the difference and not judged. Settings that the paper leaves open may differ: each group of
runs with the same values of them is judged as one choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hflray import metrics
from hflray.report.evidence import Claim, Finding, Needs, NotTested, Part, describe_seeds, join_names, last_step
from hflray.report.labels import DEPLOYMENT
from hflray.report.runs import Run, Sweep

PLATEAU = 17.0  # the return, of at most 50, around which the paper's curve settles
TOLERANCE = 2.0  # a settled curve is within this distance of the plateau and rises by no more than this
LITERAL: dict[str, Any] = {
    "learning.features": "paper", "learning.architecture": "bilstm", "learning.hidden": 256,
    "learning.teacher.name": "hfel", "learning.teacher.exchanges": 300, "learning.teacher.start": "geographic",
    "learning.reward": "teacher", "learning.replay": "transitions", "learning.train_batch": 128,
    "learning.td_loss": "squared", "learning.td": 1.0, "learning.ce": 0.0, "learning.double_q": False,
    "learning.gamma": 0.99, "learning.update_every": 1, "learning.grad_clip": None,
}  # fmt: skip


def unlike_the_paper(run: Run) -> list[str]:
    """Return the settings of a run that differ from Algorithm 5 as printed, such as ``learning.features=db``."""
    differences = [f"{key}={run.settings.get(key)}" for key, value in LITERAL.items() if run.settings.get(key) != value]
    if not isinstance(run.settings.get(DEPLOYMENT), int):
        differences.append(f"{DEPLOYMENT}=null")  # the features (24) do not contain B_m, which must therefore be fixed
    return differences


def settles(sweep: Sweep, needs: Needs) -> Finding:
    """Test whether the return of an episode rises and settles around 17 of 50.

    The steps that all runs have are divided into tenths. The return rises if the mean of the last tenth is above that
    of the first. It has settled if the last tenth is within `TOLERANCE` of `PLATEAU` and at most `TOLERANCE` above the
    tenth before.
    """
    used, dropped = [], []
    for run in sweep.runs:
        steps = last_step(run, metrics.ASSIGNER_RETURN)
        differences = unlike_the_paper(run)
        if differences:
            dropped.append(f"{run.full_name} (not the paper's: {join_names(differences)})")
        elif steps < needs.least_steps or len(run.series(metrics.ASSIGNER_RETURN)) < 10:
            dropped.append(f"{run.full_name} ({steps:,} {needs.unit})")
        else:
            used.append(run)
    if not used:
        existing = f"; there is {join_names(dropped, '; ')}" if dropped else ""
        raise NotTested(f"needs {needs.least_steps:,} {needs.unit} of Algorithm 5 as printed "
                        f"(tune_configs/fig5_literal.yaml){existing}")  # fmt: skip
    common = min(last_step(run, metrics.ASSIGNER_RETURN) for run in used)
    part = Sweep(sweep.name, sweep.title, sweep.task, "", used)
    texts, parts = [], []
    for label, runs in part.groups().items():
        tenths = np.mean([_tenths(run, common) for run in runs], axis=0)
        first, before, last = float(tenths[0]), float(tenths[-2]), float(tenths[-1])
        texts.append(f"{f'{label}: ' if label else ''}from {first:.1f} through {before:.1f} to {last:.1f}")
        settled = last > first and abs(last - PLATEAU) <= TOLERANCE and last - before <= TOLERANCE
        parts.append(Part(settled, common >= needs.steps and len({run.seed for run in runs}) >= needs.seeds))
    short = f" of {needs.steps:,}" if common < needs.steps else ""
    seeds = sorted({run.seed for run in used})
    evidence = f"{describe_seeds(seeds, needs)}, the first {common:,}{short} {needs.unit}"
    ours = f"means of the first, the last but one and the last tenth: {'; '.join(texts)}"
    return Finding(ours, parts, evidence, used, (), dropped, choices=True)


def _tenths(run: Run, common: int) -> list[float]:
    """Return the means of the ten tenths of a learning curve up to the step `common`."""
    values = run.series(metrics.ASSIGNER_RETURN)
    values = values[values.index <= common]
    tenth = np.minimum(9, (values.index.to_numpy() - 1) * 10 // common)
    means = values.groupby(tenth).mean().reindex(range(10)).interpolate(limit_direction="both")
    return [float(mean) for mean in means]


CLAIMS = (
    Claim(
        "the return of an episode rises and settles around 17 of 50",
        # The paper draws one run and does not say how long it was, so that one seed and 300,000 steps are enough.
        Needs(seeds=1, least_steps=20_000, steps=300_000, unit="environment steps"),
        settles,
        "17.7 is the most that HFEL's labels from the geographic start let any policy return",
    ),
)
