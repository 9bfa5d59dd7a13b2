"""hflray.world.fedscale: the availability of FedScale's clients becomes a trace."""

from __future__ import annotations

import json
import pickle
import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.world import fedscale, sumo
from hflray.world.availability import AvailabilityTrace
from hflray.world.mobility import MobilityTrace
from hflray.world.sumo import Unit
from hflray.world.trace import Trace
from tests.conftest import cases, refusals, says

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
    assert fedscale.convert(tmp_path / "clients.json", target) == (2, 100.0)
    assert target.read_text(encoding="utf-8").splitlines() == LINES
    (tmp_path / "clients.csv").write_text(
        "client,active_s,inactive_s\n7,10,20\n7,50,60\n9,0,30\n9,80,100\n", encoding="utf-8"
    )
    assert fedscale.convert(tmp_path / "clients.csv", target) == (2, 100.0)
    assert target.read_text(encoding="utf-8").splitlines() == LINES
    part = AvailabilityTrace(num_devices=2, seed=0, path=str(target), repeat_s=101)
    part.advance(55)
    assert part.available(1, 55).tolist() == [True, False]
    assert fedscale.convert(tmp_path / "clients.json", target, devices=1)[0] == 1


def test_long_times_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("client,active_s,inactive_s\n7,1234567,1234568.5\n", encoding="utf-8")
    assert fedscale.convert(tmp_path / "a.csv", tmp_path / "trace.csv") == (1, 1234568.5)
    assert (tmp_path / "trace.csv").read_text(encoding="utf-8").splitlines()[2:] == ["1234567,0,1", "1234568.5,0,0"]


def test_the_script_of_the_example_reads_a_pickle(tmp_path: Path, monkeypatch) -> None:
    source, target = tmp_path / "trace", tmp_path / "clients.json"
    source.write_bytes(pickle.dumps(CLIENTS))
    monkeypatch.setattr("sys.argv", ["fedscale_pickle.py", str(source), str(target)])
    example = Path(__file__).parents[2] / "examples" / "fedscale_pickle.py"
    runpy.run_path(str(example), run_name="__main__")
    assert fedscale.convert(target, tmp_path / "trace.csv") == (2, 100.0)
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
    assert fedscale.convert(tmp_path / "clients.json", target) == (3, 300.0)
    assert [_share_on(target, device, 300.0) for device in range(3)] == pytest.approx([0.3, 0.2, 80 / 300])
    part = AvailabilityTrace(num_devices=3, seed=0, path=str(target), repeat_s=300.001)
    seen = []
    for clock_s in (10.0, 50.0, 110.0, 150.0, 210.0, 310.1):
        part.advance(clock_s)
        seen.append(bool(part.available(1, clock_s)[0]))
    assert seen == [True, False, True, False, True, True]


@pytest.mark.parametrize("client, spells", cases("world/clients"))
def test_a_client_may_begin_and_end_available(tmp_path: Path, client: dict[str, Any], spells: list[Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"x": {**client, "finish_time": 100}}), encoding="utf-8")
    assert fedscale.convert(tmp_path / "a.json", tmp_path / "trace.csv") == (1, 100.0)
    lines = (tmp_path / "trace.csv").read_text(encoding="utf-8").splitlines()[2:]
    assert lines == [line for on, off in spells for line in (f"{on},0,1", f"{off},0,0")]


NESTED = ("a.json", "[" * 100_000, "nested too deeply")
GOOD = '"1": {"active": [1], "inactive": [2], "finish_time": 9}'


