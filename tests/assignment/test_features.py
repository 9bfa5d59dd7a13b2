"""The features of the learned assigner: equation (24) by hand, and the scales, order and padding of ``db``."""

from __future__ import annotations

import dataclasses
from math import log, log2

import numpy as np
import pytest

from hflray.assignment.features import WIDTHS, db_rows, feature_rows, pad_edges, paper_rows
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
