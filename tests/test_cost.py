"""Each of equations (4) to (14) of the paper returns numbers worked out by hand and has a property.

The numbers share a noise density of 1.5e-18 W/Hz, so that the signal-to-noise ratios are 1, 3 and 15 and the logarithms
1, 2 and 4.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.config import load_config
from hflray.cost import (
    Schedule,
    Workload,
    check_assignment,
    cloud_hop,
    compute_delay_s,
    compute_energy_j,
    mask_bits,
    message_bits,
    rate_bps,
    round_cost,
    upload_delay_s,
    upload_energy_j,
)
from hflray.errors import ConfigError
from hflray.fleet import Fleet, FleetConfig, sample_fleet
from tests.conftest import refusals

NOISE = 1.5e-18


def arr(*values):
    return np.array(values, dtype=np.float64)


# Three devices and three edges. Devices 0 and 1 go to edge 0 and device 2 to edge 1; edge 2 is empty.
FLEET = Fleet(
    position_m=np.zeros((3, 2)),
    edge_position_m=np.zeros((3, 2)),
    distance_m=np.ones((3, 3)),
    gain=np.array([[9e-12, 1.0, 1.0], [1.125e-10, 1.0, 1.0], [1.0, 1.5e-11, 1.0]]),
    cloud_gain=arr(1.125e-9, 2.25e-10, 3e-11),
    cycles_per_sample=arr(2e4, 1e4, 1e5),
    samples=arr(500, 400, 600),
    power_w=arr(0.5, 0.1, 0.2),
    max_cpu_hz=arr(2e9, 2e9, 2e9),
    edge_power_w=arr(0.2, 0.2, 0.5),
    edge_bandwidth_hz=arr(2e6, 2e6, 2e6),
    cloud_bandwidth_hz=1e7,
    noise_w_per_hz=NOISE,
    capacitance=2e-28,
)
WORK = Workload(model_bits=4e6, local_iterations=5, edge_iterations=2, delay_weight=3.0)
ALLOCATION = SimpleNamespace(bandwidth_hz=arr(1e6, 5e5, 2e6), cpu_hz=arr(1e9, 2e9, 5e8))
COST = round_cost(FLEET, WORK, [0, 1, 2], [0, 0, 1], ALLOCATION)


def test_4_compute_delay_golden():
    # L u D / f = 5 · 2e4 · 500 / 1e9 = 5e7 / 1e9 = 0.05 s
    assert compute_delay_s(5, arr(2e4), arr(500), arr(1e9)) == pytest.approx(arr(0.05))
    # 5 · 1e4 · 400 / 2e9 = 0.01 s; 5 · 1e5 · 600 / 5e8 = 0.6 s
    assert COST.compute_delay_s == pytest.approx(arr(0.05, 0.01, 0.6))


def test_5_compute_energy_golden():
    # α/2 · L f² u D = 1e-28 · 5 · 1e18 · 2e4 · 500 = 1e-10 · 5e7 = 5e-3 J
    assert compute_energy_j(2e-28, 5, arr(2e4), arr(500), arr(1e9)) == pytest.approx(arr(5e-3))
    # 1e-28 · 4e18 · 2e7 = 8e-3 J; 1e-28 · 2.5e17 · 3e8 = 7.5e-3 J
    assert COST.compute_energy_j == pytest.approx(arr(5e-3, 8e-3, 7.5e-3))


def test_6_rate_golden():
    # ḡ p / (N_0 b) = 9e-12 · 0.5 / (1.5e-18 · 1e6) = 4.5e-12 / 1.5e-12 = 3; 1e6 · log2(4) = 2e6 bit/s
    assert rate_bps(arr(1e6), arr(9e-12), arr(0.5), NOISE) == pytest.approx(arr(2e6))
    # 1.125e-10 · 0.1 / (1.5e-18 · 5e5) = 1.125e-11 / 7.5e-13 = 15; 5e5 · log2(16) = 2e6 bit/s
    assert rate_bps(arr(5e5), arr(1.125e-10), arr(0.1), NOISE) == pytest.approx(arr(2e6))


def test_7_upload_delay_golden():
    # z / η = 4e6 / 2e6 = 2 s, for each of the three devices (device 2: 2e6 · log2(1 + 3e-12 / 3e-12) = 2e6 bit/s)
    assert upload_delay_s(4e6, arr(2e6)) == pytest.approx(arr(2.0))
    assert COST.upload_delay_s == pytest.approx(arr(2.0, 2.0, 2.0))


def test_8_upload_energy_golden():
    # p T: 0.5 · 2 = 1 J, 0.1 · 2 = 0.2 J, 0.2 · 2 = 0.4 J
    assert upload_energy_j(arr(0.5), arr(2.0)) == pytest.approx(arr(1.0))
    assert COST.upload_energy_j == pytest.approx(arr(1.0, 0.2, 0.4))


def test_9_and_10_edge_totals_golden():
    cost = round_cost(FLEET, dataclasses.replace(WORK, cloud_hop=False), [0, 1, 2], [0, 0, 1], ALLOCATION)
    # (9) Q max: 2 · max(0.05 + 2, 0.01 + 2) = 4.1 s; 2 · (0.6 + 2) = 5.2 s; no device: 0
    assert cost.edge_delay_s == pytest.approx(arr(4.1, 5.2, 0.0))
    # (10) Q Σ: 2 · (0.005 + 1 + 0.008 + 0.2) = 2.426 J; 2 · (0.0075 + 0.4) = 0.815 J; no device: 0
    assert cost.edge_energy_j == pytest.approx(arr(2.426, 0.815, 0.0))
    assert cost.edge_devices.tolist() == [2, 1, 0]
    assert cost.delay_s == pytest.approx(5.2)
    assert cost.energy_j == pytest.approx(3.241)


def test_11_and_12_cloud_hop_golden():
    delay_s, energy_j = cloud_hop(FLEET, 4e6)
    # (11) N_0 B = 1.5e-11 W. Ratios: 1.125e-9 · 0.2 / 1.5e-11 = 15, 2.25e-10 · 0.2 / 1.5e-11 = 3 and
    # 3e-11 · 0.5 / 1.5e-11 = 1, so 4e6 / (1e7 · 4) = 0.1 s, 4e6 / (1e7 · 2) = 0.2 s, 4e6 / (1e7 · 1) = 0.4 s
    assert delay_s == pytest.approx(arr(0.1, 0.2, 0.4))
    # (12) 0.2 · 0.1 = 0.02 J, 0.2 · 0.2 = 0.04 J, 0.5 · 0.4 = 0.2 J
    assert energy_j == pytest.approx(arr(0.02, 0.04, 0.2))


def test_13_round_delay_golden():
    # 4.1 + 0.1, 5.2 + 0.2, 0 + 0.4 (the empty edge keeps its hop); the largest is 5.4 s
    assert COST.edge_delay_s == pytest.approx(arr(4.2, 5.4, 0.4))
    assert COST.delay_s == pytest.approx(5.4)


def test_14_round_energy_golden():
    # 2.426 + 0.02, 0.815 + 0.04, 0 + 0.2; the sum is 3.501 J
    assert COST.edge_energy_j == pytest.approx(arr(2.446, 0.855, 0.2))
    assert COST.energy_j == pytest.approx(3.501)


def test_objective_and_message_bits_golden():
    # E + λ T = 3.501 + 3 · 5.4 = 19.701
    assert COST.objective == pytest.approx(19.701)
    # (H Q + M) z = (3 · 2 + 3) · 4e6 = 3.6e7; without the hop 3 · 2 · 4e6 = 2.4e7
    assert COST.message_bits == 3.6e7
    assert message_bits(3, 3, dataclasses.replace(WORK, cloud_hop=False)) == 2.4e7


# Every setting differs from its default. All links are 100 m long, because the square is 1 m wide and distances are
# clamped.
UNITS = Path(__file__).parent / "data" / "units.yaml"


def test_from_the_units_of_a_file_to_joules_golden():
    """A file in dBm, dBm/Hz, dB, km, MHz, GHz and KB; two devices share the edge equally at their highest frequency."""
    config = load_config(UNITS)
    fleet = sample_fleet(config.fleet, np.random.default_rng(0))
    work = Workload(
        model_bits=config.cost.model_bits,
        local_iterations=config.training.local_iterations,
        edge_iterations=config.training.edge_iterations,
        delay_weight=config.cost.delay_weight,
    )
    allocation = SimpleNamespace(bandwidth_hz=fleet.edge_bandwidth_hz[[0, 0]] / 2, cpu_hz=fleet.max_cpu_hz)
    cost = round_cost(fleet, work, [0, 1], [0, 0], allocation)
    # Gain: 0.1 km, so 120 + 30 · log10(0.1) = 90 dB: 1e-9. z: 125 · 1024 · 8 = 1,024,000 bit.
    # Device: 20 dBm = 0.1 W; 1e-9 · 0.1 = 1e-10 W over a noise of 1e-16 W/Hz · 1 MHz = 1e-10 W is a ratio of 1;
    # 1e6 · log2(2) = 1e6 bit/s, so 1.024 s and 0.1 W · 1.024 s = 0.1024 J.
    assert cost.upload_delay_s == pytest.approx(arr(1.024, 1.024), rel=1e-12)
    assert cost.upload_energy_j == pytest.approx(arr(0.1024, 0.1024), rel=1e-12)
    # 4 · 1e4 · 500 = 2e7 cycles at 4 GHz: 0.005 s, and 0.5e-28 · 2e7 · 1.6e19 = 0.016 J.
    assert cost.compute_delay_s == pytest.approx(arr(0.005, 0.005), rel=1e-12)
    assert cost.compute_energy_j == pytest.approx(arr(0.016, 0.016), rel=1e-12)
    # Edge: 30 dBm = 1 W; 1e-9 W over 1e-16 · 20 MHz = 2e-9 W is 0.5; 2e7 · log2(1.5) = 11,699,250.01 bit/s,
    # so 1,024,000 / 11,699,250.01 = 0.087526978 s, and as many joules.
    # Round: 3 · (0.005 + 1.024) + 0.087526978 = 3.174526978 s; 3 · 2 · (0.016 + 0.1024) + 0.087526978 = 0.797926978 J;
    # 0.797926978 + 2 · 3.174526978 = 7.146980934 J; (2 · 3 + 1) · 1,024,000 = 7,168,000 bit.
    assert cost.delay_s == pytest.approx(3.174526978, rel=1e-9)
    assert cost.energy_j == pytest.approx(0.797926978, rel=1e-9)
    assert cost.objective == pytest.approx(7.146980934, rel=1e-9)
    assert cost.message_bits == 7_168_000


@settings(deadline=None)
@given(st.floats(1e3, 1e7), st.floats(1e-16, 1e-6), st.floats(1e-3, 1.0), st.floats(1.01, 100.0))
def test_6_property_grows_with_each_and_is_bounded(b, gain, power, c):
    base = rate_bps(arr(b), arr(gain), arr(power), 4e-21)
    assert rate_bps(arr(c * b), arr(gain), arr(power), 4e-21) >= base
    assert rate_bps(arr(b), arr(c * gain), arr(power), 4e-21) > base
    assert rate_bps(arr(b), arr(gain), arr(c * power), 4e-21) > base
    assert rate_bps(arr(c * b), arr(gain), arr(c * power), 4e-21) == pytest.approx(c * base)
    # Never above the limit of infinite bandwidth, ḡ p / (N_0 ln 2).
    assert base <= gain * power / (4e-21 * np.log(2)) * (1 + 1e-12)


@st.composite
def rounds(draw):
    """Draw a fleet, a schedule, an assignment and an allocation."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, m = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    fleet = sample_fleet(FleetConfig(num_devices=n, num_edges=m), rng)
    h = draw(st.integers(1, n))
    work = Workload(
        draw(st.floats(1e4, 1e8)), draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.floats(0.01, 99))
    )
    allocation = SimpleNamespace(bandwidth_hz=rng.uniform(1e4, 1e6, h), cpu_hz=rng.uniform(1e8, 2e9, h))
    return fleet, work, rng.permutation(n)[:h], rng.integers(m, size=h), allocation


