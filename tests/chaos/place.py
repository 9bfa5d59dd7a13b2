"""The processes of a sweep, by their place in it."""

from __future__ import annotations

from contextlib import suppress

import psutil

# Places and the beginnings of their processes' names. Ray names the process of an actor after its class.
NAMES = {
    "trial": "ray::ImplicitFunc",
    "device actor": "ray::DeviceWorker",
    "edge actor": "ray::EdgeWorker",
    "raylet": "raylet",
    "gcs": "gcs_server",
}
PLACES = ("driver", *NAMES, "mlflow")


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
