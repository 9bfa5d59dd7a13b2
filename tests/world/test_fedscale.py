"""hflray.world.fedscale: the availability of FedScale's clients becomes a trace."""

from __future__ import annotations

import json
import pickle
import runpy
from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.world.availability import FromTrace
from hflray.world.fedscale import convert

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
    part = FromTrace(num_devices=2, seed=0, path=str(target), repeat_s=101)
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


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.json", "[]"), ("a.json", "{"), ("a.json", '{"1": {"active": [5]}}'), ("a.json", "{}"),
        ("a.csv", "client,from,to\n1,2,3\n"), ("a.csv", "client,active_s,inactive_s\n1,5,3\n"),
    ],
)  # fmt: skip
def test_another_file_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a\.(json|csv): "):
        convert(tmp_path / name, tmp_path / "trace.csv")
