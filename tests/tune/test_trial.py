"""`hflray.tune.trial`: a data set is in the object store once, and training on it gives the same models."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from functools import partial

import numpy as np
import ray

from hflray.experiment.scenario import Scenario
from hflray.training.job import DeviceData
from hflray.tune.trial import share
from tests.conftest import small_config


def test_the_samples_are_pickled_without_images_and_restored(ray_session) -> None:
    scenario = Scenario.build(small_config())
    source = ray.put(scenario.dataset)
    data = scenario.device_data()
    shared = replace(scenario, share=partial(share, source)).device_data()
    restored = ray.get(ray.put(shared))
    for field in fields(DeviceData):
        np.testing.assert_array_equal(getattr(restored, field.name), getattr(data, field.name))
        np.testing.assert_array_equal(getattr(shared, field.name), getattr(data, field.name))
    _, parts = shared.__reduce__()
    assert parts[0] is source
    assert sum(len(pickle.dumps(part)) for part in parts[1:]) < data.x.nbytes / 10


def test_crops_of_images_are_not_shared() -> None:
    """Algorithm 2 trains on crops of the images, which are not in the data set."""

    def refuse(data: DeviceData) -> DeviceData:
        raise AssertionError("shared")

    scenario = replace(Scenario.build(small_config()), share=refuse)
    crops = np.zeros((len(scenario.dataset.x_train), 1, 10, 10), np.uint8)
    assert scenario.device_data(crops).x is crops
