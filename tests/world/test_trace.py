"""hflray.world.trace: files are checked whole, and traces drive availability, mobility and edges."""

from __future__ import annotations

import copy
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hflray import metrics, registry
from hflray.config import EdgeFailureConfig
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.fleet import Fleet, FleetConfig
from hflray.sweep import load_sweep, with_absolute_paths
from hflray.world.fading import LinkTrace
from hflray.world.faults import edge_failure
from hflray.world.trace import Switches
from tests.conftest import refusals, small_config
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
    # At the beginning of each lap a device is there until its first line, as in the first one.
    path = written(tmp_path, "time_s,device,available", "5,1,0", "8,1,1", "10,0,0")
    part, seen = availability(path, 2, repeat_s=20.0), []
    for clock_s in (0.0, 6.0, 12.0, 20.0, 26.0, 32.0, 71.0):
        part.advance(clock_s)
        seen.append(part.available(1, clock_s).tolist())
    assert seen == [*[[True, True], [True, False], [False, True]] * 2, [False, True]]
    assert availability(written(tmp_path, "time_s,device,available", "6,0,0"), 1, repeat_s=10).available(1, 0.0).all()
    with pytest.raises(ConfigError, match="nobody is available"):
        availability(written(tmp_path, "time_s,device,available", "0,0,0"), 1, repeat_s=10)


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


def test_an_edge_that_is_turned_off_and_on_at_the_same_time_does_not_fail(tmp_path: Path) -> None:
    path = written(tmp_path, "time_s,edge,up", "4,0,0", "4,1,0", "4,0,1", "6,0,1", "6,0,0")
    edges = edge_failure(EdgeFailureConfig(trace=path), 3, 0)
    assert edges is not None
    assert edges.next_off_s(0.0).tolist() == [6, 4, np.inf]
    edges.advance(4.0)
    assert edges.up.tolist() == [True, False, True]
    edges.advance(6.0)
    assert edges.up.tolist() == [False, False, True]


LONG = ["time_s,device,available", "1,1,1", f"2,{'9' * 5000},1"], r"row 3, column device: got '9{60}', which no dev"


