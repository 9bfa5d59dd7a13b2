"""tests/benchmarks/first_minute.py: the phases in a recorded output, and the table of runs whose times are known."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.benchmarks import first_minute
from tests.benchmarks.first_minute import OWN, PHASES, Run, phase_ends, table

RECORDED = """\
note: digits has 1438 training samples (139 of its rarest class): D_n scaled from 400..700 to 40..71 for 20 devices
starting Ray …
opening MLflow …
digits-H5-λ1-ikc-d3qn-s0: started
digits-H10-λ1-ikc-d3qn-s0: started
digits-H5-λ1-ikc-d3qn-s0: round 1/2, accuracy 55.2%, objective 13.8
digits-H10-λ1-ikc-d3qn-s0: round 1/2, accuracy 65.5%, objective 14.8
digits-H5-λ1-ikc-d3qn-s0: round 2/2, accuracy 66.3%, objective 3.4
digits-H5-λ1-ikc-d3qn-s0: done
1 of 2 done, 1 running, about 22 s left
digits-H10-λ1-ikc-d3qn-s0: round 2/2, accuracy 90.0%, objective 16.0
digits-H10-λ1-ikc-d3qn-s0: done, stopped early: target
2 of 2 done, 0 running
sending the rest to MLflow (Ctrl-C leaves it for later) …
quickstart (91 s)
 digits-H5-λ1-ikc-d3qn-s0          2    66.3%      21.8    19.2      2.6 39
"""
LINES = [(float(second), line) for second, line in enumerate(RECORDED.splitlines(), 1)]  # a line each second

FAKE = """\
import pathlib, os, sys, time
folder = pathlib.Path("hflray_results") / f"quickstart-{os.getpid()}"
folder.mkdir(parents=True)
(folder / "sweep.json").touch()
pathlib.Path("arguments").write_text(" ".join(sys.argv[1:]))
pathlib.Path("environment").write_text(" ".join(sorted(os.environ)))
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print(pathlib.Path(__file__).with_name("output").read_text())
"""


def test_phases_end_at_the_lines_that_show_it() -> None:
    assert phase_ends(LINES) == {"trial": 4.0, "round": 6.0, "rounds": 12.0}
    assert first_minute.last_accuracies(LINES) == {"digits-H5-λ1-ikc-d3qn-s0": 66.3, "digits-H10-λ1-ikc-d3qn-s0": 90.0}


def test_an_output_without_the_end_of_a_phase_is_shown() -> None:
    with pytest.raises(SystemExit, match=r"no line .* matches ': round 1/':\nnote: digits has"):
        phase_ends(LINES[:5])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose command takes 0.3 CPU seconds, then prints the recorded output."""
    package = tmp_path / "tree" / "hflray" / "tune"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE)
    (package / "output").write_text(RECORDED)
    return tmp_path / "tree"


def test_a_run_has_its_own_home_and_its_phases_in_order(tree: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HFLRAY_DATA", "somewhere")
    begin = time.perf_counter()
    runs = first_minute.measure({OWN: tree}, 1, tmp_path, warm=True, overrides=["max_rounds=2"])
    elapsed_s = time.perf_counter() - begin
    assert list(runs) == [(OWN, "cold"), (OWN, "warm")]
    for (run,) in runs.values():
        assert list(run.wall_s) == ["folder", "end", "trial", "round", "rounds"]
        assert 0 < run.wall_s["folder"] <= run.wall_s["end"] <= elapsed_s
        assert 0.3 <= run.wall_s["trial"] <= run.wall_s["round"] <= run.wall_s["rounds"] <= run.wall_s["end"]
        assert 0 < run.cpu_s["end"] <= elapsed_s * (os.cpu_count() or 1)
        assert run.loop_s > 0
    assert not (tmp_path / f"{OWN}-0").exists()
    home = tmp_path / "home"
    first_minute.quickstart(tree, home, ["max_rounds=2"])
    assert (home / "arguments").read_text() == "--set max_rounds=2"
    assert "HFLRAY_DATA" not in (home / "environment").read_text().split()


def test_a_command_that_fails_is_an_error_with_its_output(tree: Path, tmp_path: Path) -> None:
    (tree / "hflray" / "tune" / "__main__.py").write_text("raise OSError('no disk is left')")
    with pytest.raises(SystemExit, match=r"the quickstart failed:\n(?s:.)*OSError: no disk is left"):
        first_minute.quickstart(tree, tmp_path / "home")


def run_of(end_s: float, end_cpu_s: float) -> Run:
    """A run whose phases end at equal distances."""
    parts = {phase: number / len(PHASES) for number, phase in enumerate(PHASES, 1)}
    wall, cpu = ({phase: part * end for phase, part in parts.items()} for end in (end_s, end_cpu_s))
    return Run(wall, cpu, {"a": 66.34, "b": 90.0}, loop_s=0.001)


def test_the_table_compares_with_the_other_tree_at_the_same_caches() -> None:
    runs = {
        (OWN, "cold"): [run_of(50.0, 90.0), run_of(40.0, 100.0)],
        (OWN, "warm"): [run_of(20.0, 30.0)],
        ("main", "cold"): [run_of(80.0, 45.0)],
        ("main", "warm"): [run_of(10.0, 60.0)],
    }
    shown = table(runs, "the quickstart, best of 2")
    assert shown.key == "first minute/phases"
    assert shown.ratios == pytest.approx(
        {
            "cold, until the first round is on the screen, s": 2.0,
            "cold, until the prompt, s": 2.0,
            "warm, until the first round is on the screen, s": 0.5,
            "warm, until the prompt, s": 0.5,
            "cold, until the first round is on the screen, CPU s": 0.5,
            "cold, until the prompt, CPU s": 0.5,
            "warm, until the first round is on the screen, CPU s": 2.0,
            "warm, until the prompt, CPU s": 2.0,
        }
    )
    assert shown.facts["this tree, cold, s, round"] == pytest.approx(24.0)  # of the fastest run
    assert shown.facts["this tree, cold, CPU s, end"] == pytest.approx(90.0)  # of the cheapest run
    *_, last, _, _, _, _, note = shown.text().splitlines()
    assert last.split()[:3] == ["until", "the", "prompt"]
    assert last.split()[3:9] == ["40.0", "20.0", "80.0", "10.0", "2.00", "0.50"]
    assert note == "  ratios: against the other tree"


def test_the_table_compares_with_a_bare_loop_where_there_is_no_other_tree() -> None:
    shown = table({(OWN, "cold"): [run_of(40.0, 100.0)]}, "the quickstart, best of 1")
    assert shown.ratios == pytest.approx(
        {
            "cold, until the first round is on the screen, s": 0.001 / 24,
            "cold, until the prompt, s": 0.001 / 40,
            "cold, until the first round is on the screen, CPU s": 0.001 / 60,
            "cold, until the prompt, CPU s": 0.001 / 100,
        }
    )
    assert shown.text().splitlines()[-2:] == ["  this tree, cold: last accuracies 66.3, 90.0 %",
                                              "  ratios: against a bare loop"]  # fmt: skip
