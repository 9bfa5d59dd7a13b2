"""hflray.reproduction.table2_choices: Algorithm 2's bill under each choice, ranked by the distance from the paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from hflray.command.report import main
from hflray.config import FleetConfig, load_config
from hflray.cost import rate_bps
from hflray.errors import ConfigError
from hflray.fleet import Fleet, sample_fleet
from hflray.reproduction.table2_choices import (
    CHOICE,
    NUMBERS,
    OURS,
    PAPER,
    ROWS,
    Choice,
    Study,
    all_choices,
    bill,
    rank,
    run,
)

CONFIG = load_config(None)
FASHION = ROWS[1]


def fleet(**settings: object) -> Fleet:
    return sample_fleet(FleetConfig(**settings), np.random.default_rng(3))


def test_the_constants_are_those_of_the_papers_tables() -> None:
    """The numbers are those of Tables I and II as printed."""
    assert PAPER.tolist() == [3.1, 128.0, 252.6, 23.5, 671.0, 1317.0]
    assert [(row.model_kb, row.samples) for row in ROWS] == [(10, (400, 700)), (448, (400, 700)), (882, (300, 600))]


def test_all_choices_has_every_choice_once() -> None:
    # There are 2 laws, 2 noises, 2 edges, 3 ways to allocate and bill the CPU, and 2 counts of iterations.
    assert len(all_choices()) == len(set(all_choices())) == 48
    assert OURS in all_choices()


def test_the_bill_of_one_device_is_that_computed_by_hand() -> None:
    # 1e4 cycles a sample, 500 samples and L = 5 are 2.5e7 cycles: at 2 GHz 0.0125 s and 1e-28 · 4e18 · 2.5e7 = 0.01 J.
    # The device has the whole bandwidth of 1 MHz; 448 KB are 448 · 8192 = 3,670,016 bits.
    one = fleet(num_devices=1, num_edges=1, cycles_per_sample=1e4, samples=500, edge_bandwidth_mhz=1, power_dbm=10)
    upload_s = 3_670_016 / float(rate_bps(np.array(1e6), one.gain[0, 0], np.array(0.01), 10**-20.4))
    choice = Choice("dbm", "dBm/Hz", "nearest", "least delay", "max", "1")
    expected = (0.0125 + upload_s, 0.01 + 0.01 * upload_s)
    assert bill(CONFIG, one, FASHION, choice) == pytest.approx(expected, rel=1e-6)
    five = bill(CONFIG, one, FASHION, replace(choice, iterations="Q"))
    assert five == pytest.approx((5 * expected[0], 5 * expected[1]), rel=1e-6)


def test_the_least_delay_is_the_minimum() -> None:
    """At the minimum, an edge's devices finish together at f^max and use its whole bandwidth; found by bisection."""
    whole = fleet()
    edges = whole.nearest_edges(np.arange(100))[:, 0]
    bits = FASHION.model_kb * 8192

    def needed_hz(n: int, delay_s: float) -> float:
        gain, power, noise = whole.gain[n, edges[n]], whole.power_w[n], whole.noise_w_per_hz
        upload_s = delay_s - 5 * whole.cycles_per_sample[n] * whole.samples[n] / whole.max_cpu_hz[n]
        return float(brentq(lambda b: float(rate_bps(np.array(b), gain, power, noise)) - bits / upload_s, 1.0, 1e9))

    def excess_hz(delay_s: float, m: int) -> float:
        return sum(needed_hz(n, delay_s) for n in np.flatnonzero(edges == m)) - float(whole.edge_bandwidth_hz[m])

    used = [m for m in range(5) if (edges == m).any()]
    billed, _ = bill(CONFIG, whole, FASHION, Choice("dbm", "dBm/Hz", "nearest", "least delay", "max", "1"))
    # At the billed delay, the bandwidth of the slowest edge just suffices, and every other edge has enough.
    excesses = [excess_hz(billed, m) for m in used]
    assert max(excesses) == pytest.approx(0.0, abs=1e-4 * float(whole.edge_bandwidth_hz.min()))
    allocated = Choice("dbm", "dBm/Hz", "nearest", "least delay", "allocated", "1")
    at_most = bill(CONFIG, whole, FASHION, replace(allocated, cpu="max"))
    assert bill(CONFIG, whole, FASHION, allocated) == pytest.approx(at_most, rel=1e-9)


@pytest.fixture(scope="module")
def bills() -> pd.DataFrame:
    return run(CONFIG, 2)


def values_of(bills: pd.DataFrame, choice: Choice, number: str) -> np.ndarray:
    rows = (bills[CHOICE] == pd.Series(vars(choice))).all(axis=1)
    return bills.loc[rows, number].to_numpy()


