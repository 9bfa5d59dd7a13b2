"""Faults in real sweeps lose nothing: two of them in the ordinary tests, and one of each kind among the slow ones."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import Popen

import pytest

from hflray import metrics
from tests.chaos.campaign import CHAIN, Campaign, Outcome, rows
from tests.chaos.comparison import Reference, differences
from tests.chaos.fault import BLOCK, draw, family, kin, processes
from tests.chaos.shim import Shim, build, has_compiler
from tests.chaos.sweep import SWEEPS, Sweep, steps

pytestmark = [
    pytest.mark.timeout(1200),  # the limit for a busy machine
    pytest.mark.skipif(not has_compiler(), reason="there is no C compiler"),
]
# Of a world that lives, each happens at least once in a trial.
EVENTS = (
    metrics.ROUND_AWAY, metrics.ROUND_VANISHED, metrics.ROUND_EDGES_DOWN, metrics.ROUND_EDGES_FAILED,
    metrics.ROUND_LOW_BATTERY, metrics.ROUND_DISCARDED, metrics.ROUND_WASTED_J,
)  # fmt: skip


def happened(reference: Reference, names: tuple[str, ...]) -> list[set[str]]:
    """Return which of these metrics are above 0 in a round of each trial."""
    return [
        {name for name in names if any(row.get(name, 0) > 0 for row in rounds.values())}
        for rounds in reference.rounds.values()
    ]


def wait_for(condition: Callable[[], object], process: Popen[bytes], sweep: Sweep) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert process.poll() is None, sweep.output.read_text()
        assert time.monotonic() < deadline, sweep.output.read_text()
        time.sleep(0.05)


def test_a_driver_that_dies_inside_a_write_and_a_lost_actor_cost_no_round(tmp_path: Path) -> None:
    """What is then taken away is noticed, each in its place."""
    shim = Shim(build(tmp_path), tmp_path / "orders", tmp_path / "sweep" / "hflray_results")
    sweep = Sweep(tmp_path / "sweep", shim.environment(), text=SWEEPS["short"])
    reference = Reference.of_file(sweep.folder / "chaos.yaml")
    assert sorted(map(len, happened(reference, EVENTS))) == [0, len(EVENTS)]  # one of the trials has a living world
    process = sweep.start()
    try:
        wait_for(lambda: any(last >= 2 for last, _ in sweep.progress().values()), process, sweep)
        shim.arm(3, [process.pid], after=False)
        assert process.wait(400) == -signal.SIGKILL, sweep.output.read_text()
        assert shim.struck() == process.pid
        before = sweep.progress()
        process = sweep.start()
        wait_for(lambda: steps(before, sweep.progress()), process, sweep)
        for actor in processes(process.pid).get("device actor", [])[:1]:
            actor.kill()
        assert process.wait(400) == 0, sweep.output.read_text()
    finally:
        for member in [*family(process.pid), *kin(str(shim.path))]:
            member.kill()
        process.wait()
    database = sweep.results / "mlflow.db"
    assert differences(sweep.results, reference, database) == [], shim.where()
    (folder,) = sweep.begun()
    journal, *_ = folder.glob("journal/*.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if not line.startswith('{"round": 2,')))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM metrics WHERE key = ? AND step = 3", (metrics.ACCURACY,))
        connection.commit()
    lost = " ".join(differences(sweep.results, reference, database))
    for place in ("journal: round", f"MLflow: {metrics.ACCURACY} of round 3 is lost", "CSV: round"):
        assert place in lost


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_one_fault_of_each_kind_and_place_loses_nothing(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path)
    faults = {(fault.kind, fault.place): fault for fault in (draw(1, number) for number in range(2 * len(BLOCK)))}
    chosen, outcomes = list(faults.values()), list[Outcome]()
    while chosen:
        made = campaign.run(chosen[:CHAIN])
        outcomes += made
        del chosen[: len(made)]
    assert [(outcome.fault, outcome.lost) for outcome in outcomes if outcome.lost] == []
    every = rows(outcomes).loc["all faults", ""]
    assert every["lost"] == 0
    assert every["times"] >= len(outcomes) / 2
