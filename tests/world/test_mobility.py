"""hflray.world.mobility: stationary laws, speeds and borders of paths, and the field of shadowing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from hflray import registry
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.world.mobility import GaussMarkov, ShadowField
from hflray.world.motion import move_reflected
from tests.conftest import small_config

AREA_M, MANY = 1000.0, 20_000
START_M = np.random.default_rng(0).uniform(0, AREA_M, (MANY, 2))
WAYPOINTS = {"v_min_m_per_s": 0.5, "v_max_m_per_s": 20.0, "pause_s": 30.0}


def build(name: str, count: int = MANY, area_m: float = AREA_M, **options: Any) -> Any:
    position_m = START_M[:count] * (area_m / AREA_M)
    return registry.build("mobility", name, seed=1, position_m=position_m, area_m=area_m, slot_s=1.0, **options)


@pytest.mark.parametrize("clock_s", [0.0, 700.0, 9_000.0])
def test_random_waypoints_are_stationary(clock_s: float) -> None:
    """The mean speed is 1 / E[1/v] of its law, and positions gather in the middle, at the start and later."""
    part = build("random_waypoint", **WAYPOINTS)
    part.advance(clock_s)
    assert part.position_m.min() >= 0
    assert part.position_m.max() <= AREA_M
    moving = (part.start_s <= clock_s) & (part.end_s > clock_s)
    mean_inverse = np.log(20.0 / 0.5) / 19.5
    leg_s = 0.5214054 * AREA_M * mean_inverse
    assert moving.mean() == pytest.approx(leg_s / (leg_s + 30), abs=0.01)
    speed = np.linalg.norm(part.to_m - part.from_m, axis=1)[moving] / (part.end_s - part.start_s)[moving]
    assert speed.mean() == pytest.approx(1 / mean_inverse, rel=0.03)
    # The standard deviation of a coordinate is 246 m (measured over 4 million seconds), and 289 m if uniform.
    assert part.position_m.std(axis=0) == pytest.approx([246, 246], abs=4)


def test_random_waypoints_move_at_their_speed() -> None:
    part = build("random_waypoint", v_min_m_per_s=3.0, v_max_m_per_s=3.0)
    before = part.position_m
    part.advance(1.0)
    step_m = np.linalg.norm(part.position_m - before, axis=1)
    assert step_m.max() <= 3 + 1e-9
    assert (np.abs(step_m - 3) < 1e-9).mean() > 0.98  # the others turned


def test_gauss_markov_is_stationary_and_reflected() -> None:
    part = build("gauss_markov", area_m=1e6, speed_m_per_s=15.0, memory_s=20.0)  # so wide that few devices reflect
    first = part.velocity_m_per_s.copy()
    part.advance(20.0)
    correlation = (first * part.velocity_m_per_s).mean() / (first**2).mean()
    assert correlation == pytest.approx(np.exp(-1), abs=0.02)
    part = build("gauss_markov", 5_000, speed_m_per_s=15.0, memory_s=20.0)
    part.advance(300.0)
    speed = np.sqrt((part.velocity_m_per_s**2).sum(axis=1).mean())
    assert speed == pytest.approx(15, rel=0.03)
    assert part.position_m.min() >= 0
    assert part.position_m.max() <= AREA_M
    assert part.position_m.std(axis=0) == pytest.approx([289, 289], abs=7)


def test_a_large_fleet_moves_the_devices_that_somebody_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions have the bits of a fleet in which all move in each slot, whoever looks when, and after a resume."""

    def made() -> GaussMarkov:
        place_m = 1000.0 * np.random.default_rng(5).random((40, 2))
        return GaussMarkov(seed=2, position_m=place_m, area_m=1000.0, slot_s=1.0, speed_m_per_s=20.0)

    eager = made()
    monkeypatch.setattr("hflray.world.mobility.MOST_MOVED", 39)
    lazy, drawn = made(), list[int]()
    normal = GaussMarkov._normal
    monkeypatch.setattr(
        GaussMarkov, "_normal", lambda self, slots, devices: drawn.append(len(devices)) or normal(self, slots, devices)
    )
    for clock_s, looked in ((7.0, [3, 3, 8]), (7.5, [8]), (90.0, [1]), (200.0, [3, 1, 30]), (201.0, [[3], [30]])):
        for mobility in (lazy, eager):
            mobility.advance(clock_s)
        drawn.clear()
        np.testing.assert_array_equal(np.asarray(lazy.places()[np.array(looked)]), eager.position_m[np.array(looked)])
        assert sum(drawn) <= len(set(np.ravel(looked)))
    other = made()
    other.load_state_dict(lazy.state_dict())
    for mobility in (eager, lazy, other):
        mobility.advance(260.0)
        np.testing.assert_array_equal(np.asarray(mobility.places()), eager.position_m)
    assert "moved_to" not in eager.state_dict()
    assert lazy.places()[:, 0].tolist() == eager.position_m[:, 0].tolist()