@settings(max_examples=40, deadline=None)
@given(rounds())
def test_9_to_14_property_structure(case):
    fleet, work, devices, edges, allocation = case
    cost = round_cost(fleet, work, devices, edges, allocation)
    hop_s, hop_j = cloud_hop(fleet, work.model_bits)
    for m in range(fleet.num_edges):
        at = edges == m
        times = (cost.compute_delay_s + cost.upload_delay_s)[at]
        spent = (cost.compute_energy_j + cost.upload_energy_j)[at]
        # (9), (10): Q times the slowest device and Q times the sum; an empty edge has only its cloud hop.
        assert cost.edge_delay_s[m] == pytest.approx(work.edge_iterations * max(times, default=0.0) + hop_s[m])
        assert cost.edge_energy_j[m] == pytest.approx(work.edge_iterations * spent.sum() + hop_j[m])
        assert cost.edge_devices[m] == at.sum()
    # (13), (14)
    assert cost.delay_s == cost.edge_delay_s.max()
    assert cost.energy_j == pytest.approx(cost.edge_energy_j.sum())
    assert cost.objective == pytest.approx(cost.energy_j + work.delay_weight * cost.delay_s)
    assert cost.message_bits == pytest.approx((len(devices) * work.edge_iterations + fleet.num_edges) * work.model_bits)


