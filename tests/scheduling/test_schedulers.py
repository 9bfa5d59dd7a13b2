"""The contract of all schedulers: N, H and availability, state, equal draws, options, and those of other packages."""

from __future__ import annotations

import json
import sys
import types
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray import registry
from hflray.errors import ConfigError
from hflray.scheduling import Poll, RoundContext, Scheduler, build_scheduler, choose_devices
from tests.conftest import own_module, refusal, refusals
from tests.scheduling import toy

NAMES = sorted(registry.BUILTIN["scheduler"])
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES), ("oort", {"variant": "code", "window": 1}), ("ucb", {"variant": "cs_ucb_q"}),
    ("joint_cost", {"coupling": "joint", "max_wait": None}), ("energy_aware", {"budget_j": 0.5}),
]  # fmt: skip


def build(name: str, num_devices: int = 12, num_scheduled: int = 4, **options: Any) -> Scheduler:
    clusters = np.arange(num_devices) % 3
    return build_scheduler(name, num_devices=num_devices, num_scheduled=num_scheduled, clusters=clusters, **options)


def context(index: int, num_devices: int, seed: int, order: Any = None) -> RoundContext:
    """Return a random context of a round, whose devices are in an order."""
    rng = np.random.default_rng([seed, index])
    order = np.arange(num_devices) if order is None else order
    fleet = toy.fleet(rng.uniform(1e-12, 1e-11, (num_devices, 2))[order], rng.uniform(50, 100, num_devices)[order])
    available, losses = (rng.random(num_devices) < rng.choice([0.2, 0.7, 1.0]))[order], rng.uniform(0, 3, num_devices)
    losses, last_round = losses[order], rng.integers(0, index, num_devices)[order]
    known = np.where(last_round > 0, losses, np.nan)  # a device that never counted has no loss and no delay
    past = {"last_loss": known, "last_utility": 50 * known, "last_delay_s": known + 1, "last_round": last_round}
    past |= {"participation": last_round // 2, "class_counts": rng.integers(1, 50, (num_devices, 3))[order]}
    poll = Poll(fleet, available, lambda devices: losses[devices])
    return toy.context(fleet, index, seed, available=available, poll=poll, **past)


def rounds(scheduler: Scheduler, numbers: range, seed: int) -> list[list[int]]:
    """Return the devices that a scheduler chooses in some rounds, all of which it observes."""
    chosen = []
    for index in numbers:
        seen = context(index, scheduler.num_devices, seed)
        devices = choose_devices(scheduler, seen)  # checks the number and the availability
        assert len(devices) == min(scheduler.num_scheduled, seen.available.sum())
        assert (np.diff(devices) > 0).all()
        scheduler.observe(toy.record(devices, 1.0 + devices % 3, 2.0))
        chosen.append(devices.tolist())
    return chosen


@pytest.mark.parametrize("name, options", VARIANTS)
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 15), st.data(), st.integers(0, 99))
def test_h_available_devices_are_chosen_and_a_restored_scheduler_goes_on(name, options, n, data, seed) -> None:
    h, before = data.draw(st.integers(1, n)), data.draw(st.integers(0, 5))
    scheduler, twin, resumed = (build(name, n, h, **options) for _ in range(3))
    first = rounds(scheduler, range(1, before + 1), seed)
    assert rounds(twin, range(1, before + 1), seed) == first  # equal generators give equal schedules
    state = json.loads(json.dumps(scheduler.state_dict()))
    resumed.load_state_dict(state)
    later = rounds(scheduler, range(before + 1, before + 5), seed)
    assert rounds(resumed, range(before + 1, before + 5), seed) == later
    assert resumed.state_dict() == scheduler.state_dict()


@pytest.mark.parametrize("name", ["best_channel", "fastest", "coverage", "energy_aware", "learned"])
def test_the_numbers_of_the_devices_do_not_matter(name: str) -> None:
    order = np.random.default_rng(1).permutation(12)
    for seed in range(10):
        chosen = choose_devices(build(name), context(3, 12, seed))
        again = choose_devices(build(name), context(3, 12, seed, order))
        assert sorted(order[again].tolist()) == chosen.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_state_of_another_scheduler_n_or_h_is_refused(name: str) -> None:
    scheduler = build(name)
    state = json.loads(json.dumps(scheduler.state_dict()))
    for key, value in (("num_devices", 6), ("num_scheduled", 3), ("scheduler", "Other")):
        with pytest.raises(ConfigError, match=f"{key} is "):
            scheduler.load_state_dict(state | {key: value})
    with pytest.raises(ConfigError, match="scheduler is None"):
        scheduler.load_state_dict({})


@pytest.mark.parametrize("n, h, facts", refusals("scheduling/counts"))
@pytest.mark.parametrize("name", NAMES)
def test_bad_counts_are_named(name: str, n: Any, h: Any, facts: tuple[str, ...]) -> None:
    with refusal(ConfigError, *facts):
        build_scheduler(name, num_devices=n, num_scheduled=h, clusters=[0] * n)


@pytest.mark.parametrize("name", NAMES)
def test_the_counts_are_given_by_name_and_may_be_numpys(name: str) -> None:
    made: Any = registry.resolve("scheduler", name)
    with pytest.raises(TypeError, match="positional"):
        made(2, 3, [0, 0, 0])
    scheduler = build(name, np.int64(3), np.int64(3))  # type: ignore[arg-type]
    assert (scheduler.num_devices, scheduler.num_scheduled) == (3, 3)
    assert type(scheduler.num_devices) is int


def test_a_wrong_option_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="option 'num_scheduled' is missing"):
        build_scheduler("fedavg", num_devices=5)
    with pytest.raises(ConfigError, match=r"known: .*fedavg, ikc, "):
        build_scheduler("fedavgg")


# A scheduler of another package, which takes H devices in turn, like a carousel.
PLUGIN = own_module("scheduler")


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
