"""tests.testbed: what it refuses, what a killed one leaves behind, its plans, and the numbers of its page."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hflray.calibration.log import read_log
from hflray.errors import ConfigError
from tests.conftest import says
from tests.testbed import machine, play, reality
from tests.testbed.plans import EDGES, FITTED, MODEL_BYTES, SETTINGS, cloud_rate_bps, fleet

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


@pytest.mark.slow
def test_a_killed_testbed_leaves_no_process_and_the_next_one_plays(tmp_path) -> None:
    try:
        machine.check()
    except ConfigError as error:
        pytest.skip(str(error))
    words = [sys.executable, "-m", "tests.testbed", "--short", "-o", str(tmp_path / "log.csv")]
    killed = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert killed.stderr is not None
    assert "round 1 of 3" in killed.stderr.readline()
    groups = (machine.CPU / machine.GROUP).glob("*/cgroup.procs")
    left = [int(pid) for group in groups for pid in group.read_text().split()]
    assert len(left) == 11
    killed.kill()
    killed.wait()
    end_s = time.monotonic() + 30
    while any(Path("/proc", str(pid)).exists() for pid in left) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert [pid for pid in left if Path("/proc", str(pid)).exists()] == []
    assert len(machine.namespaces()) == 11
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert says(done.stderr, "round 3 of 3")
    assert machine.namespaces() == []
    assert not (machine.CPU / machine.GROUP).exists()
    read_log(tmp_path / "log.csv", {})
    log = pd.read_csv(tmp_path / "log.csv")
    turns = log[log["local_iterations"].notna()]
    assert sorted(turns["config"].unique()) == ["A", "B", "E"]
    assert turns["accuracy"].max() > 0.7  # the models are trained, sent and combined
    assert (turns["round_s"] > turns["train_s"] + turns["send_s"]).all()
    turns = turns[turns["edge"] != play.CLOUD]
    assert turns["send_s"].to_numpy() == pytest.approx(8e-6 * MODEL_BYTES / turns["mbps"] * 1.038, rel=0.2)


def made_log(fixed_cpu_s: float, step_cpu_s: float, sample_cpu_s: float, between_s: float) -> pd.DataFrame:
    """Return the log of a testbed without noise, whose turns take these CPU seconds."""
    rows = [
        {"device": name, "round": 0, "samples": 20, "steps": 1, "batch": 20, "kind": play.PROBE, "turn": 1,
         "cores": cores, "train_s": 0.004}
        for name, cores in zip(play.DEVICE_NAMES, play.reference()[0], strict=True)
    ]  # fmt: skip
    for number, (made, turn) in enumerate(play.order(dict.fromkeys(SETTINGS, 16)), 1):
        samples, setting = fleet().samples[made.devices].astype(int), made.setting
        steps = setting.local_iterations * -(-samples // setting.batch_size)
        processed = setting.local_iterations * samples
        train_s = (fixed_cpu_s + step_cpu_s * steps + sample_cpu_s * processed) / made.cores
        send_s, hop_s = 8.3 * MODEL_BYTES / made.rate_bps, 8.3 * MODEL_BYTES / cloud_rate_bps()
        edge_s = [2 * (train_s + send_s)[made.edges == m].max(initial=0) + hop_s[m] for m in range(EDGES)]
        common = {"round": number, "config": setting.name, "kind": setting.kind, "turn": turn, "bytes": MODEL_BYTES,
                  "local_iterations": setting.local_iterations, "round_s": max(edge_s) + between_s}  # fmt: skip
        for h, (n, m) in enumerate(zip(made.devices, made.edges, strict=True)):
            row = common | {"device": f"device{n}", "edge": f"edge{m}", "batch": setting.batch_size,
                            "samples": processed[h], "steps": steps[h], "cores": made.cores[h], "send_s": send_s[h],
                            "mbps": made.rate_bps[h] / 1e6, "train_s": train_s[h]}  # fmt: skip
            rows += [row | {"iteration": 1}, row | {"iteration": 2}]
        rows += [common | {"device": f"edge{m}", "edge": play.CLOUD, "samples": 0, "steps": 2, "batch": 4,
                           "mbps": cloud_rate_bps()[m] / 1e6, "train_s": 1e-3, "send_s": hop_s[m]}
                 for m in set(made.edges.tolist())]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_testbed_without_noise_is_predicted_but_for_what_no_constant_says() -> None:
    rows = reality.compared(made_log(0.002, 0.0008, 0.00013, between_s=0.25)).rows
    assert len(rows) == len(SETTINGS)
    predicted_s = rows["round_s"] * (1 + rows["calibrated"]) + rows["between_s"]
    assert predicted_s.to_numpy() == pytest.approx(rows["round_s"].to_numpy(), rel=1e-3)
    assert rows["between_s"].to_numpy() == pytest.approx(0.25, abs=1e-6)
    assert rows["waiting_s"].to_numpy() == pytest.approx(0, abs=1e-6)
    assert np.abs(np.concatenate([*rows["compute"], *rows["upload"]])).max() < 1e-3
    result = reality.summary(rows[rows["kind"] != FITTED])
    assert (result.count, result.median > 0.05, result.rank > 0.95) == (11, True, True)
    assert not reality.meets_goal(result)
    near = reality.summary(reality.compared(made_log(0.002, 0.0008, 0.00013, between_s=0.01)).rows)
    assert reality.meets_goal(near)
    assert reality.summary(rows, "naive, one step").median > 0.2


def test_the_page_has_the_numbers_of_the_log() -> None:
    text, frame = reality.PAGE.read_text(encoding="utf-8"), reality.read(reality.LOG)
    again = reality.renewed(text, frame, reality.compared(frame))
    assert NUMBER.sub("", again) == NUMBER.sub("", text)
    numbers = [[float(number) for number in NUMBER.findall(page)] for page in (again, text)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.11)
    assert reality.LOG.stat().st_size < 300_000