@settings(max_examples=25, deadline=None)
@given(rounds(), st.randoms(use_true_random=False))
def test_13_and_14_property_order_does_not_matter_and_more_devices_cost_more(case, random):
    fleet, work, devices, edges, allocation = case
    cost = round_cost(fleet, work, devices, edges, allocation)
    order = list(range(len(devices)))
    random.shuffle(order)

    def part(index):
        part_allocation = SimpleNamespace(bandwidth_hz=allocation.bandwidth_hz[index], cpu_hz=allocation.cpu_hz[index])
        return round_cost(fleet, work, devices[index], edges[index], part_allocation)

    shuffled = part(order)
    assert shuffled.delay_s == cost.delay_s
    assert shuffled.energy_j == pytest.approx(cost.energy_j)
    if len(order) > 1:
        fewer = part(order[1:])
        assert fewer.delay_s <= cost.delay_s
        assert fewer.energy_j < cost.energy_j


@pytest.mark.parametrize("name", ["model_bits", "local_iterations", "edge_iterations", "delay_weight"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_workload_refuses_values_that_are_not_above_zero(name, value):
    with pytest.raises(ConfigError, match=f"{name}: got {value}; a finite number above 0"):
        Workload(**({"model_bits": 1.0} | {name: value}))


@pytest.mark.parametrize("devices, edges, words", refusals("cost/indices"))
def test_bad_indices_are_named(devices, edges, words):
    with pytest.raises(ConfigError, match=words):
        check_assignment(FLEET, devices, edges)


@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0, np.inf])
@pytest.mark.parametrize(
    "name, index",
    [("bandwidth_hz", 1), ("cpu_hz", 1), ("gain", (1, 0)), ("cloud_gain", 1), ("edge_power_w", 1),
     ("cloud_bandwidth_hz", None), ("noise_w_per_hz", None)],
)  # fmt: skip
def test_a_number_that_is_not_positive_is_named(name, index, value):
    """Of several, the first one is."""
    of_fleet = name not in vars(ALLOCATION)
    changed, where = value, name
    if index is not None:
        changed, where = (
            getattr(FLEET if of_fleet else ALLOCATION, name).copy(),
            f"{name}{np.atleast_1d(index).tolist()}",
        )
        changed[index] = changed[-1] = value
    fleet = dataclasses.replace(FLEET, **{name: changed}) if of_fleet else FLEET
    allocation = SimpleNamespace(**(vars(ALLOCATION) | ({} if of_fleet else {name: changed})))
    with pytest.raises(ConfigError, match=re.escape(f"{where}: got {value}; a finite number above 0")):
        round_cost(fleet, WORK, [0, 1, 2], [0, 0, 1], allocation)


