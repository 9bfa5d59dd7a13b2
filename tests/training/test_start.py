"""hflray.training.start: the process uses the Ray that has begun to start in the background."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hflray.training import start

SOON = """
import ray
from hflray.training.start import cancel_start, start_ray, start_soon
{before}
start_soon()
start_soon()
{then}
"""


def run(then: str, before: str = "") -> str:
    """Return the output of a process that runs `before`, begins to start Ray, and then runs `then`."""
    command = [sys.executable, "-c", SOON.format(before=before, then=then)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=150).stdout.strip()


def test_a_ray_that_was_begun_is_used_and_stays() -> None:
    """Ray's processes end with the thread that starts them, which must not end before the process does."""
    then = "import time\ncpus = start_ray()\ntime.sleep(2)\n"
    then += "print(cpus == ray.cluster_resources()['CPU'], ray.get(ray.remote(lambda: 7).remote()))"
    assert run(then) == "True 7"


def test_a_ray_that_was_begun_in_vain_is_ended() -> None:
    assert run("cancel_start()\ncancel_start()\nprint(ray.is_initialized())") == "False"


def test_a_ray_of_the_process_itself_outlives_a_start_in_vain() -> None:
    """The caller of the command's entry point may have a Ray of its own, with resources that ours would lack."""
    before = "ray.init(num_cpus=1, resources={'theirs': 1}, include_dashboard=False)"
    assert run("cancel_start()\nprint(ray.cluster_resources().get('theirs'))", before) == "1.0"


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_ray_that_a_busy_machine_did_not_start_in_time_is_started_again(monkeypatch, failures: int) -> None:
    calls: list[str] = []

    def init(**options: object) -> str:
        calls.append("init")
        if calls.count("init") <= failures:
            raise Exception("The current node timed out during startup. The GCS may have become overloaded.")
        return "context"

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: calls.append("shutdown"))
    if failures > 1:
        with pytest.raises(Exception, match="timed out during startup"):
            start._init({})
    else:
        assert start._init({}) == "context"
    assert calls == [["init"], ["init", "shutdown", "init"], ["init", "shutdown", "init"]][failures]
