"""The built-in access, computing and download, by numbers that follow by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.assignment.bounds import gap
from hflray.config import CostConfig, FleetConfig
from hflray.cost import LocalSteps, Schedule, Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import Fleet, sample_fleet
from hflray.physics import Device, Link
from hflray.physics.access import Broadcast, Fdma, MeasuredAccess, Ofdma, Tdma, Unicast
from hflray.physics.computing import Dvfs, MeasuredCompute
from hflray.physics.equations import compute_delay_s, compute_energy_j
from hflray.physics.own import CheckedAccess
from hflray.support.arrays import FloatArray
from hflray.timeline import Durations, Hops, timeline
from tests.conftest import own_module, refusal, refusals, says

MBIT = 1e6


def links(rates_bps: list[float], power_w: float = 2.0) -> Link:
    """Return links of 1 MHz with these rates."""
    rate, one = np.array(rates_bps), np.ones(len(rates_bps))
    noise = 1e-9
    gain = np.expm1(rate / MBIT * np.log(2)) * noise * MBIT / power_w
    return Link(gain, power_w * one, MBIT * one, noise, 0.25 * one, 1.5 * one)


def test_time_division_in_the_design_s_example() -> None:
    """Two equal devices at 1 Mbit/s take 2 s each; with a third at 0.5 Mbit/s they take 4 s, and joules are p z / R."""
    for rates, share, seconds in (([1e6, 1e6], [0.5, 0.5], 2.0), ([1e6, 1e6, 5e5], [0.25, 0.25, 0.5], 4.0)):
        delay_s, energy_j = Tdma().upload(np.array(share), links(rates), MBIT)
        np.testing.assert_allclose(delay_s, seconds)
        np.testing.assert_allclose(energy_j, 2.0 * MBIT / np.array(rates))


def test_the_allocator_finds_these_shares() -> None:
    ready = links([1e6, 1e6, 5e5], 2.0)
    fleet = Fleet.of(
        FleetConfig(num_devices=3, num_edges=1, noise_dbm_per_hz=-60.0), np.random.default_rng(0),
        gain=ready.gain[:, None], power_w=ready.power_w, edge_bandwidth_hz=[MBIT], seconds_per_sample=np.full(3, 1e-12),
    ).with_physics(CostConfig.model_validate({"access": {"name": "tdma"}}))  # fmt: skip
    work = Workload(model_bits=MBIT, edge_iterations=1, cloud_hop=False, delay_weight=1e6)
    allocation = allocate_round(fleet, work, [0, 1, 2], [0, 0, 0])
    assert allocation.share is not None
    np.testing.assert_allclose(allocation.share, [0.25, 0.25, 0.5], rtol=1e-4)
    bill = round_cost(fleet, work, [0, 1, 2], [0, 0, 0], allocation)
    assert bill.delay_s == pytest.approx(4.0, rel=1e-4)
    np.testing.assert_allclose(bill.upload_energy_j, [2.0, 2.0, 4.0], rtol=1e-6)


def test_blocks_are_frequency_division_with_as_much_bandwidth() -> None:
    link, share = links([1e6, 3e6]), np.array([0.3, 0.7])
    np.testing.assert_array_equal(Ofdma(10).upload(share, link, MBIT), Fdma().upload(share, link, MBIT))
    np.testing.assert_array_equal(Ofdma(10).pace(share, link, MBIT), Fdma().pace(share, link, MBIT))
    with pytest.raises(ConfigError, match=r"cost.access.options.blocks"):
        Ofdma(0)


def test_a_measured_link_takes_its_latency_and_rate_whatever_others_send() -> None:
    delay_s, energy_j = MeasuredAccess().upload(np.ones(2), links([1e6, 4e6]), MBIT)
    np.testing.assert_allclose(delay_s, [1.25, 0.5])
    np.testing.assert_allclose(energy_j, [1.875, 0.75])


def test_frequencies_keep_the_bits_of_the_equations() -> None:
    rng = np.random.default_rng(0)
    u, d, f = rng.uniform(1e4, 1e5, 50), rng.integers(400, 700, 50).astype(float), rng.uniform(1e8, 2e9, 50)
    nothing = np.zeros(50)
    device = Device(u, f, np.full(50, 2e-28), nothing, nothing, nothing, nothing)
    delay_s, energy_j = Dvfs().run(f, device, Workload(model_bits=1.0, local_iterations=3).computing(d))
    np.testing.assert_array_equal(delay_s, compute_delay_s(3, u, d, f))
    np.testing.assert_array_equal(energy_j, compute_energy_j(2e-28, 3, u, d, f))


@pytest.mark.parametrize(
    "local_iteration, steps, samples",
    [("epoch", [6, 2], [300, 100]), ("full_batch", [2, 2], [300, 100]), ("step", [2, 2], [128, 100])],
)  # fmt: skip
def test_measured_computing_counts_steps_and_samples(
    local_iteration: str, steps: list[float], samples: list[float]
) -> None:
    work = Workload(model_bits=1.0, local_iterations=2, steps=LocalSteps(local_iteration, 64))  # type: ignore[arg-type]
    done = work.computing(np.array([150.0, 50.0]))
    one = np.ones(2)
    device = Device(one, one, one, 0.5 * one, 0.1 * one, 0.01 * one, 3.0 * one)
    delay_s, energy_j = MeasuredCompute().run(np.full(2, np.nan), device, done)
    np.testing.assert_allclose(delay_s, 0.5 + 0.1 * np.array(steps) + 0.01 * np.array(samples))
    np.testing.assert_allclose(energy_j, 3.0 * delay_s)


def test_measured_computing_takes_the_cycles_that_a_fleet_says() -> None:
    """A device of 1e6 cycles a sample and 0.5 GHz takes 2 ms for one, beside 0.1 s of each edge iteration."""
    config, rng, one = FleetConfig(num_devices=2, num_edges=1), np.random.default_rng(0), np.ones(2)
    given = {"fixed_s": 0.1 * one, "compute_w": one, "max_cpu_hz": 5e8 * one}
    devices = np.arange(2)
    fleet = Fleet.of(config, rng, cycles_per_sample=1e6 * one, **given)
    assert fleet.computers(devices).seconds_per_sample.tolist() == [2e-3, 2e-3]
    assert Fleet.of(config, rng, **given).computers(devices).seconds_per_sample.tolist() == [0.0, 0.0]


def test_downloads_by_hand() -> None:
    node, link = np.array([0, 0, 1]), links([1e6, 5e5, 1e6])
    delay_s, energy_j = Broadcast().receive(link, node, MBIT)
    np.testing.assert_allclose(delay_s, [2, 2, 1])
    np.testing.assert_allclose(energy_j, [2, 2, 2])  # 2 W for 2 s, in equal parts
    delay_s, energy_j = Unicast().receive(link, node, MBIT)
    np.testing.assert_allclose(delay_s, [2, 4, 1])
    np.testing.assert_allclose(energy_j, [2, 4, 2])
    # The devices of an edge iteration share a broadcast. Those of turns are counted where turns are laid out.
    row, one = np.ones((1, 3)), np.ones(3)
    work = Workload(1.0, edge_iterations=1)
    happens = timeline(Schedule(range(3), [0, 0, 0]), one, work, Durations(*[one] * 4), Hops.none(1))
    for of_turns, broadcasts in ((None, 1), (2, 2)):
        happens = replace(happens, broadcasts=of_turns, received_s=row, download_j=row)
        assert happens.downloads(MBIT, True)["round/download_bits"] == broadcasts * MBIT


@pytest.mark.parametrize("name", ["broadcast", "unicast"])
def test_a_download_is_in_the_delay_the_energy_and_the_objective(name: str) -> None:
    plain = sample_fleet(FleetConfig(num_devices=8, num_edges=2), np.random.default_rng(1))
    fleet = plain.with_physics(CostConfig.model_validate({"download": {"name": name}}))
    work = Workload(model_bits=MBIT, edge_iterations=3, delay_weight=2.0, download_bits=3e6)
    devices, edges = np.arange(6), np.array([0, 0, 0, 0, 1, 1])
    bill = round_cost(fleet, work, devices, edges, allocate_round(fleet, work, devices, edges))
    without = replace(bill, download_delay_s=None, download_energy_j=None)
    assert bill.download_delay_s is not None
    assert bill.download_energy_j is not None
    rate = fleet.downlinks(devices, edges).rate_bps()
    counts = np.array([4, 4, 4, 4, 2, 2])
    weakest = np.array([rate[:4].min()] * 4 + [rate[4:].min()] * 2)
    np.testing.assert_allclose(bill.download_delay_s, 3e6 / weakest if name == "broadcast" else 3e6 * counts / rate)
    np.testing.assert_allclose(bill.iteration_delay_s, without.iteration_delay_s + bill.download_delay_s)
    hop_j = fleet.edge_power_w * MBIT / (fleet.cloud_bandwidth_hz * np.log2(
        1 + fleet.cloud_gain * fleet.edge_power_w / (fleet.noise_w_per_hz * fleet.cloud_bandwidth_hz)))  # fmt: skip
    joules: FloatArray = bill.compute_energy_j + bill.upload_energy_j + bill.download_energy_j
    assert bill.energy_j == pytest.approx(3 * joules.sum() + hop_j.sum())
    assert bill.objective == pytest.approx(bill.energy_j + 2.0 * bill.delay_s)


def test_measured_needs_its_columns_and_says_which() -> None:
    fleet = sample_fleet(FleetConfig(num_devices=3, num_edges=2), np.random.default_rng(0))
    cases = {"access": ("mbps", "upload_w"), "compute": ("compute_w", "seconds_per_sample or step_s or fixed_s")}
    for kind, columns in cases.items():
        with refusal(ConfigError, f"cost.{kind}.name: got measured", *columns, "add"):
            fleet.with_physics(CostConfig.model_validate({kind: {"name": "measured"}}))
    known = Fleet.of(
        FleetConfig(num_devices=3, num_edges=2), np.random.default_rng(0), rate_bps=np.full((3, 2), 2e6),
        latency_s=np.full((3, 2), 0.5), upload_w=[1, 2, 3], compute_w=[1, 1, 1], step_s=[1, 2, 3],
    )  # fmt: skip
    measured = known.with_physics(CostConfig.model_validate({k: {"name": "measured"} for k in cases}))
    lone = replace(known, upload_w=np.array([1, np.nan, 3]), device_names=("a", "b", "c"))
    with pytest.raises(ConfigError, match=r"have upload_w of every device \(none of device b\)"):
        lone.with_physics(CostConfig.model_validate({"access": {"name": "measured"}}))
    work = Workload(model_bits=2e6)
    for call in (
        lambda made: allocate_round(made, work, [0, 1], [0, 0]),
        lambda made: gap(made, work, [0, 1], [0, 0]),
        lambda made: build_assigner("local_search").assign(made, work, np.arange(2), np.random.default_rng(0)),
    ):
        with pytest.raises(ConfigError) as caught:
            call(replace(fleet, access=MeasuredAccess(), compute=MeasuredCompute()))
        access, compute = str(caught.value).splitlines()  # a line for each part
        assert says(access, "access.name: got measured", "upload_w")
        assert says(compute, "compute.name: got measured", "compute_w")
    kept = measured.take([2, 0]).take_edges([1])
    work = Workload(model_bits=2e6, edge_iterations=1, cloud_hop=False, local_iterations=1)
    bill = round_cost(kept, work, [0, 1], [0, 0], allocate_round(kept, work, [0, 1], [0, 0]))
    np.testing.assert_allclose(bill.upload_delay_s, 1.5)
    np.testing.assert_allclose(bill.upload_energy_j, [4.5, 1.5])
    np.testing.assert_allclose(bill.compute_delay_s, np.array([3, 1]) * np.ceil(kept.samples / 64))


OWN = own_module("own_access")


@pytest.mark.parametrize("line, answer, facts", refusals("physics/access"))
def test_an_own_access_that_the_allocator_could_not_use_is_refused(
    line: str, answer: str, facts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN.format(line=line, answer=answer or "delay_s, link.power_w * delay_s"))
    fleet = sample_fleet(FleetConfig(num_devices=3, num_edges=2), np.random.default_rng(0))
    with refusal(ConfigError, "cost.access.name: ", *facts):
        fleet.with_physics(CostConfig.model_validate({"access": {"name": "mine.py:Good"}}))


def test_the_pace_and_the_needs_of_an_own_access_are_those_of_its_class() -> None:
    class Twice(Fdma):
        needs = (("mbps",),)

        def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
            return bits / link.rate_bps(), share

    class Slow(Twice):
        def pace(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
            return np.full(len(share), 7.0), share

    share, link = np.array([0.5, 0.5]), links([1e6, 2e6])
    assert CheckedAccess(Slow(), "Slow").needs == (("mbps",),)
    np.testing.assert_array_equal(CheckedAccess(Slow(), "Slow").pace(share, link, MBIT)[0], 7.0)
    np.testing.assert_allclose(CheckedAccess(Twice(), "Twice").pace(share, link, MBIT)[0], [1e6, 2e6])  # not Fdma's
