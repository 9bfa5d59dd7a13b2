"""hflray.training.backend: measured settings are settled once, and the available GPUs and CPUs size the pool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.models.problem import Problem
from hflray.support.limits import available_cpus
from hflray.training import machine
from hflray.training.backend import Backend
from hflray.training.hierarchy import SerialHierarchy
from hflray.training.kernels import fixed_kernel
from hflray.training.machine import keep_to, quiet_heap
from tests.conftest import own_module, small_config

SHAPE, CLASSES = (1, 28, 28), 10


def make_backend(*overrides: str, **options: object) -> Backend:
    """Return a backend of 12 devices with 1 to 12 samples."""
    return Backend(small_config(*overrides), Problem(SHAPE, CLASSES), np.arange(1, 13), **options)  # type: ignore[arg-type]


def test_rays_gpus_size_the_pool(ray_session) -> None:
    """Ray's GPU is fictitious (tests/conftest.py), so nothing is trained."""
    on_gpu = ("training.backend=ray", "training.device=auto")
    experiment = Experiment(small_config(*on_gpu))
    assert (experiment.resolve().training.device, experiment.config.training.kernel) == ("cuda", "batched")
    assert experiment.backend.pool(2) == (1, 1.0, 1.0)
    assert Experiment(small_config(*on_gpu)).backend.available_gpus() == 1.0
    for part, pool in ((0.5, (1, 1.0, 0.5)), (2.0, (2, 1.0, 1.0))):
        experiment = Experiment(small_config(*on_gpu), gpus=part)
        experiment.resolve()
        assert experiment.backend.pool(2) == pool
    alone = Experiment(small_config(*on_gpu), gpus=0.0)
    assert alone.resolve().training.device == "cpu"


def test_settings_that_are_named_or_settled_elsewhere_stay() -> None:
    assert make_backend().settle().kernel == fixed_kernel(Problem(SHAPE, CLASSES))
    assert make_backend("training.kernel=eager").settle().kernel == "eager"
    elsewhere = make_backend(settled={"kernel": "eager", "threads": 2})
    assert (elsewhere.settle().kernel, elsewhere.settle().threads) == ("eager", 2)
    with pytest.raises(AssertionError):
        make_backend().job()  # nothing is trained before everything is settled


def test_a_saved_run_decides_only_the_settings_that_were_left_open() -> None:
    saved = make_backend("training.kernel=eager", "training.threads=3").settle()
    opened, named = make_backend(), make_backend("training.kernel=channels_last")
    assert (opened.take_over(saved).kernel, opened.settle().threads) == ("eager", 3)
    assert (named.take_over(saved).kernel, named.settle().threads) == ("channels_last", 3)
    # A setting that was measured had been left open, so the saved run decides it.
    settled = make_backend(settled={"kernel": "channels_last"})
    assert settled.take_over(saved).kernel == "eager"


def test_a_backend_starts_on_first_use_and_again_after_its_end() -> None:
    experiment = Experiment(small_config())
    calls: list[int] = []

    def data():  # type: ignore[no-untyped-def]
        calls.append(1)
        return experiment.scenario.device_data()

    experiment.resolve()
    backend = experiment.backend
    hierarchy = backend.hierarchy(data)
    assert isinstance(hierarchy, SerialHierarchy)
    assert backend.started
    assert backend.hierarchy(data) is hierarchy
    backend.close()
    assert not backend.started
    assert backend.hierarchy(data) is not hierarchy
    assert len(calls) == 2


def test_passes_are_samples_times_iterations() -> None:
    samples = np.array([1.0, 12.0])
    everybody = np.ones((2, 2), dtype=bool)
    assert make_backend("training.local_iterations=3").passes(samples, everybody) == 13 * 3 * 2
    step = make_backend("training.local_iteration=step", "training.batch_size=4")
    assert step.passes(samples, everybody) == (1 + 4) * 1 * 2
    assert (
        step.passes(samples, np.array([[True, True], [True, False]])) == 1 + 4 + 1
    )  # a device that takes part in one of two


# hflray.training.machine: the heap and a CPU for each process.


def test_the_heap_can_be_configured() -> None:
    quiet_heap()


CLAIM = own_module("claim")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinities on this platform")
def test_processes_never_share_a_claimed_cpu_and_give_it_back(monkeypatch, tmp_path) -> None:
    env = os.environ | {"TMPDIR": str(tmp_path)}
    cpus = available_cpus()

    def start() -> tuple[subprocess.Popen[str], list[str]]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", CLAIM], stdin=pipe, stdout=pipe, text=True, env=env)
        assert process.stdout is not None
        return process, process.stdout.readline().split()

    started = [start() for _ in range(min(2, len(cpus)))]
    claimed = [answer[0] for _, answer in started]
    assert len(set(claimed)) == len(claimed)
    assert all(answer == [answer[0], answer[0]] for _, answer in started)
    if len(cpus) == len(started):  # all CPUs are claimed, so the next process is not pinned
        process, answer = start()
        assert answer == ["None", *map(str, cpus)]
        process.communicate()
    started[0][0].communicate()
    process, answer = start()
    assert answer[0] == claimed[0]
    for remaining in (process, started[-1][0]):
        remaining.communicate() if remaining.poll() is None else None


def test_a_container_may_have_less_memory_than_its_machine(tmp_path, monkeypatch) -> None:
    limit, used = tmp_path / "limit", tmp_path / "used"
    monkeypatch.setattr(machine, "MEMORY_FILES", ((str(limit), str(used)),))
    total, _ = machine.memory_bytes()
    limit.write_text("max")
    assert machine.memory_bytes()[0] == total
    limit.write_text(str(2**30))
    used.write_text(str(2**29))
    assert machine.memory_bytes() == (2**30, min(2**29, machine.memory_bytes()[1]))


def test_without_linuxs_file_all_memory_counts_as_free(monkeypatch) -> None:
    total, _ = machine.memory_bytes()
    read = Path.read_text

    def without(path: Path, **options: str) -> str:
        if str(path) == "/proc/meminfo":
            raise FileNotFoundError(path)
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", without)
    assert machine.memory_bytes() == (pytest.approx(total, rel=0.1),) * 2


KEEPS = own_module("keeps")


def test_a_process_and_its_children_keep_to_one_cpu() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "1", "True"]


def test_the_idlest_cpus_are_kept(monkeypatch) -> None:
    samples = iter([{0: 100, 1: 100, 2: 100, 3: 100}, {0: 101, 1: 120, 2: 119, 3: 100}])
    kept = []
    monkeypatch.setattr(machine, "available_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(machine, "_idle_ticks", lambda: next(samples))
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: kept.append(tuple(cpus)))
    assert keep_to(2) == (1, 2)
    assert kept == [(1, 2)]


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_more_cpus_than_there_are_are_refused(count: int) -> None:
    before = available_cpus()
    with pytest.raises(ConfigError, match=f"--cpus: got {count}; accepted: 1 to {len(before)}"):
        keep_to(count)
    assert available_cpus() == before