@pytest.mark.parametrize("name, text, reason", [*refusals("world/fedscale"), NESTED])
def test_another_file_is_one_line_and_exit_code_2(tmp_path: Path, capsys, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text.replace("GOOD", GOOD), encoding="utf-8")
    assert fedscale.main([str(tmp_path / name), str(tmp_path / "trace.csv")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says(error, name, reason)
    assert not (tmp_path / "trace.csv").exists()


# hflray.world.sumo: floating-car data become a trace.


FCD = """<?xml version="1.0"?>
<fcd-export>
  <timestep time="0.00"><vehicle id="b" x="100.5" y="20" speed="3"/></timestep>
  <timestep time="1.00"><vehicle id="b" x="103.5" y="20"/><person id="a" x="90.5" y="60"/></timestep>
  <timestep time="2.00"><vehicle id="c" x="110.5" y="20"/></timestep>
</fcd-export>
"""


def test_vehicles_become_devices(tmp_path: Path) -> None:
    source, target = tmp_path / "fcd.xml", tmp_path / "trace.csv"
    source.write_text(FCD, encoding="utf-8")
    assert sumo.convert(source, target) == (3, 40.0)
    lines = target.read_text(encoding="utf-8").splitlines()
    assert lines == [
        "time_s,device,x_m,y_m", "0,0,10.000,0.000", "1,0,13.000,0.000", "1,1,0.000,40.000", "2,2,20.000,0.000",
    ]  # fmt: skip
    Trace.read("x", str(target), "device", 3, {"x_m": False, "y_m": False})
    assert sumo.convert(source, target, devices=1)[0] == 1
    assert len(target.read_text(encoding="utf-8").splitlines()) == 3


def test_long_times_are_kept_and_the_area_holds_every_place(tmp_path: Path, capsys) -> None:
    source, target = tmp_path / "fcd.xml", tmp_path / "trace.csv"
    places = '<vehicle id="a" x="0" y="0"/><vehicle id="b" x="1234.54" y="7"/>'
    source.write_text(f'<a><timestep time="1234567.25">{places}</timestep></a>', encoding="utf-8")
    assert sumo.main([str(source), str(target)]) == 0
    assert target.read_text(encoding="utf-8").splitlines()[2] == "1234567.25,1,1234.540,7.000"
    area_m = 1000 * float(capsys.readouterr().out.rpartition(" ")[2])
    assert 1234.54 < area_m < 1234.7
    MobilityTrace(seed=0, position_m=np.zeros((2, 2)), area_m=area_m, slot_s=1.0, path=str(target))


def _degrees(corner: tuple[float, float]) -> str:
    x, y = corner
    places = f'<vehicle id="a" x="{x}" y="{y}"/><vehicle id="b" x="{x + 0.01}" y="{y + 0.01}"/>'
    return f'<a><timestep time="0">{places}</timestep></a>'


@pytest.mark.parametrize("corner, east_m", [((8.5, 60.0), 555.8), ((-73.98, 0.0), 1111.9), ((116.3, -60.01), 555.8)])
def test_degrees_become_metres(tmp_path: Path, corner: tuple[float, float], east_m: float) -> None:
    """0.01° of latitude are 1,111.9 m everywhere, and 0.01° of longitude half of that at latitude 60°."""
    source, target = tmp_path / "fcd.xml", tmp_path / "trace.csv"
    source.write_text(_degrees(corner), encoding="utf-8")
    for unit in (Unit.AUTO, Unit.DEGREES):
        assert sumo.convert(source, target, unit=unit) == (2, pytest.approx(1111.95, abs=0.05))
        *_, x_m, y_m = map(float, target.read_text(encoding="utf-8").splitlines()[2].split(","))
        assert (x_m, y_m) == (pytest.approx(east_m, abs=0.2), pytest.approx(1111.95, abs=0.05))
    assert sumo.convert(source, target, unit=Unit.METRES)[1] == pytest.approx(0.01)


def test_the_head_of_a_file_says_degrees(tmp_path: Path) -> None:
    """A map of several degrees would otherwise be one of several metres."""
    head = '<?xml version="1.0"?>\n<!-- generated by SUMO\n<output><fcd-output.geo value="true"/></output>\n-->\n'
    places = '<vehicle id="a" x="8" y="50"/><vehicle id="b" x="8" y="52"/>'
    text = f'<a><timestep time="0">{places}</timestep></a>'
    (tmp_path / "fcd.xml").write_text(head + text, encoding="utf-8")
    assert sumo.convert(tmp_path / "fcd.xml", tmp_path / "trace.csv")[1] == pytest.approx(222_389.9, abs=0.1)
    (tmp_path / "fcd.xml").write_text(text, encoding="utf-8")
    assert sumo.convert(tmp_path / "fcd.xml", tmp_path / "trace.csv")[1] == 2.0


@pytest.mark.parametrize("text, reason", refusals("world/sumo"))
def test_another_file_is_one_line_and_exit_code_2_of_sumo(tmp_path: Path, capsys, text: str, reason: str) -> None:
    (tmp_path / "fcd.xml").write_text(text, encoding="utf-8")
    assert sumo.main([str(tmp_path / "fcd.xml"), str(tmp_path / "trace.csv")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says(error, "fcd.xml: ", reason, "give a file of --fcd-output")


def test_metres_are_no_degrees(tmp_path: Path) -> None:
    (tmp_path / "far.xml").write_text(FCD.replace('y="60"', 'y="99"'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"x lies between 90\.5 and 110\.5.*leave --unit degrees out"):
        sumo.convert(tmp_path / "far.xml", tmp_path / "trace.csv", unit=Unit.DEGREES)
