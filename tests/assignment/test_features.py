"""The features of the learned assigner: equation (24) by hand, and the scales, order and padding of ``db``."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.assignment.features import WIDTHS, db_rows, feature_rows, pad_edges, paper_rows
from hflray.assignment.objective import round_problem
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
    rows = paper_rows(gain, np.array([10.0, 20.0, 40.0]), np.array([400.0, 700.0, 550.0]), np.array([0.1, 0.1, 0.1]))
    expected = [[0, 0, 0, 0, 0], [1, 0, 1 / 3, 1, 0], [0.5, 1, 1, 0.5, 0]]  # equal values give 0
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    assert rows.dtype == np.float32


def test_paper_features_of_a_fleet_span_zero_to_one():
    fleet, devices = random_round()
    rows = feature_rows("paper", fleet, WORK, devices)
    assert rows.shape == (20, WIDTHS["paper"].row(5)) == (20, 8)
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


def test_an_upload_time_agrees_with_equation_7_by_hand():
    fleet, devices = random_round(1, num_edges=2)
    rows = feature_rows("db", fleet, WORK, devices)
    n, m = devices[3], 1
    bandwidth = fleet.edge_bandwidth_hz[m]
    rate = bandwidth * np.log2(1 + fleet.gain[n, m] * fleet.power_w[n] / (fleet.noise_w_per_hz * bandwidth))
    assert rows[3, WIDTHS["db"].link * m + 7] == pytest.approx(np.log(WORK.model_bits / rate) / 2, rel=1e-5)


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
    with pytest.raises(ConfigError, match=r"features.*'db2'.*paper, db"):
        feature_rows("db2", fleet, WORK, devices)
    gain = np.array(fleet.gain)
    gain[devices[4], 2] = np.nan
    with pytest.raises(ConfigError, match=rf"gain\[{devices[4]}, 2\]"):
        feature_rows("db", dataclasses.replace(fleet, gain=gain), WORK, devices)