def test_each_choice_changes_the_bill_in_its_direction(bills: pd.DataFrame) -> None:
    assert len(bills) == 2 * 48
    for number in NUMBERS:
        usual = values_of(bills, OURS, number)
        assert values_of(bills, replace(OURS, iterations="Q"), number) == pytest.approx(5 * usual)
    for name, other in (("power", "watt"), ("noise", "dBm/MHz")):  # more power, or less noise
        assert (
            values_of(bills, replace(OURS, **{name: other}), "delay_1_s") < values_of(bills, OURS, "delay_1_s")
        ).all()
    fast = replace(OURS, cpu="max")
    assert (values_of(bills, fast, "delay_0_s") < values_of(bills, OURS, "delay_0_s")).all()
    assert (values_of(bills, fast, "energy_0_j") > values_of(bills, OURS, "energy_0_j")).all()
    least = replace(OURS, allocation="least delay", cpu="max")
    assert (values_of(bills, least, "delay_1_s") < values_of(bills, OURS, "delay_1_s")).all()
    scattered = replace(OURS, edge="random")
    assert (values_of(bills, scattered, "delay_1_s") > values_of(bills, OURS, "delay_1_s")).all()


def test_the_fleets_are_a_function_of_the_seed(bills: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(run(CONFIG, 1), bills[bills["fleet"] == 1].reset_index(drop=True))
    other = run(load_config(None, ["seed=1"]), 1)
    assert not np.isclose(values_of(other, OURS, "delay_1_s"), values_of(bills, OURS, "delay_1_s")[0])
    with pytest.raises(ConfigError, match=r"--fleets: got 0; accepted: 1 or more"):
        run(CONFIG, 0)


def fabricated(**shares: list[float]) -> pd.DataFrame:
    """Return bills that are a share of the paper's, one share per fleet, for the choice with these iterations."""
    rows = [
        vars(replace(OURS, iterations=name)) | {"fleet": fleet} | dict(PAPER * share)
        for name, values in shares.items()
        for fleet, share in enumerate(values, start=1)
    ]
    return pd.DataFrame(rows)


def test_the_ranking_is_that_computed_by_hand() -> None:
    # With Q iterations, the mean share is 1.1 and the median 0.9; with 1 iteration, they are 0.6 and 0.4.
    ranked = rank(fabricated(**{"1": [0.4, 0.4, 1.0], "Q": [0.8, 0.9, 1.6]}))
    assert ranked["iterations"].tolist() == ["Q", "1"]
    assert ranked["mean/worst"].tolist() == pytest.approx([0.1, 0.4])
    assert ranked["median/worst"].tolist() == pytest.approx([0.1, 0.6])
    assert ranked["fleets/six"].tolist() == ranked["fleets/delays"].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert ranked["matching/energy_1_j"].tolist() == pytest.approx([0.85 * 671, 671])
    assert ranked["mean/delay_0_s"].tolist() == pytest.approx([3.41, 1.86])


def test_fleets_whose_delays_match_are_counted_separately() -> None:
    bills = fabricated(Q=[1.0, 1.0])
    bills.loc[0, "energy_2_j"] *= 2
    bills.loc[1, "delay_2_s"] *= 2
    ranked = rank(bills)
    assert (ranked["fleets/delays"][0], ranked["fleets/six"][0]) == (0.5, 0.0)
    assert ranked["matching/energy_2_j"][0] == pytest.approx(2 * 1317)
    assert (ranked["mean/worst"][0], ranked["mean/worst_delay"][0]) == pytest.approx((0.5, 0.5))


def test_reading_an_export_returns_the_study(tmp_path, bills: pd.DataFrame) -> None:
    assert Study.read(tmp_path) is None
    study = Study(bills, ("seed=0",), 2, "2027-01-01", {"git_commit": "0123456789abcdef-dirty", "cpu": "a CPU"})
    about, parquet = study.export(tmp_path)
    again = Study.read(tmp_path)
    assert again is not None
    assert (again.overrides, again.fleets, again.commit) == (("seed=0",), 2, "0123456789ab-dirty")
    pd.testing.assert_frame_equal(rank(again.bills), rank(bills), rtol=1e-6)
    parquet.write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"table2_choices: cannot be read .*--export"):
        Study.read(tmp_path)
    about.write_text('{"version": 99}', encoding="utf-8")
    with pytest.raises(ConfigError, match="an export of version 99"):
        Study.read(tmp_path)


def test_the_command_prints_the_ranking_and_refuses_swept_settings(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["choices", "--fleets", "1", "--top", "2", "--export", str(tmp_path), "--set", "fleet.num_devices=50"])
    assert not stop.value.code
    out = capsys.readouterr().out
    assert "worst of the means" in out
    assert (tmp_path / "table2_choices" / "bills.parquet").exists()
    with pytest.raises(SystemExit) as stop:
        main(["choices", "--set", "fleet.power_law=watt"])
    assert stop.value.code == 2
    assert "the study sets this itself" in capsys.readouterr().err
