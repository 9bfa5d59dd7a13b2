"""What keeps Figure 7 below 56 % on CIFAR-10: variants of its training at H = 10, each beside Figure 7's own.

A variant changes one setting. It is compared on the same seeds, by the mean accuracy of the last ten rounds that are
compared, because a single round's accuracy fluctuates.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hflray import metrics
from hflray.report.labels import setting
from hflray.report.runs import Sweep
from hflray.reproduction.evidence import Claim, Finding, Gap, Needs, Part, compare_fairly, select_alike
from hflray.reproduction.zhang.scheduling import MARGIN

FIGURE_7: dict[str, Any] = {
    "training.batch_size": 64,
    "training.weight_decay": 0.0,
    "training.local_iteration": "epoch",
    "data.partition": "majority",
}
LAST_ROUNDS = 10
NEEDS = Needs(least_seeds=2, seeds=5, least_steps=60, steps=60)


def raises_accuracy(sweep: Sweep, needs: Needs, *, key: str, value: Any) -> Finding:
    """Test whether Figure 7's training with another value of one setting has a higher accuracy.

    Accuracies whose difference is within `MARGIN` are a tie.

    Args:
        sweep: the runs.
        needs: what the claim needs.
        key: dotted key of the setting.
        value: its other value.
    """
    runs, unused = select_alike(sweep.runs, tuple(FIGURE_7))
    names = {"paper": "Figure 7's training", "variant": setting(key, value)}
    settings = {"paper": FIGURE_7, "variant": FIGURE_7 | {key: value}}
    groups = {name: [run for run in runs if each.items() <= run.settings.items()] for name, each in settings.items()}
    comparison = compare_fairly(groups, needs, metrics.ACCURACY, names)
    paper, variant = (
        [100 * curve.iloc[-LAST_ROUNDS:].mean() for curve in comparison.each(name, metrics.ACCURACY)] for name in groups
    )
    gap = Gap.of(variant, paper, margin=MARGIN)
    ours = f"{np.mean(variant):.1f} and {np.mean(paper):.1f} %, {gap.text()} points{gap.note}"
    part = Part.of(gap, 1, comparison.whole)
    return Finding(ours, [part], comparison.coverage, comparison.runs, (), [*unused, *comparison.dropped])


def claims() -> tuple[Claim, ...]:
    """Return the claims on what raises the accuracy at H = 10, the mean of the last ten rounds of 60."""
    variants = {
        "a mini-batch of 16 raises the accuracy, the mean of the last ten rounds": ("training.batch_size", 16),
        "a mini-batch of 256 raises it": ("training.batch_size", 256),
        "weight decay of 0.005 raises it": ("training.weight_decay", 0.005),
        "one mini-batch in place of one pass as a local iteration raises it": ("training.local_iteration", "step"),
        "IID data raise it": ("data.partition", "iid"),
    }
    return tuple(
        Claim(text, NEEDS, partial(raises_accuracy, key=key, value=value)) for text, (key, value) in variants.items()
    )
