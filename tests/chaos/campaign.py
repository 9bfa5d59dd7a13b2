"""A campaign: the unbroken run, and then faults. `CHAIN` faults come one after another in one sweep.

A sweep that was ended by a fault is started again with ``--resume``, as its own message says, and the next fault may
come at any moment of that second command. What a sweep has left at its end is compared with the unbroken run.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd
import psutil

from tests.chaos import fault as kinds
from tests.chaos.comparison import Reference, differences
from tests.chaos.fault import Fault, family, kin, processes
from tests.chaos.shim import Shim, build
from tests.chaos.sweep import NAME, SWEEPS, Sweep, steps
from tests.servers import MlflowServer

CHAIN = 4
ATTEMPTS = 4  # a sweep whose commands fail so often beyond the number of its faults has not recovered
PATIENCE_S = 300.0  # a command that makes no progress for so long, or twice as long as a start has taken, has hung
STRAGGLERS_S = 20.0  # processes may live this long after their driver
POLL_S = 0.15
STARTS = 0.25  # of all faults, those that come while a command starts
UNSENT = "has not received everything"  # of the command's last lines: MLflow must be sent the rest later


@dataclass
class Outcome:
    """What a fault did.

    Attributes:
        fault: the fault.
        hit: whether it came; False if the sweep ended before its moment.
        where: the process that was hit, or the change of a file in which it died.
        exits: the exit codes of the commands that ended after it, in order; None for a command that hung.
        recovery_s: seconds from the fault (for a stop: from its end) until every trial that ran had made another round
            or had ended; None if the sweep was over, or another fault came first.
        lost: what differs from the unbroken run; see `tests.chaos.comparison`. All faults of a sweep have these lines.
        notes: what the user would have noticed besides: tracebacks, processes that stayed.
    """

    fault: Fault
    hit: bool = False
    where: str = ""
    exits: list[int | None] = field(default_factory=list)
    recovery_s: float | None = None
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the outcome as a line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


def read_log(path: Path) -> list[Outcome]:
    """Return the outcomes in a log. A line that a kill has cut off is left out."""
    outcomes = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(ValueError, TypeError):
            content = json.loads(line)
            outcomes.append(Outcome(**(content | {"fault": Fault(**content["fault"])})))
    return outcomes


class Campaign:
    """The unbroken run and the faults, in a folder.

    Args:
        folder: everything is below it; the sweeps that lost nothing are removed.
        text: the sweep file of the sweeps.
    """

    def __init__(self, folder: Path, text: str = SWEEPS["plain"]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._text = folder, text
        self._library = build(folder)
        self.reference, self._start_s = self._unbroken()  # and how long the last start took

    # ---- the unbroken run

    def _unbroken(self) -> tuple[Reference, float]:
        """Run the sweep without a fault; return what it left, and how long it took until its first round, s."""
        shutil.rmtree(self.folder / "unbroken", ignore_errors=True)
        sweep, _ = self._sweep("unbroken")
        process, begin, start_s = sweep.start(), time.monotonic(), 0.0
        while process.poll() is None:
            start_s = start_s or (time.monotonic() - begin if made(sweep) else 0.0)
            time.sleep(POLL_S)
        if process.returncode:
            raise RuntimeError(f"the unbroken run failed; see {sweep.output}")
        reference = Reference.of_results(sweep.results)
        if lines := differences(sweep.results, reference, sweep.results / "mlflow.db"):
            raise RuntimeError(f"the unbroken run is not whole: {'; '.join(lines)}")
        shutil.rmtree(sweep.folder)
        print(f"the unbroken run took {time.monotonic() - begin:.0f} s, {start_s:.0f} s of them until its first round")
        return reference, start_s

    def _sweep(self, name: str, tracking_uri: str | None = None) -> tuple[Sweep, Shim]:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        shim = Shim(self._library, folder / "orders", folder / "hflray_results")
        return Sweep(folder, shim.environment(), tracking_uri, self._text), shim

    # ---- faults

    def run(self, faults: Sequence[Fault]) -> list[Outcome]:
        """Break a new sweep by these faults, go on with it to its end, and compare it with the unbroken run.

        Returns:
            The outcomes of the faults that were tried. Later ones, whose moment had not come when the sweep ended, need
            another sweep; only if that is the first fault, it is tried in vain.
        """
        name = f"fault-{faults[0].number:04d}"
        store, server, server_shim = self.folder / name / "server", None, None
        shutil.rmtree(self.folder / name, ignore_errors=True)
        if any(fault.place == "mlflow" for fault in faults):
            store.mkdir(parents=True)
            server_shim = Shim(self._library, self.folder / name / "server-orders", store)
            server = MlflowServer(store.parent, store, server_shim.environment())
            server.start()
        sweep, shim = self._sweep(name, server.uri if server else None)
        outcomes = [Outcome(fault) for fault in faults]
        total = sum(map(len, self.reference.rounds.values()))
        run = Run(sweep, shim, outcomes, total, self._start_s, server, server_shim)
        try:
            run.play()
        finally:
            run.end()
            if server:
                server.stop()
        outcomes = outcomes[: max(1, run.tried)]
        self._start_s = run.start_s
        database = store / "server.db" if server else sweep.results / "mlflow.db"
        artifacts = store / "server-artifacts" if server else None
        reference = self.reference
        if "search:" in self._text:  # what it draws after a fault may differ, but not what follows from the draws
            reference = Reference.of_draws(sweep.folder / f"{NAME}.yaml", sweep.results)
        lost = run.problems + differences(sweep.results, reference, database, artifacts)
        text = sweep.output.read_text(encoding="utf-8", errors="replace")
        notes = [*run.notes, *(["the output has a traceback"] if "Traceback (most recent call last)" in text else [])]
        for outcome in outcomes:
            outcome.lost, outcome.notes = list(lost), list(notes)
        if not lost and not notes:
            shutil.rmtree(sweep.folder)
        return outcomes


def made(sweep: Sweep) -> int:
    """Return how many rounds the trials of a sweep have made together."""
    return sum(last for last, _ in sweep.progress().values())


@dataclass
class Run:
    """A sweep with its faults.

    Attributes:
        sweep, shim: the sweep, and the orders to its processes.
        outcomes: a fault each; they receive what happens.
        total: how many rounds all trials make.
        start_s: how long the last start took until its first round, s.
        server, server_shim: the MLflow server of the sweep and the orders to it, or None.
        problems, notes: what happened besides, see `Outcome.lost` and `Outcome.notes`.
        tried: how many of the faults have had their moment.
    """

    sweep: Sweep
    shim: Shim
    outcomes: list[Outcome]
    total: int
    start_s: float
    server: MlflowServer | None = None
    server_shim: Shim | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tried: int = 0

    def play(self) -> None:
        """Run the sweep, let the faults happen, and go on until a command has ended without an error."""
        self._over, self._failures = False, 0
        self._outcome = self.outcomes[0]
        self._struck_s: float | None = None
        self._start()
        for outcome in self.outcomes:
            self._await(outcome.fault)
            if self._over:
                break
            self._strike(outcome)
            self.tried += 1
        while not self._over:
            self._tick()
        output = self.sweep.output.read_text(encoding="utf-8", errors="replace")
        if self.sweep.finished() and (self._process.returncode or UNSENT in output):
            self._process = self.sweep.synchronise()
            if self._process.wait(PATIENCE_S):
                self.problems.append("MLflow could not be sent the rest")

    def end(self) -> None:
        """End every process of the sweep; note those that have outlived their driver for too long."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        deadline = time.monotonic() + STRAGGLERS_S
        while (stragglers := kin(str(self.shim.path))) and time.monotonic() < deadline:
            time.sleep(0.5)
        if stragglers:
            names = sorted({_name(process) for process in stragglers})
            self.notes.append(f"still there {STRAGGLERS_S:.0f} s after the driver: {', '.join(names)}")
        for process in stragglers:
            with suppress(psutil.Error):
                process.kill()

    # ---- the course of the sweep

    def _start(self) -> None:
        """Start the command, the first one or the one that goes on."""
        self._process = self.sweep.start()
        self._begin = self._progress_s = time.monotonic()
        self._state = self.sweep.progress()
        self._made = self._made_before = sum(last for last, _ in self._state.values())

    def _tick(self) -> None:
        """Wait a little, look at the progress, and start the command again if it has ended too early."""
        time.sleep(POLL_S)
        code, self._state, now = self._process.poll(), self.sweep.progress(), time.monotonic()
        count = sum(last for last, _ in self._state.values())
        if count > self._made:
            if self._made == self._made_before:
                self.start_s = now - self._begin
            self._made, self._progress_s = count, now
        if self._struck_s is not None and steps(self._before, self._state):
            self._outcome.recovery_s, self._struck_s = round(now - self._struck_s, 2), None
        if code is None and now - self._progress_s > max(PATIENCE_S, 2 * self.start_s):
            self.problems.append("a command hung and was ended")
            for process in family(self._process.pid):
                with suppress(psutil.Error):
                    process.kill()
            self._process.wait()
        elif code is None:
            return
        self._outcome.exits.append(code)
        self._failures += 1
        if code == 0 or self.sweep.finished():
            self._over = True
        elif self._failures > ATTEMPTS + len(self.outcomes):
            self.problems.append(f"the sweep did not end in {self._failures} commands")
            self._over = True
        else:
            self._start()

    def _await(self, fault: Fault) -> None:
        """Wait for the moment of a fault, drawn anew for each command, or until the sweep is over."""
        begin = None
        while not self._over:
            if begin != self._begin:  # a first command, or one that goes on
                begin, there, (rounds, delay_s) = self._begin, None, self._moment(fault)
            if self._made >= rounds and there is None:
                there = time.monotonic() if rounds else begin
            if there is not None and time.monotonic() >= there + delay_s:
                return
            self._tick()

    def _moment(self, fault: Fault) -> tuple[int, float]:
        """Return after how many rounds a fault comes, and how many seconds later; at 0 rounds since the start."""
        if fault.fraction < STARTS and self._made == self._made_before:
            return 0, fault.fraction / STARTS * self.start_s
        share = (fault.fraction - STARTS) / (1 - STARTS) if fault.fraction >= STARTS else fault.fraction / STARTS
        return self._made + 1 + int(share * (self.total - self._made)), fault.pick

    def _wait(self, seconds: float) -> None:
        """Wait some seconds, or until the command has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            time.sleep(POLL_S)

    # ---- the faults

    def _strike(self, outcome: Outcome) -> None:
        """Let a fault happen."""
        self._before, self._struck_s = self.sweep.progress(), None
        happens = {
            kinds.KILL: self._kill, kinds.CUT: self._cut, kinds.STOP: self._stop, kinds.CLOCK: self._step_clock,
            kinds.FULL: self._fill, kinds.TWO: self._second_driver,
        }[outcome.fault.kind]  # fmt: skip
        if happens(outcome):
            outcome.hit, self._outcome, self._struck_s = True, outcome, time.monotonic()
            self._progress_s = time.monotonic()

    def _victims(self, fault: Fault) -> list[psutil.Process]:
        """Return the processes of the fault's place; wait for the first one, unless the command ends before."""
        while self._process.poll() is None:
            if fault.place == "mlflow":
                assert self.server is not None
                victims = self.server.processes()
            else:
                victims = processes(self._process.pid).get(fault.place, [])
            if victims:
                return victims
            time.sleep(POLL_S)
        return []

    def _kill(self, outcome: Outcome) -> bool:
        if outcome.fault.place == "mlflow":
            return self._restart_server(outcome)
        victims = self._victims(outcome.fault)
        if not victims:
            return False
        victim = victims[int(outcome.fault.pick * len(victims))]
        outcome.where = _name(victim)
        try:
            victim.kill()
        except psutil.Error:
            return False
        return True

    def _restart_server(self, outcome: Outcome) -> bool:
        assert self.server is not None
        assert self.server_shim is not None
        outcome.where = outcome.where or "mlflow server"
        self.server.stop()
        for process in kin(str(self.server_shim.path)):  # a worker outlives a server that died alone
            with suppress(psutil.Error):
                process.kill()
        time.sleep(outcome.fault.lasts_s)
        self.server.start()
        return True

    def _cut(self, outcome: Outcome) -> bool:
        fault, shim = outcome.fault, self.server_shim if outcome.fault.place == "mlflow" else self.shim
        assert shim is not None
        shim.arm(fault.change, [victim.pid for victim in self._victims(fault)], fault.after)
        while not shim.struck() and self._process.poll() is None:
            self._before = self.sweep.progress()
            time.sleep(POLL_S / 3)
        shim.disarm()
        if not shim.struck():
            return False
        outcome.where = shim.where().replace(str(self.sweep.folder), "")
        if fault.place == "mlflow":
            self._restart_server(outcome)
        return True

    def _stop(self, outcome: Outcome) -> bool:
        victims = self._victims(outcome.fault)
        if victims and outcome.fault.place != "mlflow":
            victims = [victims[int(outcome.fault.pick * len(victims))]]
        outcome.where = ", ".join(sorted({_name(victim) for victim in victims}))
        with suppress(psutil.Error):
            for victim in victims:
                victim.suspend()
            time.sleep(outcome.fault.lasts_s)
        for victim in victims:
            with suppress(psutil.Error):
                victim.resume()
        return bool(victims)

    def _step_clock(self, outcome: Outcome) -> bool:
        """Step the clock and kill the driver soon after, twice, so that Tune has states of both times."""
        outcome.where = f"{outcome.fault.step_s:+.0f} s"
        self.shim.step_clock(outcome.fault.step_s)
        self._wait(2.0)
        self._process.kill()
        outcome.exits.append(self._process.wait())
        self._start()
        self._wait(1.3 * self.start_s)
        self._process.kill()
        return True

    def _fill(self, outcome: Outcome) -> bool:
        outcome.where = f"no room below the results for {outcome.fault.lasts_s:.0f} s"
        self.shim.fill(True)
        self._wait(outcome.fault.lasts_s)
        self.shim.fill(False)
        return True

    def _second_driver(self, outcome: Outcome) -> bool:
        """Start a second driver of the sweep beside the first, or, after a kill of the first, two at the same time."""
        while not self.sweep.begun():
            if self._process.poll() is not None:
                return False
            time.sleep(POLL_S)
        together = outcome.fault.pick < 0.5
        if together:
            self._process.kill()
            outcome.exits.append(self._process.wait())
            self._start()
        outcome.where = "two at the same time" if together else "beside the first"
        pair = [self._process, self.sweep.resume()]
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            codes = [process.poll() for process in pair]
            if None not in codes or any(codes):
                break
            time.sleep(POLL_S)
        pair.sort(key=lambda process: process.poll() not in (None, 0))  # either may have locked the folder first
        self._process, loser = pair
        if loser.poll() != 2:
            self.problems.append(f"the second driver ended with {loser.poll()} instead of 2")
            loser.kill()
        return True


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "a process that has ended"


