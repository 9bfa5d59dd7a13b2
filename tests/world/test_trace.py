"""hflray.world.trace: files are checked whole, and traces drive availability, mobility and edges."""

from __future__ import annotations

import copy
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hflray import metrics, registry
from hflray.config import EdgeFailureConfig
from hflray.errors import ConfigError
from hflray.sweep import load_sweep, with_absolute_paths
from hflray.world.edge_failure import edge_failure
from hflray.world.trace import Switches, Trace
from tests.world.living import living, results

EXAMPLES = Path(__file__).parents[2] / "examples" / "traces"


def written(folder: Path, *lines: str) -> str:
    path = folder / "trace.csv"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(path)


def availability(path: str, count: int = 3, **options: Any) -> Any:
    return registry.build("availability", "trace", num_devices=count, seed=0, path=path, **options)


def mobility(path: str, count: int = 3) -> Any:
    start_m = np.full((count, 2), 5.0)
    return registry.build("mobility", "trace", seed=0, position_m=start_m, area_m=100.0, slot_s=1.0, path=path)


def test_devices_come_and_go_as_the_trace_says(tmp_path: Path) -> None:
    path = written(tmp_path, "time_s,device,available", "0,0,0", "5,1,0", "5,0,1", "8,1,true", "9,0,0")
    part, seen = availability(path), []
    for clock_s in (0.0, 4.9, 5.0, 8.0, 9.0, 1000.0):
        part.advance(clock_s)
        seen.append(part.available(1, clock_s).tolist())
    assert seen == [
        [False, True, True], [False, True, True], [True, False, True], [True, True, True], [False, True, True],
        [False, True, True],
    ]  # fmt: skip
    late = availability(path)
    late.advance(8.5)  # the state follows from the trace and the clock
    assert late.available(1, 8.5).tolist() == [True, True, True]


def test_a_trace_may_repeat_itself(tmp_path: Path) -> None:
    path = written(tmp_path, "time_s,device,available", "0,0,1", "6,0,0")
    part, seen = availability(path, 1, repeat_s=10), []
    for clock_s in (0.0, 6.0, 9.9, 10.0, 15.9, 16.0, 47.0, 51.0):
        part.advance(clock_s)
        seen.append(bool(part.available(1, clock_s)[0]))
    assert seen == [True, False, False, True, True, False, False, True]


def test_devices_go_straight_between_the_places_of_a_trace(tmp_path: Path) -> None:
    part = mobility(written(tmp_path, "x_m,time_s,y_m,device", "0,2,10,1", "40,6,10,1", "40,8,50,1"))
    places = {}
    for clock_s in (0.0, 2.0, 3.0, 6.0, 7.5, 20.0):
        part.advance(clock_s)
        places[clock_s] = part.position_m[1].tolist()
        assert part.position_m[[0, 2]].tolist() == [[5, 5], [5, 5]]
    assert places == {0.0: [0, 10], 2.0: [0, 10], 3.0: [10, 10], 6.0: [40, 10], 7.5: [40, 30], 20.0: [40, 50]}


def test_edges_fail_as_a_trace_says(tmp_path: Path) -> None:
    path = written(tmp_path, "time_s,edge,up", "4,1,0", "7,1,1", "9,1,0", "9,0,0", "12,0,1")
    edges = edge_failure(EdgeFailureConfig(trace=path), 2, 0)
    assert isinstance(edges, Switches)
    assert edges.up.tolist() == [True, True]
    assert edges.next_off_s(0.0).tolist() == [9, 4]
    edges.advance(7.0)
    assert edges.up.tolist() == [True, True]
    assert edges.next_off_s(7.0).tolist() == [9, 9]
    edges.advance(9.0)
    assert edges.up.tolist() == [False, False]


