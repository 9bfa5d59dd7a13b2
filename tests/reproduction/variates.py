"""SCAFFOLD's control variates with few labels, round by round, in the quick form's setting.

    python -m tests.reproduction.variates

Flower found that SCAFFOLD collapses with one and two labels a client. If variates are the cause, the correction c − cₙ
grows from round to round. The table has the accuracy, and the mean length of this correction over the clients, with
NIID-Bench's momentum and without, where the learning rate is ten times as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hflray.config import ExperimentConfig
from hflray.experiment import Experiment
from hflray.report.labels import pretty
from hflray.reproduction.protocol import paper
from hflray.sweep import expand, load_sweep

IID, ONE, TWO = pretty("iid"), "1 label", "2 labels"
CASES = {
    IID: ("iid", "{}"), TWO: ("shards", "{labels_per_device: 2}"),
    ONE: ("shards", "{labels_per_device: 1}"),
}  # fmt: skip
ROUNDS = (1, 5, 20)


class Snapshot(NamedTuple):
    """A run at one round: its accuracy, ‖c‖, and the mean of ‖cₙ − c‖ over the devices."""

    case: str
    momentum: float
    round: int
    accuracy: float
    common: float
    correction: float


def config_of(case: str, momentum: float) -> ExperimentConfig:
    """Return the quick form's configuration of a partition with a momentum, and with the rate that makes up for it."""
    bench = paper("niidbench")
    partition, options = CASES[case]
    overrides = [
        f"sweep.data.partition={{zip: [{partition}]}}", f"sweep.data.partition_options={{zip: [{options}]}}",
        "sweep.training.rule.name={grid: [scaffold]}", "sweep.seed={grid: [0]}", f"training.momentum={momentum}",
        f"training.learning_rate={0.01 * (1 - momentum) / 0.1:.12g}",
    ]  # fmt: skip
    return expand(load_sweep(bench.sweep_file(bench.exhibits["niidbench_quick"]), overrides))[0].config


def rows(case: str, momentum: float) -> Iterator[Snapshot]:
    """Yield the rows of a run of one seed."""
    with Experiment(config_of(case, momentum)) as experiment:
        for record in experiment:
            if record.round in ROUNDS:
                training = experiment.training
                common = training.rule["c"]
                apart = [np.linalg.norm(memory["c"] - common) for memory in training.memories.values()]
                yield Snapshot(
                    case, momentum, record.round, record.accuracy, float(np.linalg.norm(common)), float(np.mean(apart))
                )


def main() -> None:
    """Print the table as Markdown."""
    print("| classes | ρ | round | accuracy, % | ‖c‖ | ‖cₙ − c‖ |\n|---|--:|--:|--:|--:|--:|")
    for case in CASES:
        for momentum in (0.9, 0.0):
            for row in rows(case, momentum):
                print(
                    f"| {row.case} | {row.momentum:g} | {row.round} | {100 * row.accuracy:.1f} | {row.common:.2f} | "
                    f"{row.correction:.2f} |"
                )


if __name__ == "__main__":
    main()
