"""The features of the learned assigner: equation (24) by hand, and the scales, order and padding of ``db``."""

from __future__ import annotations

import dataclasses
from math import log, log2

import numpy as np
import pytest

from hflray.assignment.features import PAPERS, WIDTHS, db_rows, feature_rows, pad_edges, paper_rows
from hflray.assignment.objective import Hop, RoundProblem, round_problem
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, sample_fleet

WORK = Workload(model_bits=448 * 8192)


def random_round(seed=0, num_edges=5):
    rng = np.random.default_rng(seed)
    fleet = sample_fleet(FleetConfig(num_edges=num_edges), rng)
    return fleet, np.sort(rng.choice(100, 20, replace=False))


def test_paper_features_agree_with_equation_24_by_hand():
    gain = np.array([[1.0, 5.0], [3.0, 5.0], [2.0, 9.0]])
    u, samples, power = np.array([10.0, 20.0, 40.0]), np.array([400.0, 700.0, 550.0]), np.array([0.1, 0.1, 0.1])
    rows = paper_rows("paper", gain, u, samples, power)
    expected = [[0, 0, 0, 0, 0], [1, 0, 1 / 3, 1, 0], [0.5, 1, 1, 0.5, 0]]  # equal values give 0
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    assert rows.dtype == np.float32


def test_paper_features_in_db_scale_the_logarithms_of_the_gains_alone():
    gain = np.array([[1e-12, 1e-9], [1e-10, 1e-9], [1e-8, 1e-5]])  # -120, -100 and -80 dB; twice -90 and once -50 dB
    u, samples, power = np.array([10.0, 20.0, 40.0]), np.array([400.0, 700.0, 550.0]), np.array([0.1, 0.2, 0.1])
    rows = paper_rows("paper_db", gain, u, samples, power)
    expected = [[0, 0, 0, 0, 0], [0.5, 0, 1 / 3, 1, 1], [1, 1, 1, 0.5, 0]]
    np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(rows[:, 2:], paper_rows("paper", gain, u, samples, power)[:, 2:])
    assert paper_rows("paper", gain, u, samples, power)[1, 0] < 0.01  # linearly, -100 dB is beside -120 dB


@pytest.mark.parametrize("kind", PAPERS)
def test_paper_features_of_a_fleet_span_zero_to_one(kind):
    fleet, devices = random_round()
    rows = feature_rows(kind, fleet, WORK, devices)
    assert rows.shape == (20, WIDTHS[kind].row(5)) == (20, 8)
    np.testing.assert_array_equal(rows.min(axis=0), 0.0)
    np.testing.assert_array_equal(rows.max(axis=0), 1.0)
    np.testing.assert_array_equal(rows[:, 5].argmax(), fleet.cycles_per_sample[devices].argmax())


def test_db_features_mean_the_same_in_every_fleet():
    fleet, devices = random_round()
    rows = feature_rows("db", fleet, WORK, devices)
    link, device = WIDTHS["db"]
    assert rows.shape == (20, 5 * link + device)
    links = rows[:, : 5 * link].reshape(20, 5, link)
    np.testing.assert_array_equal(links[..., 0], 1.0)
    # A gain of 10 dB more on every link adds a half to the gain feature and nothing to the relative one.
    louder = dataclasses.replace(fleet, gain=fleet.gain * 10.0)
    moved = feature_rows("db", louder, WORK, devices)[:, : 5 * link].reshape(20, 5, link)
    np.testing.assert_allclose(moved[..., 1] - links[..., 1], 0.5, atol=1e-5)
    np.testing.assert_allclose(moved[..., 2], links[..., 2], atol=1e-5)
    assert (moved[..., 5] < links[..., 5]).all()  # uploads are shorter
    # The db features contain the bandwidth, and the paper's do not.
    wider = dataclasses.replace(fleet, edge_bandwidth_hz=fleet.edge_bandwidth_hz * 2)
    assert (feature_rows("db", wider, WORK, devices) != rows).any()
    np.testing.assert_array_equal(
        feature_rows("paper", wider, WORK, devices), feature_rows("paper", fleet, WORK, devices)
    )


