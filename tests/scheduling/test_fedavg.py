"""FedAvg scheduling, and the arguments, state and entry points that all schedulers share."""

from __future__ import annotations

import json
import sys
import types
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray import registry
from hflray.errors import ConfigError
from hflray.scheduling import Scheduler, build_scheduler


@settings(deadline=None)
@given(st.integers(1, 40), st.data(), st.integers(0, 9))
def test_a_schedule_has_h_unique_sorted_devices(n, data, seed):
    h = data.draw(st.integers(1, n))
    devices = build_scheduler("fedavg", num_devices=n, num_scheduled=h).schedule(np.random.default_rng(seed))
    assert devices.shape == (h,)
    assert devices.dtype.kind == "i"
    assert np.all(np.diff(devices) > 0)
    assert devices[0] >= 0
    assert devices[-1] < n


def test_devices_are_drawn_uniformly():
    scheduler, rng = build_scheduler("fedavg", num_devices=10, num_scheduled=3), np.random.default_rng(0)
    counts = np.bincount(np.concatenate([scheduler.schedule(rng) for _ in range(4000)]), minlength=10)
    # Each device is expected 1200 times; 4 standard deviations of a binomial (4000, 0.3) are 116.
    assert np.abs(counts - 1200).max() < 116


def test_equal_generators_give_equal_schedules_without_clusters():
    one, two = (build_scheduler("fedavg", num_devices=30, num_scheduled=7) for _ in range(2))
    assert one.auxiliary is None
    np.testing.assert_array_equal(one.schedule(np.random.default_rng(5)), two.schedule(np.random.default_rng(5)))


@pytest.mark.parametrize(
    "n, h, words",
    [
        (5, 0, ["num_scheduled", "0", "1 or more"]),
        (5, -3, ["num_scheduled", "-3", "1 or more"]),
        (5, 6, ["num_scheduled", "6", "num_devices = 5", "1 to 5", "lower"]),
        (5, 2.5, ["num_scheduled", "2.5", "integer"]),
        (5, True, ["num_scheduled", "True", "integer"]),
        (0, 1, ["num_devices", "0", "1 or more"]),
    ],
)
def test_bad_counts_are_named(n, h, words):
    with pytest.raises(ConfigError) as error:
        build_scheduler("fedavg", num_devices=n, num_scheduled=h)
    assert all(word in str(error.value) for word in words)


def test_unknown_options_and_names_are_refused():
    with pytest.raises(ConfigError, match=r"unknown option 'num_schedule'.*did you mean 'num_scheduled'.*accepted: "):
        build_scheduler("fedavg", num_devices=5, num_schedule=2)
    with pytest.raises(ConfigError, match="option 'num_scheduled' is missing"):
        build_scheduler("fedavg", num_devices=5)
    with pytest.raises(ConfigError, match=r"known: .*fedavg, ikc, "):
        build_scheduler("fedavgg")


def test_state_of_another_scheduler_n_or_h_is_refused():
    scheduler = build_scheduler("fedavg", num_devices=5, num_scheduled=2)
    state = json.loads(json.dumps(scheduler.state_dict()))
    scheduler.load_state_dict(state)
    for key, value in (("num_devices", 6), ("num_scheduled", 3), ("scheduler", "IKC")):
        with pytest.raises(ConfigError, match=f"{key} is "):
            scheduler.load_state_dict(state | {key: value})
    with pytest.raises(ConfigError, match="scheduler is None"):
        scheduler.load_state_dict({})


# A scheduler of another package, which takes H devices in turn, like a carousel.
PLUGIN = """
import numpy as np
from hflray.scheduling import Scheduler

class Carousel(Scheduler):
    def __init__(self, *, step=1, **common):
        super().__init__(**common)
        self.step, self.start = step, 0

    def schedule(self, rng):
        devices = (self.start + np.arange(self.num_scheduled)) % self.num_devices
        self.start = (self.start + self.step) % self.num_devices
        return np.sort(devices)

    def state_dict(self):
        return super().state_dict() | {"start": self.start}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.start = state["start"]
"""


@pytest.fixture
def plugin(monkeypatch):
    module = types.ModuleType("hflray_carousel")
    exec(PLUGIN, module.__dict__)
    monkeypatch.setitem(sys.modules, "hflray_carousel", module)
    registry._table.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    registry._table.cache_clear()


@pytest.mark.parametrize("how", ["registry line", "entry point"])
def test_a_scheduler_of_another_package_is_built_and_restored(plugin, how):
    if how == "registry line":
        plugin.setitem(registry.BUILTIN["scheduler"], "carousel", "hflray_carousel:Carousel")
    else:
        point = EntryPoint("carousel", "hflray_carousel:Carousel", "hflray.schedulers")
        plugin.setattr(registry, "entry_points", lambda group: [point] if group == point.group else [])
    scheduler = build_scheduler("carousel", num_devices=5, num_scheduled=2, step=3)
    assert isinstance(scheduler, Scheduler)
    rng = np.random.default_rng(0)
    assert scheduler.schedule(rng).tolist() == [0, 1]
    other = build_scheduler("carousel", num_devices=5, num_scheduled=2, step=3)
    other.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert scheduler.schedule(rng).tolist() == other.schedule(rng).tolist() == [3, 4]
    with pytest.raises(ConfigError, match="num_scheduled"):
        build_scheduler("carousel", num_devices=5, num_scheduled=9)