@pytest.mark.parametrize(
    "lines, message",
    [
        (["time_s,device,available", "5,0,1", "4,1,0"], r"line 3: time_s is 4 after 5; times run backwards; correct"),
        (["time_s,device,available", "5,3,1"], r"line 2: device 3 does not exist; accepted: 0 to 2; correct the line"),
        (["time_s,device,available", "5,-1,1"], r"line 2: device -1 does not exist"),
        (["time_s,device,available", "", "-5,1,1"], r"line 3: time_s is -5; accepted: at least 0"),
        (["time_s,device,available", "x,1,1"], r"line 2: got 'x'; accepted: a number"),
        (["time_s,device,available", "1,1,2"], r"line 2: got '2'; accepted: 0 or 1"),
        (["time_s,device,available", "1,1"], r"line 2: got 2 cells; accepted: 3"),
        (
            ["time,device,available", "1,1,1"],
            r"line 1: the columns are time,device,available; accepted: time_s,device,",
        ),
        (["time_s,device,available"], r"has no lines below its first"),
        (["time_s,device,available", "0,0,0", "0,1,0", "0,2,0"], r"leaves every device away for ever after its last"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^world\.availability\.options\.path: .*" + message) as error:
        availability(written(tmp_path, *lines))
    assert "\n" not in str(error.value)


def test_other_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"options\.path: .*none\.csv cannot be read"):
        availability(str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match=r"options\.path: got 3; accepted: the path of a CSV file"):
        availability(3)  # type: ignore[arg-type]
    path = written(tmp_path, "time_s,device,available", "0,0,1", "6,0,0")
    with pytest.raises(ConfigError, match=r"options\.repeat_s: got 6; accepted: more than 6, the last time"):
        availability(path, repeat_s=6)
    outside = written(tmp_path, "time_s,device,x_m,y_m", "0,0,1,101")
    with pytest.raises(
        ConfigError, match=r"mobility\.options\.path: .* y_m is 101 at 0 s; accepted: 0 to 100, the area"
    ):
        mobility(outside)
    down = written(tmp_path, "time_s,edge,up", "4,1,0", "7,0,0")
    with pytest.raises(ConfigError, match=r"edge_failure\.trace: .* leaves all 2 edges down for ever after its last"):
        edge_failure(EdgeFailureConfig(trace=down), 2, 0)


def test_the_shipped_traces_are_what_their_script_makes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "make.py"), run_name="__main__")
    for name in ("mobility.csv", "availability.csv"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()


def test_a_run_with_the_shipped_traces_resumes_and_refuses_another_trace(tmp_path: Path) -> None:
    path = tmp_path / "availability.csv"
    path.write_bytes((EXAMPLES / "availability.csv").read_bytes())
    settings = (
        f"world.availability={{name: trace, options: {{path: {path}}}}}",
        f"world.mobility={{name: trace, options: {{path: {EXAMPLES / 'mobility.csv'}}}}}",
        "world.wait_s=100", "fleet.num_devices=10", "max_rounds=3",
    )  # fmt: skip
    expected = results(living(*settings))
    assert expected[0][1][metrics.ROUND_AWAY] > 0  # type: ignore[index]
    first = living(*settings)
    first.run_round()
    state, resumed = first.state_dict(), living(*settings)
    resumed.load_state_dict(state)
    assert results(resumed) == expected[1:]
    path.write_text(path.read_text(encoding="utf-8").replace("0,1,1", "0,1,0"), encoding="utf-8")
    with pytest.raises(ConfigError, match="it was made with another trace than the world has now"):
        living(*settings).load_state_dict(state)


def test_a_trace_is_not_copied() -> None:
    trace = Trace.read("x", str(EXAMPLES / "mobility.csv"), "device", 10, {"x_m": False, "y_m": False})
    assert copy.deepcopy(trace) is trace


def test_paths_of_traces_are_relative_to_the_commands_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = ["world.availability={name: trace, options: {path: a.csv}}",
             "world.mobility={name: trace, options: {path: b.csv}}",
             "world.edge_failure.trace=c.csv"]  # fmt: skip
    file = with_absolute_paths(load_sweep(None, ["name=x", *world]))
    section = file.experiment["world"]
    assert section["availability"]["options"]["path"] == str(tmp_path / "a.csv")
    assert section["mobility"]["options"]["path"] == str(tmp_path / "b.csv")
    assert section["edge_failure"]["trace"] == str(tmp_path / "c.csv")
