"""hflray.training.backend: measured settings are settled once, and the available GPUs and CPUs size the pool."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.experiment import Experiment
from hflray.training import autotune
from hflray.training import backend as module
from hflray.training.backend import Backend
from hflray.training.hierarchy import SerialHierarchy
from tests.conftest import small_config

SHAPE, CLASSES = (1, 28, 28), 10


def made(*overrides: str, **options: object) -> Backend:
    """Return a backend of 12 devices with 1 to 12 samples."""
    return Backend(small_config(*overrides), SHAPE, CLASSES, np.arange(1, 13), **options)  # type: ignore[arg-type]


def test_rays_gpus_size_the_pool(ray_session, monkeypatch) -> None:
    """Ray's GPU is fictitious (tests/conftest.py), so nothing is trained."""
    measurements = []
    monkeypatch.setattr(module, "processes_per_gpu", lambda *what: (measurements.append(what), 2)[1])
    on_gpu = ("training.backend=ray", "training.device=auto")
    experiment = Experiment(small_config(*on_gpu))
    assert (experiment.resolve().training.device, experiment.config.training.kernel) == ("cuda", "batched")
    assert experiment.backend.pool(2) == (2, 1.0, 0.5)
    ((load, share),) = measurements
    assert (load.devices, share) == (6, 1.0)
    assert Experiment(small_config(*on_gpu, "training.autotune=false")).backend.gpus_there() == 1.0
    for part, pool in ((0.5, (1, 1.0, 0.5)), (2.0, (4, 0.5, 0.5))):
        experiment = Experiment(small_config(*on_gpu), gpus=part)
        experiment.resolve()
        assert experiment.backend.pool(2) == pool
    assert measurements[-1][0].devices == 3  # on each of the two GPUs
    alone = Experiment(small_config(*on_gpu), gpus=0.0)
    assert alone.resolve().training.device == "cpu"
    assert len(measurements) == 3


def test_settings_that_are_named_or_settled_elsewhere_stay() -> None:
    assert made().settle().kernel == autotune.fixed_kernel()
    assert made("training.kernel=eager").settle().kernel == "eager"
    elsewhere = made(settled={"kernel": "eager", "threads": 2})
    assert (elsewhere.settle().kernel, elsewhere.settle().threads) == ("eager", 2)
    with pytest.raises(AssertionError):
        made().job("hfl")  # nothing is trained before everything is settled


def test_a_saved_run_decides_only_the_settings_that_were_left_open() -> None:
    saved = made("training.kernel=eager", "training.threads=3").settle()
    opened, named = made(), made("training.kernel=channels_last")
    assert (opened.take_over(saved).kernel, opened.settle().threads) == ("eager", 3)
    assert (named.take_over(saved).kernel, named.settle().threads) == ("channels_last", 3)
    # A setting that was measured had been left open, so the saved run decides it.
    settled = made(settled={"kernel": "channels_last"})
    assert settled.take_over(saved).kernel == "eager"


def test_a_backend_starts_on_first_use_and_again_after_its_end() -> None:
    experiment = Experiment(small_config())
    calls: list[int] = []

    def data():  # type: ignore[no-untyped-def]
        calls.append(1)
        return experiment.scenario.device_data()

    experiment.resolve()
    backend = experiment.backend
    first = backend.hierarchy(data)
    assert isinstance(first, SerialHierarchy)
    assert backend.started
    assert backend.hierarchy(data) is first
    backend.close()
    assert not backend.started
    assert backend.hierarchy(data) is not first
    assert len(calls) == 2


def test_passes_are_samples_times_iterations() -> None:
    samples = np.array([1.0, 12.0])
    assert made("training.local_iterations=3").passes(samples) == 13 * 3 * 2
    step = made("training.local_iteration=step", "training.batch_size=4")
    assert step.passes(samples) == (1 + 4) * 1 * 2
