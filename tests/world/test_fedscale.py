"""hflray.world.fedscale: the availability of FedScale's clients becomes a trace."""

from __future__ import annotations

import json
import pickle
import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hflray.world.availability import AvailabilityTrace
from hflray.world.fedscale import convert, main
from tests.conftest import refusals, says

CLIENTS = {
    "7": {"active": [10, 50], "inactive": [20, 60], "finish_time": 100, "model": "x"},
    "9": {"active": [80], "inactive": [30], "finish_time": 100},  # available from the start, and again at the end
}
LINES = [
    "time_s,device,available", "0,0,0", "0,1,0", "0,1,1", "10,0,1", "20,0,0", "30,1,0", "50,0,1", "60,0,0", "80,1,1",
    "100,1,0",
]  # fmt: skip


def test_json_and_csv_become_the_same_trace(tmp_path: Path) -> None:
    (tmp_path / "clients.json").write_text(json.dumps(CLIENTS), encoding="utf-8")
    target = tmp_path / "trace.csv"
    assert convert(tmp_path / "clients.json", target) == (2, 100.0)
    assert target.read_text(encoding="utf-8").splitlines() == LINES
    (tmp_path / "clients.csv").write_text(
        "client,active_s,inactive_s\n7,10,20\n7,50,60\n9,0,30\n9,80,100\n", encoding="utf-8"
    )
    assert convert(tmp_path / "clients.csv", target) == (2, 100.0)
    assert target.read_text(encoding="utf-8").splitlines() == LINES
    part = AvailabilityTrace(num_devices=2, seed=0, path=str(target), repeat_s=101)
    part.advance(55)
    assert part.available(1, 55).tolist() == [True, False]
    assert convert(tmp_path / "clients.json", target, devices=1)[0] == 1


def test_long_times_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("client,active_s,inactive_s\n7,1234567,1234568.5\n", encoding="utf-8")
    assert convert(tmp_path / "a.csv", tmp_path / "trace.csv") == (1, 1234568.5)
    assert (tmp_path / "trace.csv").read_text(encoding="utf-8").splitlines()[2:] == ["1234567,0,1", "1234568.5,0,0"]


def test_the_script_of_the_example_reads_a_pickle(tmp_path: Path, monkeypatch) -> None:
    source, target = tmp_path / "trace", tmp_path / "clients.json"
    source.write_bytes(pickle.dumps(CLIENTS))
    monkeypatch.setattr("sys.argv", ["fedscale_pickle.py", str(source), str(target)])
    example = Path(__file__).parents[2] / "examples" / "fedscale_pickle.py"
    runpy.run_path(str(example), run_name="__main__")
    assert convert(target, tmp_path / "trace.csv") == (2, 100.0)
    assert "UNSAFE" in example.read_text(encoding="utf-8")


def _share_on(path: Path, device: int, period_s: float) -> float:
    """Return the share of a period in which a device of a trace is available."""
    rows = [list(map(float, line.split(","))) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    own = [(time, on) for time, number, on in rows if number == device] + [(period_s, 0.0)]
    return sum(on * (later - time) for (time, on), (later, _) in pairwise(own)) / period_s


def test_each_client_repeats_after_its_own_time(tmp_path: Path) -> None:
    """A client of 100 s in a file of 300 s is available 30 % of the time, in spells at 0, 100 and 200 s."""
    clients = {
        "a": {"active": [0], "inactive": [30], "finish_time": 100},
        "b": {"active": [30], "inactive": [90], "finish_time": 300},
        "c": {"active": [100], "inactive": [140], "finish_time": 160},  # its second spell would end at 300
    }
    (tmp_path / "clients.json").write_text(json.dumps(clients), encoding="utf-8")
    target = tmp_path / "trace.csv"
    assert convert(tmp_path / "clients.json", target) == (3, 300.0)
    assert [_share_on(target, device, 300.0) for device in range(3)] == pytest.approx([0.3, 0.2, 80 / 300])
    part = AvailabilityTrace(num_devices=3, seed=0, path=str(target), repeat_s=300.001)
    seen = []
    for clock_s in (10.0, 50.0, 110.0, 150.0, 210.0, 310.1):
        part.advance(clock_s)
        seen.append(bool(part.available(1, clock_s)[0]))
    assert seen == [True, False, True, False, True, True]


@pytest.mark.parametrize(
    "client, spells",
    [
        ({"active": [], "inactive": [10]}, [(0, 10)]),  # there from the start, and leaves once
        ({"active": [], "inactive": []}, []),
        ({"active": [20], "inactive": []}, [(20, 100)]),
        ({"active": [20], "inactive": [10]}, [(0, 10), (20, 100)]),
        ({"active": [20, 120], "inactive": [110, 130]}, [(20, 100)]),  # it begins anew at 100 s
    ],
)
def test_a_client_may_begin_and_end_available(tmp_path: Path, client: dict[str, Any], spells: list[Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"x": {**client, "finish_time": 100}}), encoding="utf-8")
    assert convert(tmp_path / "a.json", tmp_path / "trace.csv") == (1, 100.0)
    lines = (tmp_path / "trace.csv").read_text(encoding="utf-8").splitlines()[2:]
    assert lines == [line for on, off in spells for line in (f"{on},0,1", f"{off},0,0")]


NESTED = ("a.json", "[" * 100_000, "nested too deeply")
GOOD = '"1": {"active": [1], "inactive": [2], "finish_time": 9}'


@pytest.mark.parametrize("name, text, reason", [*refusals("world/fedscale"), NESTED])
def test_another_file_is_one_line_and_exit_code_2(tmp_path: Path, capsys, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text.replace("GOOD", GOOD), encoding="utf-8")
    assert main([str(tmp_path / name), str(tmp_path / "trace.csv")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says(error, name, reason)
    assert not (tmp_path / "trace.csv").exists()