def signal_name(code: int | None) -> str:
    """Return an exit code in words."""
    if code is None:
        return "hung"
    return signal.Signals(-code).name if code < 0 else str(code)


# ---- the report


def rows(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return counts and seconds of recovery by kind and place, and at the end those of all kills and of all faults."""
    frame = pd.DataFrame([
        {"fault": outcome.fault.kind, "place": outcome.fault.place, "kills": outcome.fault.kills,
         "lost": bool(outcome.lost), "recovery_s": outcome.recovery_s}
        for outcome in outcomes if outcome.hit
    ], columns=["fault", "place", "kills", "lost", "recovery_s"]).astype({"recovery_s": float})  # fmt: skip
    kills, every = frame[frame["kills"]].assign(fault="all kills"), frame.assign(fault="all faults")
    groups = pd.concat([frame, kills.assign(place=""), every.assign(place="")]).groupby(["fault", "place"], sort=False)
    return groups.agg(
        times=("lost", "size"), lost=("lost", "sum"), median_s=("recovery_s", "median"), longest_s=("recovery_s", "max")
    )


def report(outcomes: Sequence[Outcome]) -> str:
    """Return the report as Markdown."""
    table, hits = rows(outcomes).round(1).reset_index(), [outcome for outcome in outcomes if outcome.hit]
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    text = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    inside = sum(outcome.fault.kind == kinds.CUT for outcome in hits)
    kills = sum(outcome.fault.kills for outcome in hits)
    text.append(
        f"\n{kills} kills, {inside} of them inside a change of a file; {len(hits) - kills} other faults; "
        f"{len(outcomes) - len(hits)} drawn faults found their sweep ended and count nowhere."
    )
    for outcome in outcomes:
        about = f"* fault {outcome.fault.number} ({outcome.fault.kind}, {outcome.fault.place})"
        text += [f"{about}: {line}" for line in outcome.lost + outcome.notes]
    return "\n".join(text) + "\n"