def test_the_order_of_devices_and_edges_is_the_callers():
    fleet, devices = random_round()
    rows = feature_rows("db", fleet, WORK, devices)
    np.testing.assert_array_equal(feature_rows("db", fleet, WORK, devices[::-1]), rows[::-1])
    permuted = dataclasses.replace(
        fleet, gain=np.asarray(fleet.gain)[:, ::-1], edge_bandwidth_hz=fleet.edge_bandwidth_hz[::-1],
        cloud_gain=fleet.cloud_gain[::-1], distance_m=np.asarray(fleet.distance_m)[:, ::-1],
    )  # fmt: skip
    link = WIDTHS["db"].link
    links = feature_rows("db", permuted, WORK, devices)[:, : 5 * link].reshape(20, 5, link)[:, ::-1]
    np.testing.assert_allclose(links.reshape(20, -1), rows[:, : 5 * link], atol=1e-6)


def test_padding_adds_zeros_between_links_and_device():
    problem, _ = round_problem(*[random_round(num_edges=3)[0], WORK, np.arange(4)])
    rows, width = db_rows(problem), WIDTHS["db"]
    wide = pad_edges(rows, width, 5)
    assert wide.shape == (4, width.row(5))
    np.testing.assert_array_equal(wide[:, : 3 * width.link], rows[:, : 3 * width.link])
    np.testing.assert_array_equal(wide[:, 3 * width.link : 5 * width.link], 0.0)
    np.testing.assert_array_equal(wide[:, 5 * width.link :], rows[:, 3 * width.link :])
    assert pad_edges(rows, width, 3) is rows
    with pytest.raises(ConfigError, match=r"rows.*9 for each edge"):
        width.edges(30)


def test_bad_input_is_named():
    fleet, devices = random_round()
    with pytest.raises(ConfigError, match=r"features.*'db2'.*paper, .*db"):
        feature_rows("db2", fleet, WORK, devices)
    gain = np.array(fleet.gain)
    gain[devices[4], 2] = np.nan
    with pytest.raises(ConfigError, match=rf"gain\[{devices[4]}, 2\]"):
        feature_rows("db", dataclasses.replace(fleet, gain=gain), WORK, devices)


def test_every_db_feature_of_two_devices_and_two_edges_by_hand():
    # Y in Hz: device 0 has 80 dB at edge 0 and 70 dB at edge 1, and device 1 has 90 dB and 60 dB.
    problem = RoundProblem(
        snr=np.array([[1e8, 1e9], [1e7, 1e6]]),
        cycles=np.array([1.5e8, 3e8]),
        power=np.array([0.1, 1.0]),
        cap=np.array([1.5e9, 3e8]),
        bandwidth=np.array([3e6, 1e6]),
        hop=Hop(np.array([2.0, 5.0]), np.zeros(2)),
        iterations=10.0,
        weight=2.0,
        bits=4e6,
        alpha=2e-28,
    )

    # Edge 0 is the strongest of both devices, so that a third one would share its 3 MHz: 1 MHz each. Edge 1 has 1 MHz
    # for the one that would come. A fair share of the 4 MHz is 2 MHz. At b MHz the 4 Mbit take 4 / (b log2(1 + Y / b)).
    def upload_s(b_mhz, y_mhz):
        return 4 / (b_mhz * log2(1 + y_mhz / b_mhz))

    y_mhz, powers_dbw, gains_db = ((100, 10), (1000, 1)), (-10, 0), ((90, 80), (90, 60))
    expected = []
    for device in (0, 1):
        row = []
        for edge, (own_mhz, hop_s) in enumerate(((3, 2), (1, 5))):
            y, gain_db = y_mhz[device][edge], gains_db[device][edge]
            row += [1, (gain_db - 100) / 20, (gain_db - 90) / 20, log(own_mhz / 1.5), log(2)]
            row += [log(upload_s(2, y)) / 2, log(upload_s(1, y)) / 2, log(upload_s(own_mhz, y)) / 2, hop_s / 10]
        # 1.5e8 cycles are the unit. At the highest frequency they take 0.1 s on device 0, and 3e8 take 1 s on device 1.
        row += [log(device + 1), powers_dbw[device] / 10 + 2, log((0.1, 1)[device]) / 2 + 1]
        # λ = 2 J/s, 4 Mbit over 3.7 Mbit, Q = 10 over 5, H = 2 over 50, and one device an edge over 10.
        expected.append([*row, log(2), log(4 / 3.7), log(2), log(2 / 50), log(1 / 10)])
    np.testing.assert_allclose(db_rows(problem), expected, rtol=3e-7)


def test_a_rows_length_tells_the_number_of_edges_from_one_on():
    width = WIDTHS["db"]
    assert [width.edges(length) for length in (17, 26, 53)] == [1, 2, 5]
    for length in (8, -1, 16, 18):  # no edge, fewer than none, and one feature less or more than one edge has
        with pytest.raises(ConfigError, match=f"rows: got {length} features"):
            width.edges(length)