@pytest.mark.parametrize("slot_s, clock_s", [(5e-324, 12.0), (1e-9, 12.0), (1.0, 1e9)])
def test_motion_of_too_many_steps_is_refused(slot_s: float, clock_s: float) -> None:
    part = GaussMarkov(seed=2, position_m=START_M[:3], area_m=1000.0, slot_s=slot_s, speed_m_per_s=20.0)
    refused = f"world.mobility.slot_s: got {slot_s:g}; {clock_s:.3g} s of motion would have more than 10,000,000 steps"
    with pytest.raises(ConfigError, match=re.escape(refused)):
        part.advance(clock_s)


@pytest.mark.parametrize(
    "motion",
    ["random_waypoint, options: {v_min_m_per_s: 1, v_max_m_per_s: 2}", "gauss_markov, options: {speed_m_per_s: 1}"],
)
def test_motion_starts_at_given_places(motion, tmp_path) -> None:
    (tmp_path / "d.csv").write_text("x_m,y_m\n" + "".join(f"{10 * n},{5 * n}\n" for n in range(12)))
    place = [f"fleet={{name: table, num_edges: 3, area_km: 0.5, options: {{devices: {tmp_path / 'd.csv'}}}}}"]
    world = Experiment(small_config(*place, f"world.mobility={{name: {motion}}}")).world
    assert world.mobility.places().tolist() == [[10 * n, 5 * n] for n in range(12)]
    world.mobility.advance(10.0)
    moved_m = np.linalg.norm(world.mobility.places() - [[10 * n, 5 * n] for n in range(12)], axis=1)
    assert (moved_m > 0).all()
    assert (moved_m < 100).all()
    world.mobility.advance(2000.0)
    assert ((world.mobility.places() >= 0) & (world.mobility.places() <= 500)).all()


@pytest.mark.parametrize("speed_m_per_s", [15.0, 80.0, 5_000.0])  # the last one passes several borders in a slot
def test_the_motion_is_that_of_the_definition_to_the_last_bit(speed_m_per_s: float) -> None:
    rng = np.random.default_rng(2)
    keep, slot_s, side_m = 0.9, 1.7, 1000.0
    position_m, velocity = rng.uniform(0, side_m, 40), speed_m_per_s * rng.normal(size=40)
    normal, push = rng.normal(size=(300, 40)), 0.4 * speed_m_per_s
    moved_m, moved_m_per_s = position_m.copy(), velocity.copy()
    move_reflected(moved_m, moved_m_per_s, normal, keep, push, slot_s, side_m)

    turned = 0
    for row in normal:
        velocity = keep * velocity + push * row
        position_m = np.mod(position_m + slot_s * velocity, 2 * side_m)
        beyond = position_m > side_m
        position_m, velocity = np.where(beyond, 2 * side_m - position_m, position_m), np.where(beyond, -1, 1) * velocity
        turned += beyond.sum()
    assert turned > 20
    np.testing.assert_array_equal(moved_m, position_m)
    np.testing.assert_array_equal(moved_m_per_s, velocity)
    assert moved_m.min() >= 0
    assert moved_m.max() <= side_m


def test_what_leaves_through_a_border_comes_back() -> None:
    position_m, velocity_m_per_s = np.array([1.0, 9.0, 5.0]), np.array([-3.0, 4.0, 0.0])
    move_reflected(position_m, velocity_m_per_s, np.zeros((1, 3)), 1.0, 0.0, 1.0, 10.0)
    assert position_m.tolist() == [2.0, 7.0, 5.0]
    assert velocity_m_per_s.tolist() == [3.0, -4.0, 0.0]


DEVICES = np.arange(100_000)
HERE = np.full((len(DEVICES), 2), 300.0)


def test_a_link_has_a_standard_normal_field() -> None:
    field = ShadowField(1, 50.0)(DEVICES, 3, HERE)
    assert field.mean() == pytest.approx(0, abs=0.01)
    assert field.var() == pytest.approx(1, rel=0.02)
    assert (field**4).mean() == pytest.approx(3 - 1.5 / 16, rel=0.04)
    assert (field > 2).mean() == pytest.approx(0.0228, abs=0.004)


@pytest.mark.parametrize("distance_m", [5.0, 25.0, 50.0, 150.0])
@pytest.mark.parametrize("angle", [0.0, 1.1])
def test_the_correlation_falls_exponentially_with_the_distance(distance_m: float, angle: float) -> None:
    field = ShadowField(1, 50.0)
    there = HERE + distance_m * np.array([np.cos(angle), np.sin(angle)])
    correlation = np.corrcoef(field(DEVICES, 3, HERE), field(DEVICES, 3, there))[0, 1]
    assert correlation == pytest.approx(np.exp(-distance_m / 50), abs=0.015)


def test_links_are_independent_and_drawn_by_key() -> None:
    field = ShadowField(1, 50.0)
    one, other = field(DEVICES, 3, HERE), field(DEVICES, 4, HERE)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.01
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.01
    table = field(DEVICES[:6, None], np.arange(5), HERE[:6, None])
    assert table.shape == (6, 5)
    np.testing.assert_allclose(table[:, 3], one[:6], rtol=1e-12)
