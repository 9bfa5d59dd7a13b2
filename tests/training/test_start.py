"""hflray.training.start: the process uses the Ray that has begun to start in the background."""

from __future__ import annotations

import subprocess
import sys

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
