"""hflray.training.backend: measured settings are settled once, and the available GPUs and CPUs size the pool."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.experiment import Experiment
from hflray.models.problem import Problem
from hflray.training.backend import Backend
from hflray.training.hierarchy import SerialHierarchy
from hflray.training.kernels import fixed_kernel
from tests.conftest import small_config

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
