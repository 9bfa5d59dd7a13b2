"""hflray.world.faults: who vanishes, is late, is faulty or loses its edge, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

from hflray import metrics
from hflray.config import EdgeFailureConfig
from hflray.config.clock import EdgeClockConfig
from hflray.cost import Schedule, Workload
from hflray.timeline import Durations, Ends, Hops, Period, timeline
from hflray.world.faults import Dropout, Faulty, Jitter, edge_failure, fates
from tests.world.living import living

RECEIVED, MODEL = np.float32([1, 2, 3, 8]), np.float32([1.5, 2, 2, 9])  # the last number is a statistic


def sent(kind: str, strength: float = 1.0) -> np.ndarray:
    return Faulty(0.2, kind, strength).sent(MODEL, RECEIVED, 3, np.random.default_rng(3))


def test_a_flipped_update_goes_backwards_by_hand() -> None:
    np.testing.assert_array_equal(sent("sign_flip"), [0.5, 2, 4, 9])
    np.testing.assert_array_equal(sent("sign_flip", 4.0), [-1, 2, 7, 9])


def test_a_device_that_sends_nothing_new_sends_what_it_received() -> None:
    np.testing.assert_array_equal(sent("zero", 4.0), [1, 2, 3, 9])


def test_noise_has_the_length_of_the_update_and_another_direction_in_each_draw() -> None:
    noise = sent("noise", 2.0)[:3] - RECEIVED[:3]
    assert np.linalg.norm(noise) == pytest.approx(2 * np.linalg.norm((MODEL - RECEIVED)[:3]), rel=1e-6)
    other = Faulty(0.2, "noise", 2.0).sent(MODEL, RECEIVED, 3, np.random.default_rng(4))[:3] - RECEIVED[:3]
    assert not np.allclose(noise, other)


def test_the_devices_are_drawn_once_by_seed_and_more_of_them_include_the_fewer() -> None:
    masks = [Faulty(share, "zero", 1.0).devices(0, 50) for share in (0.2, 0.5, 1.0)]
    assert [int(mask.sum()) for mask in masks] == [10, 25, 50]
    assert (masks[1] | ~masks[0]).all()
    assert not np.array_equal(masks[0], Faulty(0.2, "zero", 1.0).devices(1, 50))


@pytest.mark.parametrize("kind", ["noise", "sign_flip", "zero"])
def test_faulty_devices_change_the_model_and_no_bill(kind: str) -> None:
    plain = living("max_rounds=1").run_round()
    faulty = living("max_rounds=1", f"world.faulty={{share: 0.5, kind: {kind}}}").run_round()
    assert faulty.model_hash != plain.model_hash
    assert faulty.cost.objective == pytest.approx(plain.cost.objective, rel=1e-12)
    assert set(metrics.names_logged("world")) <= set(faulty.metrics())


def test_if_nobody_sends_anything_new_the_global_model_stays() -> None:
    experiment = living("max_rounds=1", "world.faulty={share: 1, kind: zero}")
    before = experiment.global_model.copy()
    experiment.run_round()
    np.testing.assert_allclose(experiment.global_model, before, rtol=1e-6)  # the mean of equal models is rounded


def test_a_share_vanishes_within_the_planned_time() -> None:
    share, planned_s = 0.3, 20.0
    dropout = Dropout(1, -np.log(1 - share) / planned_s)
    vanish_s = dropout.vanish_s(4, np.arange(100_000))
    assert (vanish_s < planned_s).mean() == pytest.approx(share, abs=0.006)
    assert vanish_s.mean() == pytest.approx(1 / dropout.rate_per_s, rel=0.02)


def test_rounds_and_devices_are_drawn_by_key() -> None:
    dropout = Dropout(1, 0.01)
    np.testing.assert_array_equal(dropout.vanish_s(4, np.array([9, 3]))[1], dropout.vanish_s(4, np.array([3]))[0])
    assert dropout.vanish_s(5, np.array([3])) != dropout.vanish_s(4, np.array([3]))


@pytest.mark.parametrize("sigma", [0.2, 0.8])
def test_the_factor_is_log_normal_with_mean_one(sigma: float) -> None:
    factor = Jitter(1, sigma).factor(3, range(2), np.arange(200_000))
    assert factor.shape == (2, 200_000)
    assert factor.mean() == pytest.approx(1, rel=0.01)
    assert factor.std() == pytest.approx(np.sqrt(np.exp(sigma**2) - 1), rel=0.03)
    assert np.log(factor).std() == pytest.approx(sigma, rel=0.01)
    assert abs(np.corrcoef(factor[0], factor[1])[0, 1]) < 0.01


def test_a_factor_depends_on_round_iteration_and_device_alone() -> None:
    jitter = Jitter(1, 0.5)
    np.testing.assert_array_equal(
        jitter.factor(3, range(4), np.array([7, 2]))[:2, 1], jitter.factor(3, range(2), np.array([2]))[:, 0]
    )
    assert (jitter.factor(4, range(2), np.array([2])) != jitter.factor(3, range(2), np.array([2]))).all()


def test_the_share_of_working_edges_and_the_time_to_the_next_failure() -> None:
    edges = edge_failure(EdgeFailureConfig(mtbf_s=900, mttr_s=100), 50_000, 0)
    assert edges is not None
    for clock_s in (0.0, 350.0, 7000.0):
        edges.advance(clock_s)
        assert edges.up.mean() == pytest.approx(0.9, abs=0.005)
        left_s = (edges.next_off_s(clock_s) - clock_s)[edges.up]
        assert left_s.min() > 0
        assert left_s.mean() == pytest.approx(900, rel=0.02)
        assert (left_s < 90).mean() == pytest.approx(1 - np.exp(-0.1), abs=0.005)


INF = np.inf


def arr(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_what_became_of_the_devices_of_example_4() -> None:
    """B leaves at 5 s as it computes in its second iteration, and C's charge ends at 4.5 s; A counts."""
    durations = Durations(arr(1, 2, 1), arr(2, 6, 2), arr(1, 2, 3), arr(1, 1, 3))
    ends = Ends(arr(INF, 5, INF), arr(10, 20, 6), arr(INF))
    work = Workload(1e6, edge_iterations=2)
    happens = timeline(Schedule([0, 1, 2], [0, 0, 0]), [1, 1, 1], work, durations, Hops.none(1), ends=ends)
    assert fates(happens, ends) == ["", "left at 5.0 s while computing", "ran out of charge at 4.5 s while computing"]


