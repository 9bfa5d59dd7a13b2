"""Faults in real sweeps lose nothing: two of them in the ordinary tests, and one of each kind among the slow ones."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from hflray import metrics
from tests.chaos import fault as kinds
from tests.chaos.campaign import (
    CHAIN,
    PATIENCE_S,
    Campaign,
    Outcome,
    clean_log,
    patience_s,
    read_log,
    signal_name,
)
from tests.chaos.comparison import Reference, differences
from tests.chaos.fault import BLOCK, draw
from tests.chaos.place import family, kin, processes
from tests.chaos.report import markdown, rows, write
from tests.chaos.shim import Shim, build, has_compiler
from tests.chaos.sweep import INSIDE, LIVING, TEXT, WORLD, Sweep, steps

pytestmark = [
    pytest.mark.timeout(1200),  # the limit for a busy machine
    pytest.mark.skipif(not has_compiler(), reason="there is no C compiler"),
]
SHORT = TEXT
for three, two in (
    ("ikc, fedavg, oort", "ikc, oort"),
    ("local_search, geographic", "hfel"),
    ("newton, newton, equal", "newton, equal"),
    ("null, null, 0.9", "null, 0.9"),
    ("serial, serial", "serial"),
):
    assert three in SHORT
    SHORT = SHORT.replace(three, two)
SHORT = SHORT.replace("sweep:\n", f"sweep:\n  world: {{zip: [{{}}, {WORLD}]}}\n")
# Of a world that lives, each happens at least once in a trial.
EVENTS = (
    metrics.ROUND_AWAY, metrics.ROUND_VANISHED, metrics.ROUND_EDGES_DOWN, metrics.ROUND_EDGES_FAILED,
    metrics.ROUND_LOW_BATTERY, metrics.ROUND_DISCARDED, metrics.ROUND_WASTED_J,
)  # fmt: skip


def missing(reference: Reference) -> dict[str, list[str]]:
    """Return the events of a living world that did not happen in each trial."""
    return {
        trial: [event for event in EVENTS if not any(row["metrics"].get(event, 0) > 0 for row in rounds.values())]
        for trial, rounds in reference.rounds.items()
    }


def test_everything_happens_in_every_trial_of_the_living_sweep(tmp_path) -> None:
    reference = Reference.of_file(Sweep(tmp_path, text=LIVING).folder / "chaos.yaml")
    assert len(reference.rounds) == 3
    assert not any(missing(reference).values()), missing(reference)


@pytest.mark.slow
def test_every_part_inside_the_round_works_in_its_trial(tmp_path) -> None:
    reference = Reference.of_file(Sweep(tmp_path, text=INSIDE).folder / "chaos.yaml")
    found = {
        name: [sum(row["metrics"].get(name, 0) > 0 for row in rounds.values()) for rounds in reference.rounds.values()]
        for name in (metrics.COMPRESSION_ERROR, metrics.PRIVACY_EPSILON, metrics.UPDATE_NORM, metrics.ROUND_DISCARDED)
    }
    assert [min(1, count) for count in found[metrics.COMPRESSION_ERROR]] == [1, 1, 0]
    assert found[metrics.PRIVACY_EPSILON] == [0, 16, 0]
    assert found[metrics.UPDATE_NORM] == [16] * 3
    assert found[metrics.ROUND_DISCARDED][2] > 0


def wait_for(condition: Callable[[], object], process: Popen[bytes], sweep: Sweep) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert process.poll() is None, sweep.output.read_text()
        assert time.monotonic() < deadline, sweep.output.read_text()
        time.sleep(0.05)


def test_a_driver_that_dies_inside_a_write_and_a_lost_actor_cost_no_round(tmp_path) -> None:
    shim = Shim(build(tmp_path), tmp_path / "orders", tmp_path / "sweep" / "hflray_results")
    sweep = Sweep(tmp_path / "sweep", shim.environment(), text=SHORT)
    reference = Reference.of_file(sweep.folder / "chaos.yaml")
    assert sorted(map(len, missing(reference).values())) == [0, len(EVENTS)]  # one of the trials has a living world
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
        for one in [*family(process.pid), *kin(str(shim.path))]:
            one.kill()
        process.wait()
    assert differences(sweep.results, reference, sweep.results / "mlflow.db") == [], shim.where()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_one_fault_of_each_kind_and_place_loses_nothing(tmp_path) -> None:
    campaign = Campaign(tmp_path)
    faults = {(fault.kind, fault.place): fault for fault in (draw(1, number) for number in range(2 * len(BLOCK)))}
    chosen, outcomes = list(faults.values()), list[Outcome]()
    try:
        while chosen:
            made = campaign.run(chosen[:CHAIN])
            outcomes += made
            del chosen[: len(made)]
    finally:
        campaign.close()
    assert [(outcome.fault, outcome.lost) for outcome in outcomes if outcome.lost] == []
    assert sum(outcome.hit for outcome in outcomes) >= len(outcomes) / 2


def outcome(number: int, recovery_s: float | None, *lost: str) -> Outcome:
    return Outcome(draw(1, number), True, "x", 1.5, 3, [-9, 0], recovery_s, 20.0, list(lost), [])


def test_a_log_goes_on_after_its_last_whole_line(tmp_path) -> None:
    log = tmp_path / "log.jsonl"
    assert read_log(log) == []
    first, second = outcome(0, 3.5), outcome(1, None, "a: round 2 is lost")
    log.write_text(f"{first.line()}\n{second.line()}\n{first.line()[:40]}")
    assert read_log(log) == [first, second]
    clean_log(log)
    assert log.read_text() == f"{first.line()}\n{second.line()}\n"


def test_the_report_counts_what_came_and_what_was_lost(tmp_path) -> None:
    outcomes = [outcome(number, float(number)) for number in range(10)]
    outcomes[3].lost.append("a: round 2 is lost")
    outcomes[4].hit = False
    table = {(row["kind"], row["place"]): row for row in rows(outcomes)}
    all_faults = table["all faults", ""]
    assert (all_faults["faults"], all_faults["nothing_lost"], all_faults["lost"]) == (9, 8, 1)
    assert (all_faults["median_s"], all_faults["max_s"]) == (5.0, 9.0)
    assert table["all kills", ""]["faults"] == sum(one.hit and one.fault.kind in kinds.KILLS for one in outcomes)
    text = markdown(outcomes)
    assert f"* fault 3 ({outcomes[3].fault.kind}, {outcomes[3].fault.place}): a: round 2 is lost" in text
    paths = write(outcomes, tmp_path / "log.jsonl")
    assert [Path(path).suffix for path in paths] == [".md", ".json"]
    assert len(json.loads(paths[1].read_text())["outcomes"]) == 10


def test_recovery_means_a_step_of_every_trial_that_ran() -> None:
    before = {"a": (3, False), "b": (5, True), "c": (2, False)}
    assert not steps(before, before)
    assert not steps(before, before | {"a": (4, False)})
    assert steps(before, before | {"a": (4, False), "c": (2, True)})
    assert not steps({}, {})
    assert steps({}, {"a": (1, False)})


def test_a_machine_on_which_starts_are_slow_has_more_patience() -> None:
    assert patience_s(40.0) == PATIENCE_S == 300.0
    assert patience_s(744.0) == 1488.0


def test_exit_codes_are_named() -> None:
    assert [signal_name(code) for code in (0, 2, -9, None)] == ["0", "2", "SIGKILL", "hung"]