@pytest.mark.parametrize("lines, message", [*refusals("world/trace"), LONG])
def test_a_wrong_line_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^world\.availability\.options\.path: .*" + message) as error:
        availability(written(tmp_path, *lines))
    assert "\n" not in str(error.value)


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a trace with one random change: of a byte, of a cell or of a line."""
    lines = content.split(b"\n")
    line, place = int(rng.integers(len(lines))), int(rng.integers(len(content)))
    cells = lines[line].split(b",")
    cell, text = int(rng.integers(len(cells))), bytes(rng.choice(TEXTS))
    byte = bytes([int(rng.integers(256))])
    other = [*lines[:line], b",".join([*cells[:cell], text, *cells[cell + 1 :]]), *lines[line + 1 :]]
    end = int(rng.integers(len(lines)))
    changes = (
        content[:place] + byte + content[place + 1 :], content[:place] + byte + content[place:],
        content[:place] + content[place + 1 :], content[:place], b"\n".join(other),
        b"\n".join([*lines[:line], b",".join([*cells[:cell], *cells[cell + 1 :]]), *lines[line + 1 :]]),
        b"\n".join([*lines[:line], *lines[end:], *lines[line:end]]),
    )  # fmt: skip
    return changes[int(rng.integers(len(changes)))]


TEXTS = np.array(
    [b"", b"-1", b"1e400", b"nan", b"inf", b"0x1", b"1_0", b'"', b"99999999999999999999", b"\xd9\xa3", b"\x00", b" 1 "],
    dtype=object,
)
FILES: dict[str, Callable[[str], Any]] = {
    "availability.csv": lambda path: availability(path, 10),
    "mobility.csv": lambda path: registry.build(
        "mobility", "trace", seed=0, position_m=np.zeros((10, 2)), area_m=1000.0, slot_s=1.0, path=path
    ),
    "two_of_five_edges.csv": lambda path: edge_failure(EdgeFailureConfig(trace=path), 5, 0),
}


@pytest.mark.parametrize("name", list(FILES))
def test_a_mutated_trace_is_valid_or_one_line_that_names_a_line(name: str, tmp_path: Path) -> None:
    rng, content, path = np.random.default_rng(7), (EXAMPLES / name).read_bytes(), tmp_path / name
    FILES[name](str(EXAMPLES / name))
    valid, refused = 0, set[str]()
    for _ in range(150):
        path.write_bytes(mutated(content, rng))
        try:
            part = FILES[name](str(path))
        except ConfigError as error:
            message = str(error)
            assert message.isprintable()
            assert re.search(r", (row|line) \d+[:,] |no row below|after its last line|is empty", message), message
            refused.add(message.partition(": ")[2].partition(": ")[2])
        else:
            valid += 1
            part.advance(50.0)
    assert valid > 5
    assert len(refused) > 10


def test_other_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"options\.path: .*none\.csv cannot be read"):
        availability(str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match=r"options\.path: got 3; accepted: the path of a CSV or Parquet file"):
        availability(3)  # type: ignore[arg-type]
    path = written(tmp_path, "time_s,device,available", "0,0,1", "2,1,0", "6,0,0")
    with pytest.raises(ConfigError, match=r"options\.repeat_s: got 6; accepted: more than 6, the last time"):
        availability(path, repeat_s=6)
    outside = written(tmp_path, "time_s,device,x_m,y_m", "0,0,1,101")
    with pytest.raises(
        ConfigError, match=r"mobility\.options\.path: .*, line 2: y_m is 101; accepted: 0 to 100, the area"
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


# A trace of links: gains and rates at each moment, what decisions know, and one line for each mistake.


FLEET = Fleet.of(
    FleetConfig(num_devices=3, num_edges=2), np.random.default_rng(0), device_names=list("abc"), edge_names=["n", "s"]
)


def trace(tmp_path, text, fleet=FLEET):
    path = tmp_path / "links.csv"
    path.write_text(text)
    return LinkTrace(seed=0, fleet=fleet, path=str(path))


def gains(part):
    devices, edges = np.arange(3)[:, None], np.arange(2)
    return np.asarray(FLEET.gain) * part.factor(1, devices, edges)


def test_a_line_holds_until_the_next_one_of_its_link(tmp_path):
    part = trace(tmp_path, "time_s,device,edge,gain_db\n0,a,n,-90\n5,a,n,-80\n5,b,s,-70\n")
    assert gains(part)[0, 0] == pytest.approx(1e-9)
    assert gains(part)[1, 1] == pytest.approx(FLEET.gain[1, 1])
    part.advance(4.9)
    assert gains(part)[0, 0] == pytest.approx(1e-9)
    later = copy.deepcopy(part)
    later.advance(5.0)
    assert gains(later)[0, 0] == pytest.approx(1e-8)
    assert gains(later)[1, 1] == pytest.approx(1e-7)
    assert gains(part)[0, 0] == pytest.approx(1e-9), "the world before a round does not change"
    again = copy.deepcopy(part)
    again.load_state_dict(later.state_dict())
    again.advance(6.0)
    np.testing.assert_array_equal(gains(again), gains(later))


def test_a_rate_is_that_of_the_whole_bandwidth(tmp_path):
    part = trace(tmp_path, "time_s,device,edge,mbps\n0,c,s,3\n")
    b, p, noise = FLEET.edge_bandwidth_hz[1], FLEET.power_w[2], FLEET.noise_w_per_hz
    assert b * np.log2(1 + gains(part)[2, 1] * p / (noise * b)) == pytest.approx(3e6)


@pytest.mark.parametrize("text, message", refusals("world/link_trace"))
def test_a_mistake_is_one_line(text, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        trace(tmp_path, text)


@pytest.mark.parametrize("known", [False, True])
def test_a_run_pays_what_the_trace_says_and_resumes(known, tmp_path):
    rows = [
        f"{t},{d},{e},{-85 - 5 * ((t // 10 + d + e) % 3)}" for t in (0, 10, 20) for d in range(12) for e in range(3)
    ]
    path = tmp_path / "t.csv"
    path.write_text("time_s,device,edge,gain_db\n" + "\n".join(rows) + "\n")
    settings = [f"world.fading={{name: trace, known: {known}, options: {{path: {path}}}}}", "scheduling.name=fedavg"]
    with Experiment(small_config(*settings)) as whole, Experiment(small_config(*settings)) as part:
        records = list(whole)
        first = part.run_round()
        state = part.state_dict()
        with Experiment(small_config(*settings)) as resumed:
            resumed.load_state_dict(state)
            later = list(resumed)
    assert [r.cost.objective for r in [first, *later]] == [r.cost.objective for r in records]
    upload = records[0].timeline
    assert upload is not None
    with pytest.raises(ConfigError, match=r"coherence_s: got 1 with a trace"):
        Experiment(small_config(settings[0].replace("known: True", "known: False"), "world.fading.coherence_s=1"))


def test_a_trace_has_the_names_of_the_fleet(tmp_path):
    (tmp_path / "d.csv").write_text("device\n2\n0\n1\n")
    (tmp_path / "e.csv").write_text("edge\nn\ns\n")
    away, down = written(tmp_path, "time_s,device,available", "0,2,0"), str(tmp_path / "down.csv")
    Path(down).write_text("time_s,edge,up\n0,s,0\n")
    files = f"{{devices: {tmp_path / 'd.csv'}, edges: {tmp_path / 'e.csv'}}}"
    settings = [f"fleet={{name: table, options: {files}}}", "scheduling={name: fedavg, num_scheduled: 2}"]
    settings += [f"world.availability={{name: trace, options: {{path: {away}}}}}", f"world.edge_failure.trace={down}"]
    experiment = Experiment(small_config(*settings, "scheduling.num_clusters=null"))
    outlook = experiment.world.outlook(1, experiment.scenario.fleet)
    assert outlook.available.tolist() == [False, True, True]
    assert outlook.edges_up.tolist() == [True, False]
    Path(away).write_text("time_s,device,x_m,y_m\n0,3,1,1\n")
    moves = f"world.mobility={{name: trace, options: {{path: {away}}}}}"
    with pytest.raises(ConfigError, match=r"row 2, column device: got '3', which no device is called"):
        Experiment(small_config(*settings[:2], moves, "scheduling.num_clusters=null"))


def test_given_links_and_motion_exclude_each_other(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom hflray import Fleet\n"
        "def make(config, rng):\n"
        "    return Fleet.of(config, rng, gain=np.full((config.num_devices, config.num_edges), 1e-9))\n"
    )
    motion = "world.mobility={name: gauss_markov, options: {speed_m_per_s: 1}}"
    with pytest.raises(ConfigError, match=r"world.mobility.name: got gauss_markov with links whose gains"):
        Experiment(small_config(f"fleet.name={tmp_path / 'mine.py'}:make", motion))
    links = written(tmp_path, "time_s,device,edge,gain_db", "0,0,0,-95")
    with pytest.raises(ConfigError, match=r"world.mobility.name: got gauss_markov with links whose gains"):
        Experiment(small_config(f"world.fading={{name: trace, known: true, options: {{path: {links}}}}}", motion))
