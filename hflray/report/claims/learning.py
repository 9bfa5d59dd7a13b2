"""Figure 5: what an episode returns while the paper's D3QN learns from HFEL-300.

The claim is judged on runs of Algorithm 5 as the paper prints it (`LITERAL`) and on nothing else; what differs in any
of these settings is shown, and named as what it is. Settings that the paper leaves open may differ: runs that do are
choices, each judged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hflray import metrics
from hflray.report.evidence import Claim, Finding, Needs, NotTested, Part, length, listed, seeds_of
from hflray.report.labels import DEPLOYMENT
from hflray.report.runs import Run, Sweep

SETTLED = 2.0  # of 50: how near to 17 counts as around it, and how little a curve that has settled still rises
WHERE = 17.0
LITERAL: dict[str, Any] = {
    "learning.features": "paper", "learning.architecture": "bilstm", "learning.hidden": 256,
    "learning.teacher.name": "hfel", "learning.teacher.exchanges": 300, "learning.teacher.start": "geographic",
    "learning.reward": "teacher", "learning.replay": "transitions", "learning.train_batch": 128,
    "learning.td_loss": "squared", "learning.td": 1.0, "learning.ce": 0.0, "learning.double_q": False,
    "learning.gamma": 0.99, "learning.update_every": 1, "learning.grad_clip": None,
}  # fmt: skip


def unlike_the_paper(run: Run) -> list[str]:
    """The settings of a run that are not Algorithm 5's as it is printed, such as ``learning.features=db``."""
    found = [f"{key}={run.settings.get(key)}" for key, value in LITERAL.items() if run.settings.get(key) != value]
    if not isinstance(run.settings.get(DEPLOYMENT), int):
        found.append(f"{DEPLOYMENT}=null")  # its features (24) cannot see B_m, which must then stay the same
    return found


def settles(sweep: Sweep, needs: Needs) -> Finding:
    """The return of an episode rises and settles around 17 of 50, by tenths of the steps that all runs have.

    It rises if its last tenth is above its first; it has settled if that is no more than 2 above the tenth before.
    """
    used, dropped = [], []
    for run in sweep.runs:
        steps = length(run, metrics.ASSIGNER_RETURN)
        unlike = unlike_the_paper(run)
        if unlike:
            dropped.append(f"{run.said} (not the paper's: {listed(unlike)})")
        elif steps < needs.least_steps or len(run.series(metrics.ASSIGNER_RETURN)) < 10:
            dropped.append(f"{run.said} ({steps:,} {needs.unit})")
        else:
            used.append(run)
    if not used:
        there = f"; there is {listed(dropped, '; ')}" if dropped else ""
        raise NotTested(f"needs {needs.least_steps:,} {needs.unit} of Algorithm 5 as printed "
                        f"(tune_configs/fig5_literal.yaml){there}")  # fmt: skip
    common = min(length(run, metrics.ASSIGNER_RETURN) for run in used)
    part = Sweep(sweep.name, sweep.title, sweep.task, "", used)
    texts, parts = [], []
    for label, runs in part.groups().items():
        tenths = np.mean([_tenths(run, common) for run in runs], axis=0)
        first, before, last = float(tenths[0]), float(tenths[-2]), float(tenths[-1])
        texts.append(f"{f'{label}: ' if label else ''}from {first:.1f} through {before:.1f} to {last:.1f}")
        settled = last > first and abs(last - WHERE) <= SETTLED and last - before <= SETTLED
        parts.append(Part(settled, common >= needs.steps and len({run.seed for run in runs}) >= needs.seeds))
    short = f" of {needs.steps:,}" if common < needs.steps else ""
    seeds = sorted({run.seed for run in used})
    said = f"{seeds_of(seeds, needs)}, the first {common:,}{short} {needs.unit}"
    ours = f"means of the first, the last but one and the last tenth: {'; '.join(texts)}"
    return Finding(ours, parts, said, used, (), dropped, choices=True)


def _tenths(run: Run, common: int) -> list[float]:
    """The means of the ten tenths of a learning curve up to a step."""
    values = run.series(metrics.ASSIGNER_RETURN)
    values = values[values.index <= common]
    tenth = np.minimum(9, (values.index.to_numpy() - 1) * 10 // common)
    means = values.groupby(tenth).mean().reindex(range(10)).interpolate(limit_direction="both")
    return [float(mean) for mean in means]


CLAIMS = (
    Claim(
        "the return of an episode rises and settles around 17 of 50",
        # The paper draws one run and does not say how long it was: one seed and 300,000 steps are enough.
        Needs(seeds=1, least_steps=20_000, steps=300_000, unit="environment steps"),
        settles,
        "17.6 is the most that HFEL's labels from the geographic start let any policy return",
    ),
)
