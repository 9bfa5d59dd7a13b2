"""hflray.calibration.verdict: what fits, what does not and why, and what a log cannot test."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hflray.calibration.log import read_log
from hflray.calibration.output import Calibration, calibrate
from tests.calibration.logs import CONSTANTS, fleet_log, log_of, phone_log, put
from tests.conftest import says


def calibrated(frame: pd.DataFrame, folder) -> Calibration:
    return calibrate(read_log(put(frame, folder), {}))


def answers(made: Calibration, quantity: str) -> list[str]:
    return [verdict.answer for verdict in made.verdicts if verdict.quantity == quantity]


def why(made: Calibration) -> str:
    return "; ".join(f"{each.kind} {each.quantity}: {each.reason}" for each in made.verdicts if each.reason)


@pytest.mark.parametrize("seed", range(3))
def test_constants_that_hold_fit_in_all_three_kinds_of_held_out_rows(tmp_path, seed) -> None:
    made = calibrated(fleet_log(seed=seed), tmp_path)
    assert made.answer == "fits", why(made)
    assert [(each.kind, each.quantity) for each in made.verdicts] == [
        ("later rounds", "train_s"), ("later rounds", "send_s"), ("unseen edges", "send_s"),
        ("unseen batch or steps", "train_s"),
    ]  # fmt: skip
    assert all(each.median_error < 0.1 and not each.rank < 0.9 and each.rows >= 20 for each in made.verdicts)


@pytest.mark.parametrize("name", CONSTANTS)
def test_logs_of_one_device_fit(tmp_path, name) -> None:
    made = calibrated(log_of(name, 3), tmp_path)
    assert made.answer == "fits", why(made)


@pytest.mark.parametrize("rounds", [10, 40, 400])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_client_that_grows_from_40_to_136_seconds_at_constant_work_drifts(tmp_path, rounds, noise) -> None:
    frame = fleet_log(rows=rounds, devices=1).assign(samples=640, steps=20)
    frame["train_s"] = np.linspace(40, 136, rounds) * np.random.default_rng(0).lognormal(0, noise, rounds)
    made = calibrated(frame, tmp_path)
    assert made.answer == "does not fit"
    assert says(why(made), "later rounds train_s: drift of device 0 (train_s rises to 3")


def test_one_device_of_many_that_drifts_does_not_fit_and_is_named(tmp_path) -> None:
    frame = fleet_log(devices=30)
    frame.loc[frame["device"] == 7, ["samples", "steps"]] = 640, 20
    frame.loc[frame["device"] == 7, "train_s"] = np.linspace(40, 136, 24)
    assert why(calibrated(frame, tmp_path)).startswith("later rounds train_s: drift of device 7 (")


def test_two_regimes_do_not_fit(tmp_path) -> None:
    frame, rng = fleet_log(rows=40), np.random.default_rng(0)
    frame.loc[(frame["device"] == 1) & (rng.random(len(frame)) < 0.4), "train_s"] *= 2.5
    made = calibrated(frame, tmp_path)
    assert made.answer == "does not fit"
    assert says(why(made), "two regimes of device 1 (", "% of its rows take 2.")


def test_few_outliers_fit_and_many_do_not(tmp_path) -> None:
    rng = np.random.default_rng(1)
    few, many = fleet_log(rows=60), fleet_log(rows=60)
    for frame, part in ((few, 0.05), (many, 0.3)):
        slow = rng.random(len(frame)) < part
        frame.loc[slow, "train_s"] *= rng.uniform(2, 8, slow.sum())
    assert calibrated(few, tmp_path).answer == "fits"
    assert says(why(calibrated(many, tmp_path)), "outliers: ", "of the rows are off by more than half")


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_too_few_rows_do_not_fit(tmp_path, rows) -> None:
    made = calibrated(fleet_log(rows=rows, devices=2), tmp_path)
    assert made.answer == "does not fit"
    assert says(why(made), f"too few rows: a device has at most {rows}, and 8 are needed")


def test_scatter_does_not_fit(tmp_path) -> None:
    assert says(why(calibrated(fleet_log(rows=60, noise=0.3), tmp_path)), "rows scatter by ")


def test_work_that_is_not_linear_fails_on_what_was_not_seen(tmp_path) -> None:
    frame = fleet_log(rows=100)
    frame["train_s"] = 1e-6 * frame["samples"] ** 2.0
    assert answers(calibrated(frame, tmp_path), "train_s")[1] == "does not fit"


@pytest.mark.parametrize(("bend", "answer"), [(0.3, "fits"), (0.5, "does not fit")])
@pytest.mark.parametrize("is_batch", [True, False])
def test_of_unseen_batches_and_unseen_steps_the_worse_answer_counts(tmp_path, is_batch, bend, answer) -> None:
    rng, n = np.random.default_rng(1), 160
    curved, straight = rng.choice(np.array([4, 8, 16, 32, 64, 128]) * (1 + is_batch), n), rng.choice([10, 20, 40], n)
    batch, steps = (curved, straight) if is_batch else (straight, curved)
    frame = pd.DataFrame({"device": np.arange(n) % 4, "round": np.arange(n) // 4, "samples": batch * steps})
    train_s = 0.2 + steps * (0.01 + 5e-4 * batch) * (1 + bend * (curved / curved.max()) ** 1.5)
    frame["train_s"] = train_s * rng.lognormal(0, 0.02, n)
    made = calibrated(frame.assign(steps=steps, bytes=400_000, send_s=1.0), tmp_path)
    verdict = made.verdicts[-1]
    assert (verdict.kind, verdict.answer) == ("unseen batch or steps", answer)
    assert verdict.median_error > 0.09


@pytest.mark.parametrize("varies", ["batch", "steps"])
def test_where_only_batches_or_only_steps_can_be_held_out_they_count(tmp_path, varies) -> None:
    frame = fleet_log(rows=48)
    rows = frame["steps"] == 20 if varies == "batch" else frame["samples"] == 16 * frame["steps"]
    made = calibrated(frame[rows], tmp_path)
    assert answers(made, "train_s") == ["fits", "fits"]
    assert made.verdicts[-1].rows >= 40


UNITS = {
    "milliseconds of a device": ({"device": 3}, "train_s", 1e3, "train_s of device 3 is", "looks like milliseconds"),
    "kilobytes of a device": ({"device": 3}, "bytes", 1e-3, "send_s of device 3 is", "its bytes look like kilobytes"),
    "milliseconds of sending": ({}, "send_s", 1e3, "send_s looks like milliseconds, or bytes like kilobytes"),
    "kilobytes": ({}, "bytes", 1e-3, "send_s looks like milliseconds, or bytes like kilobytes"),
    "milliseconds beside joules": ({}, "train_s", 1e3, "train_s looks like milliseconds"),
    "millijoules": ({}, "train_j", 1e3, "train_j looks like millijoules"),
}


@pytest.mark.parametrize("case", UNITS)
def test_a_unit_that_is_off_by_1000_does_not_fit_and_is_named(tmp_path, case) -> None:
    where, column, factor, *facts = UNITS[case]
    frame = fleet_log()
    if "joules" in case:
        frame["train_j"] = 3 * frame["train_s"]
    rows = frame["device"] == where["device"] if where else slice(None)
    frame[column] = frame[column].astype(float)
    frame.loc[rows, column] *= factor
    made = calibrated(frame, tmp_path)
    assert made.answer == "does not fit"
    assert says(why(made), "units", *facts)


def test_a_phones_fixed_part_of_a_step_predicts_batch_16_and_constant_cycles_are_wrong_by_eight(tmp_path) -> None:
    made = calibrated(phone_log((1, 16), (9.66, 19.15)), tmp_path)
    sample_s, step_s, fixed_s = made.model.train.values[0]
    assert step_s + sample_s == pytest.approx(9.66e-3, rel=0.02)
    assert step_s + 16 * sample_s == pytest.approx(19.15e-3, rel=0.02)
    assert fixed_s < 0.01
    assert made.answer == "fits"
    assert round(16 * 9.66 / 19.15) == 8  # a constant time for a sample, from batch 1 alone
    assert answers(made, "train_s") == ["fits", "not tested"]  # with two batches none can be held out


def test_a_batch_that_was_not_seen_is_predicted_from_two_others(tmp_path) -> None:
    per_sample = (19.15 - 9.66) / 15
    made = calibrated(phone_log((1, 8, 16), (9.66, 9.66 + 7 * per_sample, 19.15)), tmp_path)
    assert answers(made, "train_s") == ["fits", "fits"], why(made)


def test_what_a_log_cannot_tell_is_0_with_a_note_and_not_tested(tmp_path) -> None:
    frame = fleet_log(noise=0.0).assign(bytes=400_000)
    frame["samples"], frame["train_s"] = 20 * frame["steps"], 0.5 + 0.1 * frame["steps"]
    frame["send_s"] = 1.0 + frame["edge"]
    made = calibrated(frame.drop(columns="edge").assign(send_s=1.0), tmp_path)
    notes = " ".join(made.notes)
    assert says(notes, "step_s is 0 and not tested for 5 of 5", "collinear")
    assert says(notes, "latency_s is 0 and not tested for 5 of 5", "bytes are constant")
    assert made.model.train.values[0] == pytest.approx([0.005, 0, 0.5], rel=1e-6)
    assert [each.answer for each in made.verdicts if each.kind == "unseen edges"] == ["not tested"]


def test_joules_are_watts_times_seconds(tmp_path) -> None:
    frame, rng = fleet_log(), np.random.default_rng(0)
    frame["train_j"], frame["send_j"] = 3 * frame["train_s"] * rng.lognormal(0, 0.03, len(frame)), frame["send_s"]
    made = calibrated(frame, tmp_path)
    assert made.model.watts["train_j"].values == pytest.approx(3, rel=0.05)
    assert answers(made, "train_j") == ["fits", "fits"]
    assert answers(made, "send_j") == ["fits", "fits"]


def test_an_unseen_link_takes_what_its_device_and_its_edge_take_beside_others(tmp_path) -> None:
    frame = fleet_log(rows=60, noise=0.001)
    frame["send_s"] = (1 + frame["device"]) * (1 + frame["edge"]) * (0.1 + 1e-6 * frame["bytes"])
    made = calibrated(frame[(frame["device"] > 0) | (frame["edge"] == 1)], tmp_path)
    byte_s, latency_s = made.model.sending(np.array([0]), np.array([0]))
    assert byte_s[0] == pytest.approx(1e-6, rel=0.01)
    assert latency_s[0] == pytest.approx(0.1, rel=0.02)


def _many_devices(noise: float = 0.04, seed: int = 0, joules: bool = False) -> pd.DataFrame:
    frame, rng = fleet_log(devices=8, noise=noise, seed=seed), np.random.default_rng(100 + seed)
    if joules:
        frame["train_j"] = 4 * frame["train_s"] * rng.lognormal(0, noise, len(frame))
        frame["send_j"] = 1.5 * frame["send_s"] * rng.lognormal(0, noise, len(frame))
    return frame


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("joules", [False, True])
def test_good_logs_with_noise_of_a_tenth_and_outliers_fit(tmp_path, seed, joules) -> None:
    frame, rng = _many_devices(0.1, seed, joules), np.random.default_rng(seed)
    for name in ("train_s", "send_s"):
        frame[name] *= np.where(rng.random(len(frame)) < 0.05, rng.uniform(3, 10, len(frame)), 1)
        frame[f"{name[:-1]}j"] = frame.get(f"{name[:-1]}j", np.nan)
    made = calibrated(frame.dropna(axis=1), tmp_path)
    assert made.answer == "fits", why(made)


@pytest.mark.parametrize("joules", [False, True])
@pytest.mark.parametrize("which", [[0], [0, 1, 2, 3], [2, 3, 4, 5, 6]])
def test_devices_in_milliseconds_are_named_however_many_they_are(tmp_path, which, joules) -> None:
    frame = _many_devices(joules=joules)
    frame.loc[frame["device"].isin(which), "train_s"] *= 1000
    (verdict,) = [each for each in calibrated(frame, tmp_path).verdicts if each.kind == "units"]
    assert verdict.quantity == "train_s"
    if joules or len(which) <= 4:  # without joules the fewer are taken for the wrong ones
        assert list(verdict.devices) == which
        assert says(verdict.reason, "looks like milliseconds")


def _rising(frame: pd.DataFrame, rows: pd.Series, name: str, factor: float) -> None:
    frame.loc[rows, name] *= factor ** (frame.loc[rows, "round"] / frame["round"].max())


DRIFTS = {
    "watts": (lambda frame: frame["device"] == 3, "train_j", 3.4, "train_j: drift of device 3 (compute_w rises to 3"),
    "a link": (lambda frame: (frame["device"] == 3) & (frame["edge"] == 1), "send_s", 3.4, "drift of link 3 – 1 ("),
    "an edge": (lambda frame: frame["edge"] == 1, "send_s", 2.0, "drift of edge 1 (send_s rises to "),
}


@pytest.mark.parametrize("case", DRIFTS)
def test_drift_of_watts_links_and_edges_is_named(tmp_path, case) -> None:
    rows, name, factor, fact = DRIFTS[case]
    frame = _many_devices(joules=True)
    _rising(frame, rows(frame), name, factor)
    if name == "send_s":
        frame["send_j"] = frame["send_s"]
    assert says(why(calibrated(frame, tmp_path)), fact)


def test_two_regimes_of_watts_do_not_fit(tmp_path) -> None:
    frame, rng = _many_devices(joules=True), np.random.default_rng(0)
    frame.loc[(frame["device"] == 1) & (rng.random(len(frame)) < 0.4), "train_j"] *= 3
    assert says(why(calibrated(frame, tmp_path)), "later rounds train_j: two regimes of device 1 (", "times as much")


def test_one_device_of_noise_among_many_is_named(tmp_path) -> None:
    frame, rng = fleet_log(devices=20), np.random.default_rng(0)
    frame.loc[frame["device"] == 7, "train_s"] = rng.uniform(0.1, 5, 24)
    made = calibrated(frame, tmp_path)
    assert says(why(made), "later rounds train_s: scatter of device 7 (half of its rows are off by ")
    assert {n for each in made.verdicts for n in each.devices} == {7}


def test_an_answer_from_under_half_of_the_devices_is_none(tmp_path) -> None:
    frame = fleet_log(devices=11)
    made = calibrated(frame[(frame["device"] < 5) | (frame["round"] < 7)], tmp_path)
    assert made.answer == "not tested"
    assert says(why(made), "later rounds train_s: 5 of 11 devices have rows that can be held out")


@pytest.mark.parametrize("value", [1e9, 1e-9])
def test_a_sentinel_changes_nothing(tmp_path, value) -> None:
    frame = fleet_log()
    before = calibrated(frame, tmp_path).model.train.values
    frame.loc[4, "train_s"] = value
    made = calibrated(frame, tmp_path)
    assert made.answer == "fits", why(made)
    assert made.model.train.values[0] == pytest.approx(before[0], rel=0.15)
