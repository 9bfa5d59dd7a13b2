"""hflray.command.calibrate: what it writes and says, its exit codes, and one line for each malformed log."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hflray.calibration.log import read_log
from hflray.calibration.output import calibrate, save
from hflray.errors import ConfigError
from hflray.sweep import expand, load_sweep, with_absolute_paths
from hflray.sweep.preflight import check_trials
from tests.calibration.logs import fleet_log, put
from tests.command.calls import caller
from tests.conftest import refusals, says
from tests.hostile import BREAKING, NAMES

HEAD = "device,round,samples,steps,train_s,bytes,send_s"


call = caller("calibrate", squeezed=True, lines=True)


def dry_run(path: Path) -> None:
    """Check a sweep file as ``--dry-run`` does."""
    file = with_absolute_paths(load_sweep(path))
    check_trials(expand(file), file.task, measure=False)


def test_the_example_is_written_calibrated_and_its_sweep_passes_the_checks(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "--example")
    assert (code, err) == (0, [])
    assert says(out, "calibration_log.csv: 24 rounds of 6 devices", "calibrate calibration_log.csv -o calibrated")
    assert call(capsys, "--example")[0] == 2
    code, out, err = call(capsys, "calibration_log.csv", "-o", "calibrated")
    assert (code, err) == (0, [])
    assert says(out, "device0", "[", "later rounds train_s fits", "unseen edges send_s fits", "fits: 144 rows of 6")
    names = sorted(path.name for path in Path("calibrated").iterdir())
    assert names == ["calibration.json", "devices.csv", "edges.csv", "index.html", "links.csv", "sweep.yaml"]
    devices, links = (pd.read_csv(f"calibrated/{name}.csv") for name in ("devices", "links"))
    assert list(devices) == ["device", "fixed_s", "step_s", "seconds_per_sample", "compute_w", "upload_w"]
    assert devices["fixed_s"].to_numpy() == pytest.approx(0.3, rel=0.15)
    assert list(links) == ["device", "edge", "mbps", "latency_s"]
    assert len(links) == 12
    content = json.loads(Path("calibrated/calibration.json").read_text())
    assert content["answer"] == "fits"
    low, high = content["links"][0]["mbps"]["interval_95"]
    assert low < 4 < high
    dry_run(Path("calibrated/sweep.yaml"))


def test_a_folder_is_kept_without_force(tmp_path, capsys) -> None:
    log, out = put(fleet_log(), tmp_path), tmp_path / "new"
    assert call(capsys, log, "-o", out)[0] == 0
    (out / "mine.txt").write_text("stays")
    code, _, (line,) = call(capsys, log, "-o", out)
    assert code == 2
    assert says(line, "--out", "is not empty", "--force")
    assert call(capsys, log, "-o", out, "--force")[0] == 0
    assert (out / "mine.txt").read_text() == "stays"
    assert call(capsys, log, "-o", log)[0] == 2


def test_without_joules_watts_come_from_the_user_or_the_column_is_left_out_and_said(tmp_path, capsys) -> None:
    log = put(fleet_log(), tmp_path)
    _, out, _ = call(capsys, log, "-o", tmp_path / "lacks")
    assert says(out, "the log has no train_j", "lacks compute_w", "--compute-w")
    assert "compute_w" not in (tmp_path / "lacks/devices.csv").read_text()
    assert says((tmp_path / "lacks/sweep.yaml").read_text(), "# devices.csv lacks compute_w", "lacks upload_w")
    call(capsys, log, "-o", tmp_path / "has", "--compute-w", 4, "--upload-w", 1.5)
    assert pd.read_csv(tmp_path / "has/devices.csv")["upload_w"].tolist() == [1.5] * 5
    dry_run(tmp_path / "has/sweep.yaml")
    assert call(capsys, log, "-o", tmp_path / "no", "--compute-w", 0)[0] == 2
    beside = put(fleet_log().assign(train_j=lambda frame: frame["train_s"]), tmp_path)
    assert says(call(capsys, beside, "-o", tmp_path / "no", "--compute-w", 3)[2][0], "--compute-w", "train_j")


def test_a_log_without_edges_has_one_and_its_sweep_passes_too(tmp_path, capsys) -> None:
    log = put(fleet_log().drop(columns="edge"), tmp_path)
    assert call(capsys, log, "-o", tmp_path / "new", "--compute-w", 4, "--upload-w", 1)[0] == 0
    assert pd.read_csv(tmp_path / "new/edges.csv")["edge"].tolist() == ["edge"]
    dry_run(tmp_path / "new/sweep.yaml")


RATES = {  # bytes, bit/s and s of latency
    "kilobytes": ((1000, 2000, 4000), 5e6, 0.05),
    "1 Gbit/s": ((10**6, 10**7, 10**8), 1e9, 0.01),
    "constant bytes": ((460_000,), 5e6, 0.05),
    "only latency": ((1000, 2000), 1e13, 2.0),
    "20 kbit/s beside 10 Gbit/s": ((10**5, 10**6), None, 0.0),
}


@pytest.mark.parametrize("case", RATES)
def test_rates_of_any_size_give_a_sweep_that_passes_the_checks(tmp_path, capsys, case) -> None:
    sizes, rate, latency_s = RATES[case]
    frame, rng = fleet_log(), np.random.default_rng(0)
    frame["bytes"] = rng.choice(sizes, len(frame))
    rates = rate or np.where(frame["device"] % 2, 2e4, 1e10)
    frame["send_s"] = (latency_s + 8 * frame["bytes"] / rates) * rng.lognormal(0, 0.08, len(frame))
    call(capsys, put(frame, tmp_path), "-o", tmp_path / "new", "--compute-w", 4, "--upload-w", 1)
    dry_run(tmp_path / "new/sweep.yaml")


def test_a_link_that_takes_less_for_more_bytes_is_written_with_an_interval(tmp_path, capsys) -> None:
    frame = fleet_log(rows=60).drop(columns="edge")
    frame["send_s"] = (2.0 - frame["bytes"] / 4e5) * np.random.default_rng(0).lognormal(0, 0.01, len(frame))
    code, out, err = call(capsys, put(frame, tmp_path), "-o", tmp_path / "new")
    assert (code, err) == (1, [])
    assert says(out, "1e+06 [1e+06, inf]")
    for link in json.loads((tmp_path / "new/calibration.json").read_text())["links"]:
        assert (link["mbps"]["value"], link["mbps"]["interval_95"]) == (1e6, [1e6, None])


def test_columns_of_others_are_renamed(tmp_path, capsys) -> None:
    frame = fleet_log().rename(columns={"device": "cid", "round": "server_round", "train_s": "fit_time"})
    log, out = put(frame, tmp_path), tmp_path / "new"
    assert says(call(capsys, log, "-o", out)[2][0], "row 1", "no column device", "--columns")
    assert (
        call(capsys, log, "-o", out, "--columns", "device=cid,round=server_round", "--columns", "train_s=fit_time")[0]
        == 0
    )
    code, _, (line,) = call(capsys, log, "-o", tmp_path / "no", "--columns", "bytes=foo")
    assert says(line, "log.csv has no column foo; its columns are cid, server_round, samples, steps, fit_time, bytes")
    for wrong in ("device", "thing=x", "device=", "device=a,device=b", "train_s=a,send_s=A"):
        code, _, (line,) = call(capsys, log, "-o", tmp_path / "no", "--columns", wrong)
        assert code == 2
        assert says(line, "--columns: got", "accepted: NAME=NAME_IN_THE_FILE")


ROW = "a,1,64,4,1.5,1000,0.5"


@pytest.mark.parametrize("content, facts", [*refusals("calibration/log"), ("HEAD\n\udce9,1", ["row 2", "UTF-8"])])
def test_a_malformed_log_is_one_line_with_its_row(tmp_path, capsys, content: str, facts: list[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content.replace("HEAD", HEAD).replace("ROW", ROW), encoding="utf-8", errors="surrogateescape")
    code, out, (line,) = call(capsys, path, "-o", tmp_path / "new")
    assert (code, out) == (2, "")
    assert says(line, "log.csv" if "column train_s: no" not in facts[0] else "LOG", *facts)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "words", [(), ("log.csv",), ("missing.csv", "-o", "x"), ("log.txt", "-o", "x"), (".", "-o", "x")]
)
def test_a_wrong_call_is_one_line(tmp_path, capsys, monkeypatch, words) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.txt").write_text(HEAD)
    code, out, err = call(capsys, *words)
    assert (code, out, len(err)) == (2, "", 1)


def _answered(log: Path, folder: Path, capsys, *facts: str) -> int:
    code, out, err = call(capsys, log, "-o", folder)
    assert err == []
    assert says(out, *facts), out
    return code


def test_unusual_logs_get_notes_and_an_answer(tmp_path, capsys) -> None:
    frame = fleet_log()
    same = {}
    for name, content in {
        "bom": b"\xef\xbb\xbf" + frame.to_csv(index=False).encode(),
        "semicolons": frame.to_csv(index=False, sep=";", decimal=",").encode(),
        "windows": frame.to_csv(index=False, lineterminator="\r\n").encode(),
        "capitals": frame.rename(columns=str.upper).to_csv(index=False).encode(),
        "shuffled": frame.sample(frac=1, random_state=0).to_csv(index=False).encode(),
    }.items():
        (tmp_path / f"{name}.csv").write_bytes(content)
        assert _answered(tmp_path / f"{name}.csv", tmp_path / name, capsys, "fits: 120 rows of 5 devices") == 0
        same[name] = pd.read_csv(tmp_path / name / "devices.csv")
    frame.to_parquet(tmp_path / "log.parquet")
    _answered(tmp_path / "log.parquet", tmp_path / "parquet", capsys, "fits: 120 rows")
    for name, table in same.items():
        pd.testing.assert_frame_equal(table, same["bom"], rtol=1e-4, obj=name)
    again = put(pd.concat([frame, frame.iloc[[4, 5]]]), tmp_path)
    _answered(again, tmp_path / "again", capsys, "note: 2 rows repeat an earlier one, as row 122 does row 6")
    lone = put(pd.concat([frame, frame.iloc[[0]].assign(device=9)]), tmp_path)
    _answered(lone, tmp_path / "lone", capsys, "note: 1 of 6 devices, such as 9, has under 8 rows: untested", "fits:")
    gaps = frame.assign(send_s=frame["send_s"].where(frame.index % 3 > 0), host="x")
    _answered(
        put(gaps, tmp_path), tmp_path / "gaps", capsys, "nothing uses the columns host", "40 of 120 rows have no send_s"
    )
    one = put(frame.iloc[[0]], tmp_path)
    facts = ("too few rows", "1 of 1 device, such as 0, has under 8 rows", "does not fit: 1 row of 1 device")
    assert _answered(one, tmp_path / "one", capsys, *facts) == 1
    spaced = frame.assign(
        device=["b " if n % 2 else "b" for n in frame.index], bytes=frame["bytes"].where(frame.index > 0)
    )
    facts = ("spaces around a name in column device are left out", "1 of 120 rows has no bytes: left out of the fit")
    _answered(put(spaced, tmp_path), tmp_path / "spaced", capsys, *facts)
    idle = put(frame.assign(steps=0), tmp_path)
    _answered(idle, tmp_path / "idle", capsys, "step_s is 0 and not tested: the log's steps are all 0")
    for column, values in (("round", pd.to_datetime(frame["round"], unit="D")), ("train_s", frame["train_s"] > 1)):
        frame.assign(**{column: values}).to_parquet(tmp_path / "typed.parquet")
        code, _, (line,) = call(capsys, tmp_path / "typed.parquet", "-o", tmp_path / "typed")
        assert code == 2
        assert says(line, f"column {column}: holds ", "accepted: numbers or names; convert the column")
    partly = frame.assign(train_j=frame["train_s"], send_j=frame["send_s"])
    partly.loc[partly["device"] == 2, ["train_s", "send_s", "train_j", "send_j"]] = np.nan
    _answered(put(partly, tmp_path), tmp_path / "partly", capsys, "1 of 5 devices has no train_s", "no send_j")
    dry_run(tmp_path / "partly/sweep.yaml")
    _answered(put(partly.drop(columns="edge"), tmp_path), tmp_path / "alone", capsys, "1 of 5 devices has no send_s")
    assert pd.read_csv(tmp_path / "alone/links.csv")["mbps"].max() < 20
    blocked = put(frame.assign(train_s=0.1 * frame["steps"], samples=0), tmp_path)
    assert _answered(blocked, tmp_path / "blocked", capsys, "seconds_per_sample is 0") == 0
    slow = put(frame.assign(send_s=2.0 + frame["round"] % 2 / 100), tmp_path)
    _answered(slow, tmp_path / "slow", capsys, "does not grow with bytes")


def test_hostile_names_are_shown_and_never_interpreted(tmp_path, capsys) -> None:
    frame = fleet_log(rows=10, devices=len(NAMES))
    frame["device"] = [NAMES[n] for n in frame["device"]]
    frame["edge"] = [NAMES[n] for n in frame["edge"]]
    log, out = put(frame, tmp_path), tmp_path / "new"
    call(capsys, log, "-o", out, "--compute-w", 3, "--upload-w", 1)
    page = (out / "index.html").read_text()
    assert not re.search(r"<(script|img|link rel=.stylesheet)", page)
    assert all(html.escape(name, quote=False).replace('"', "&#34;").replace("'", "&#39;") in page for name in NAMES)
    assert sorted(pd.read_csv(out / "devices.csv", dtype=str)["device"]) == sorted(NAMES)
    dry_run(out / "sweep.yaml")


@pytest.mark.parametrize("name", [name for name in BREAKING if "\ud800" not in name])
def test_names_that_break_lines_are_refused(tmp_path, capsys, name) -> None:
    frame = fleet_log(devices=1).assign(device=name)
    code, _, lines = call(capsys, put(frame, tmp_path), "-o", tmp_path / "new")
    assert (code, len(lines)) == (2, 1)


def test_the_page_needs_no_network_and_has_all_charts(tmp_path, capsys) -> None:
    call(capsys, put(fleet_log(), tmp_path), "-o", tmp_path / "new")
    page = (tmp_path / "new/index.html").read_text()
    assert page.count("<svg") == 4
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert page.count("<circle") == 480
    assert 'class="late"' not in page


def test_the_page_marks_the_devices_that_verdicts_name_and_residuals_beyond_its_axis(tmp_path, capsys) -> None:
    frame = fleet_log(rows=60)
    rows = frame["device"] == 2
    frame.loc[rows, "train_s"] *= 3.4 ** (frame.loc[rows, "round"] / 60)
    frame.loc[3, "train_s"] *= 50
    call(capsys, put(frame, tmp_path), "-o", tmp_path / "new")
    page = (tmp_path / "new/index.html").read_text()
    assert re.findall(r'<tr class="late"><td>(.*?)</td>', page) == ["2"] * 3  # the device, and its two links
    assert page.count('class="beyond"') >= 1
    assert says(page, "Residuals beyond ±100 % are circles at the edge")


def big(rows: int, devices: int, folder: Path) -> Path:
    return put(fleet_log(rows // devices, devices), folder)


def test_a_log_of_a_million_and_one_rows_is_refused_in_one_line(tmp_path, capsys) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{HEAD}\n" + f"{ROW}\n" * 1_000_001)
    code, _, (line,) = call(capsys, path, "-o", tmp_path / "new")
    assert code == 2
    assert says(line, "has 1,000,001 rows; accepted: at most 1,000,000")


@pytest.mark.slow  # the first takes under 5 s on Zen 5, and 5.6 s on Zen 3
@pytest.mark.parametrize(("rows", "seconds"), [(100_000, 8.0), (1_000_000, 90.0)])
def test_an_answer_takes_seconds_of_processor(tmp_path, rows, seconds) -> None:
    log = big(rows, 1000, tmp_path)
    command = [sys.executable, "-m", "hflray", "calibrate", str(log), "-o", str(tmp_path / "new")]
    before, begin = os.times(), time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    after = os.times()
    took_s = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{rows:,} rows: {took_s:.1f} s of processor, {time.monotonic() - begin:.1f} s in all")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert np.float64(took_s) < seconds


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(60))
def test_odd_logs_give_an_answer_or_one_line_and_whole_tables(tmp_path, seed) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 2, 3, 5, 9, 20, 60]))

    def column(*kinds: list[float]) -> np.ndarray:
        return rng.choice(np.array(kinds[rng.integers(len(kinds))], float), rows)

    frame = pd.DataFrame(
        {
            "device": rng.integers(0, rng.choice([1, 2, 9]), rows),
            "round": rng.integers(0, rng.choice([1, 3, 30]), rows),
            "samples": column([0], [64], [0, 1e15], [64, 128, 300], [1, 1e9]),
            "steps": column([0], [4], [4, 5, 8], [0, 1e12]),
            "train_s": column([0, 1], [1e-300, 1e9], [1, 2, 3], [1], [np.nan, 2]),
            "bytes": column([0], [1000], [1000, 2000, 5000], [np.nan, 10], [0, 1e15]),
            "send_s": column([0, 1], [1e-300, 1e9], [1, 2, 3], [1], [np.nan, 2]),
        }
    )
    for name in ("edge", "train_j", "send_j"):
        if rng.random() < 0.5:
            frame[name] = column([0, 3], [np.nan, 3], [1e-200, 1e15], [3])
            frame[name] = frame[name].fillna(7) if name == "edge" else frame[name]
    log = put(frame, tmp_path)
    try:
        save(calibrate(read_log(log, {})), tmp_path / "new", "log.csv")
    except ConfigError as error:
        assert says(str(error), "LOG, column", "no row has")
        return
    texts = [(tmp_path / "new" / name).read_text() for name in ("devices.csv", "links.csv")]
    assert not any(wrong in text for text in texts for wrong in ("inf", "nan", ",,", ",\n"))
