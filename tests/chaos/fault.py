"""The faults, drawn by seed: what happens, where, and when.

A fault comes in a quarter of the cases while its command starts, and otherwise within a second after one of the rounds
that are left. The kinds and places come in shuffled blocks of `BLOCK`, so that every share holds for any long run:
seventeen of twenty faults are kills, and five of these kills happen inside a change of a file.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import psutil

KILL, CUT, STOP, CLOCK, FULL, TWO = "kill", "kill inside a write", "stop", "clock", "full disk", "two drivers"
KILLS = (KILL, CUT)
STOP_S = 20.0
BLOCK = (
    *[(KILL, "driver")] * 4, *[(KILL, "trial")] * 2, *[(KILL, "device actor")] * 2, (KILL, "edge actor"),
    (KILL, "raylet"), (KILL, "gcs"), (KILL, "mlflow"), *[(CUT, "driver")] * 3, (CUT, "trial"), (CUT, "mlflow"),
    (STOP, None), (FULL, "driver"), ("clock or two", "driver"),
)  # fmt: skip
STOPPABLE = ("driver", "trial", "device actor", "raylet", "gcs", "mlflow")
MAX_CHANGE = 12  # an armed change is one of the next dozen: a round has about that many
CLOCK_STEPS_S = (-86400.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0)


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        number: its number in the run, from 0.
        kind: one of the kinds above.
        place: `driver`, `mlflow`, or one of `NAMES`.
        fraction: its moment, of the start and the rounds that are left.
        pick: in [0, 1): which of several processes of the place.
        change: for a kill inside a write: which of the next changes, from 1.
        after: for a kill inside a write: whether the change is made in full first.
        step_s: the clock's step, s.
        lasts_s: how long the process is stopped, the disk is full, or the server is down, s.
    """

    number: int
    kind: str
    place: str
    fraction: float
    pick: float
    change: int
    after: bool
    step_s: float
    lasts_s: float

    @property
    def kills(self) -> bool:
        """Whether a process is killed by the fault itself."""
        return self.kind in KILLS


def draw(seed: int, number: int) -> Fault:
    """Return the fault with this number. It depends on nothing else, so that a long run can go on at any number."""
    block, index = divmod(number, len(BLOCK))
    order = np.random.default_rng([seed, block]).permutation(len(BLOCK))
    kind, place = BLOCK[order[index]]
    rng = np.random.default_rng([seed, block, index])
    fraction, pick = rng.random(2)
    change, after = int(rng.integers(1, MAX_CHANGE, endpoint=True)), bool(rng.random() < 1 / 3)
    step_s = float(rng.choice(CLOCK_STEPS_S))
    lasts_s = float(rng.uniform(2, 12))
    if place is None:
        place = str(rng.choice(STOPPABLE))
    if kind == "clock or two":
        kind = (CLOCK, TWO)[block % 2]
    if kind == STOP:
        lasts_s = STOP_S
    return Fault(number, kind, place, float(fraction), float(pick), change, after, step_s, lasts_s)


# Places and the beginnings of their processes' names. Ray names the process of an actor after its class.
NAMES = {
    "trial": "ray::ImplicitFunc",
    "device actor": "ray::DeviceWorker",
    "edge actor": "ray::EdgeWorker",
    "raylet": "raylet",
    "gcs": "gcs_server",
}


def processes(driver: int) -> dict[str, list[psutil.Process]]:
    """Return the running processes of the sweep whose driver has this id, by place. MLflow's server is not among them.

    A process is listed once it has its name: a worker of Ray has none before its first actor.
    """
    places: dict[str, list[psutil.Process]] = {}
    with suppress(psutil.Error):
        top = psutil.Process(driver)
        if top.status() == psutil.STATUS_ZOMBIE:
            return places
        places["driver"] = [top]
        for process in top.children(recursive=True):
            with suppress(psutil.Error):
                name = process.name()
                for place, beginning in NAMES.items():
                    if name.startswith(beginning) and process.status() != psutil.STATUS_ZOMBIE:
                        places.setdefault(place, []).append(process)
    return places


def family(process: int) -> list[psutil.Process]:
    """Return the process and all its descendants; empty if it has ended."""
    try:
        top = psutil.Process(process)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def kin(mark: str) -> list[psutil.Process]:
    """Return every process of this machine that has `mark` in its environment, whoever its parent is now."""
    marked = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if mark in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                marked.append(process)
    return marked