def test_a_charge_may_end_in_the_first_and_in_the_last_of_three_iterations() -> None:
    """An iteration has 1 s of computing at 2 W and 1 s of sending at 1 W. The charges are 1 J and 2 · 3 + 2.5 J."""
    durations = Durations(arr(1, 1), arr(2, 2), arr(1, 1), arr(1, 1))
    ends = Ends(arr(INF, INF), arr(1, 8.5), arr(INF))
    work = Workload(1e6, edge_iterations=3)
    happens = timeline(Schedule([0, 1], [0, 0]), [1, 1], work, durations, Hops.none(1), ends=ends)
    assert fates(happens, ends) == [
        "ran out of charge at 0.5 s while computing",
        "ran out of charge at 5.5 s while sending",
    ]


def test_a_device_without_charge_never_begins() -> None:
    durations = Durations(arr(1, 1), arr(2, 2), arr(1, 1), arr(1, 1))
    ends = Ends(arr(INF, INF), arr(0, INF), arr(INF))
    happens = timeline(Schedule([0, 1], [0, 0]), [1, 1], Workload(1e6), durations, Hops.none(1), ends=ends)
    assert fates(happens, ends) == ["ran out of charge at 0.0 s while waiting", ""]


def test_a_device_may_leave_as_it_sends_or_waits() -> None:
    durations = Durations(arr(2, 1, 3), arr(1, 1, 1), arr(2, 1, 3), arr(1, 1, 1))
    ends = Ends(arr(3.2, 4, INF), arr(INF, INF, INF), arr(INF))
    work = Workload(1e6, edge_iterations=2)
    happens = timeline(Schedule([0, 1, 2], [0, 0, 0]), [1, 1, 1], work, durations, Hops.none(1), ends=ends)
    assert fates(happens, ends) == ["left at 3.2 s while sending", "left at 4.0 s while waiting", ""]


def test_a_device_may_lose_its_edge_or_come_too_late() -> None:
    durations = Durations(arr(1, 2), arr(2, 4), arr(1, 1), arr(1, 1))
    ends = Ends(arr(INF, INF), arr(INF, INF), arr(INF, 4))
    hops = Hops(arr(0.5, 0.5), arr(0.1, 0.1), np.array([True, True]))
    happens = timeline(Schedule([7, 8], [0, 1]), [1, 1], Workload(1e6, edge_iterations=2), durations, hops, ends=ends)
    assert fates(happens, ends) == ["", "lost its edge at 4.0 s while computing"]
    never = Ends.never(2, 1)
    rule = EdgeClockConfig(deadline_s=2.5)
    happens = timeline(
        Schedule([7, 8], [0, 0]),
        [1, 1],
        Workload(1e6, edge_iterations=2),
        durations,
        Hops.none(1),
        rule=rule,
        ends=never,
    )
    assert fates(happens, never) == ["", "came too late in 2 of 2 edge iterations"]


@pytest.mark.parametrize(("rule", "text"), [({}, ""), ({"deadline_s": 2.5}, "came too late in 2 of 2 edge iterations")])
def test_a_period_gives_each_edge_its_own_edge_iterations(rule: dict[str, float], text: str) -> None:
    durations = Durations(arr(1, 2), arr(2, 4), arr(1, 1), arr(1, 1))
    never, period = Ends.never(2, 2), Period(6.0, arr(2, 3))
    happens = timeline(
        Schedule([7, 8], [0, 1]), [1, 1], Workload(1e6), durations, Hops.none(2),
        rule=EdgeClockConfig(**rule), ends=never, period=period,
    )  # fmt: skip
    assert np.isfinite(happens.start_s).sum(axis=0).tolist() == [3, 2]
    assert fates(happens, never) == ["", text]