def test_an_allocation_of_another_shape_is_refused():
    with pytest.raises(ConfigError, match=r"cpu_hz: got shape \(1,\), expected \(2,\)"):
        round_cost(FLEET, WORK, [0, 2], [0, 0], SimpleNamespace(bandwidth_hz=arr(1e6, 1e6), cpu_hz=arr(1e9)))


def test_a_configuration_gives_its_workload() -> None:
    overrides = ["training.local_iterations=3", "training.edge_iterations=2", "cost.delay_weight=0.5"]
    config = load_config(overrides=overrides)
    assert Workload.of(config, 1e6) == Workload(1e6, local_iterations=3, edge_iterations=2, delay_weight=0.5)
    sized = load_config(overrides=["cost.model_kb=448"])
    assert Workload.of(sized, 1e6).model_bits == 448 * 1024 * 8


def test_a_workload_is_table_is_unless_it_says_otherwise():
    # L = Q = 5 and λ = 1 J/s, with the cloud hop of equations (11) and (12).
    assert Workload(1e6) == Workload(1e6, local_iterations=5, edge_iterations=5, delay_weight=1.0, cloud_hop=True)


def test_workloads_and_costs_cannot_be_changed_and_costs_are_compared_by_identity():
    with pytest.raises(dataclasses.FrozenInstanceError):
        WORK.delay_weight = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        COST.energy_j = 0.0
    # Arrays of equal numbers have no single truth value, so that a comparison by value would raise.
    again = round_cost(FLEET, WORK, [0, 1, 2], [0, 0, 1], ALLOCATION)
    assert len({COST, again, COST}) == 2


def test_a_schedule_unpacks_into_its_arrays() -> None:
    devices, edges = Schedule([3, 1], [0, 2])
    assert (devices.tolist(), edges.tolist()) == ([3, 1], [0, 2])
    assert len(Schedule([3, 1], [0, 2])) == 2
    assert len(Schedule([], [])) == 0


def test_the_bits_of_masks_by_hand():
    """Ten devices of one sum: 2 public keys, 2 shares for each of 9 others, and at the end a share for each of 10."""
    assert mask_bits(256, 9) == 256 * (2 + 18 + 10) == 7680


def test_masks_are_off_by_default_and_lengthen_the_uploads_of_devices_alone():
    config = load_config(None, ["cost.secure_aggregation={key_bits: 100, shares: 9}"])
    assert WORK.with_masks(load_config()) is WORK
    masked = WORK.with_masks(config)
    assert (masked.device_bits, masked.edge_bits) == (4e6 + 3000, 4e6)
    cost = round_cost(FLEET, masked, [0, 1, 2], [0, 0, 1], ALLOCATION)
    np.testing.assert_allclose(cost.upload_delay_s / COST.upload_delay_s, 1 + 3000 / 4e6)
    assert cost.message_bits == COST.message_bits + 3 * 2 * 3000
