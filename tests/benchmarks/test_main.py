"""Running all benchmarks: a failure stops no other benchmark, nothing is measured twice, and slower ratios are named.

The benchmarks in these tests are programs of three lines; only the list of the real ones is checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import _results
from tests.benchmarks._bare import Scaling, scaling, yardstick_s
from tests.benchmarks._results import Results, compare, slug
from tests.conftest import says

FOLDER = Path(__file__).parent
TABLE = {
    "title": "times", "columns": [["row", "", ""]], "rows": [{"row": "a"}], "notes": [], "not_measured": "",
    "facts": {"load": 0.5, "others_cpus": 0.1, "n": 3}, "wall_s": 1.0,
}  # fmt: skip

Make = Callable[..., benchmarks.Benchmark]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a benchmark, which counts its starts, writes tables of ratio 2, and runs `more`."""

    def made(name: str, *said: str, more: str = "", keys: tuple[str, ...] = (), **options: object) -> object:
        script = tmp_path / f"{name}.py"
        lines = [json.dumps(TABLE | {"key": key, "ratios": {"x": 2.0}}) + "\n" for key in said]
        script.write_text(
            "import sys, time\n"
            f"open({str(tmp_path / f'{name}.count')!r}, 'a').write('+')\n"
            f"open(sys.argv[sys.argv.index('--json') + 1], 'w').write({''.join(lines)!r})\n{more}\n"
        )
        return benchmarks.Benchmark(name, (str(script),), keys or said, **options)  # type: ignore[arg-type]

    return made  # type: ignore[return-value]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Simulate a clean commit on a machine with two CPUs that do twice the work of one."""
    monkeypatch.setattr(_results, "git_commit", lambda: "abc")
    monkeypatch.setattr(benchmarks, "available_cpus", lambda: (0, 1))
    monkeypatch.setattr(benchmarks, "scaling", lambda *_: Scaling(100.0, 198.0, 1.98))
    return monkeypatch


def starts(folder: Path, name: str) -> int:
    path = folder / f"{name}.count"
    return len(path.read_text()) if path.exists() else 0


def test_a_failing_benchmark_stops_no_other(make: Make, here: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    some = [
        make("good", "good/a", "good/b"),
        make("half", "half/a", keys=("half/a", "half/b"), more="raise OSError('no disk is left')"),
        make("slow", keys=("slow/a",), more="time.sleep(60)", limit_s=1.0),
        make("silent", keys=("silent/a",)),
        make("other", "other/b", keys=("other/a",)),
        make("last", "last/a"),
    ]
    file = tmp_path / "out" / "cpu.json"
    assert not benchmarks.run(file, benchmarks=some)
    results = Results.read(file)
    said = {key: (table["status"], table["message"]) for key, table in results.tables.items()}
    assert said == {
        "good/a": ("measured", ""),
        "good/b": ("measured", ""),
        "half/a": ("measured", ""),
        "half/b": ("failed", "it ended with code 1: OSError: no disk is left"),
        "slow/a": ("failed", "it had not ended after 1 s"),
        "silent/a": ("failed", "it ended without this table"),
        "other/a": ("failed", "it gave a table 'other/b' that tests/benchmarks/__main__.py does not name"),
        "last/a": ("measured", ""),
    }
    assert results.commit == "abc"
    assert {"cpu", "cores", "memory_gib", "python", "torch", "ray", "numpy"} <= set(results.machine)
    assert results.bare_loops == {"one": 100.0, "two": 198.0, "ratio": 1.98}
    table = results.tables["good/a"]
    assert (table["load"], table["others_cpus"], table["busy"], table["facts"]) == (0.5, 0.1, False, {"n": 3})
    assert table["date"].endswith("Z")
    out = capsys.readouterr().out
    assert "[2/6] half" in out
    assert "half/b: failed: it ended with code 1: OSError: no disk is left" in out
    assert "no disk is left" in (file.with_suffix("") / "half.log").read_text()


def test_a_table_is_measured_once_per_commit(make: Make, here: pytest.MonkeyPatch, tmp_path: Path) -> None:
    some = [make("good", "good/a"), make("bad", keys=("bad/a",), more="sys.exit(3)")]
    file = tmp_path / "cpu.json"

    def run(**options: object) -> tuple[int, int]:
        benchmarks.run(file, benchmarks=some, **options)  # type: ignore[arg-type]
        return starts(tmp_path, "good"), starts(tmp_path, "bad")

    assert run() == (1, 1)
    assert run() == (1, 2)  # a failed benchmark is tried again
    assert run(again=True) == (2, 3)
    assert run(only=["good/a"]) == (2, 3)
    assert run(only=["bad"]) == (2, 4)
    here.setattr(_results, "git_commit", lambda: "def")
    assert run(only=["bad"]) == (2, 5)
    assert set(Results.read(file).tables) == {"bad/a"}  # tables of another commit are dropped
    here.setattr(_results, "git_commit", lambda: "def-dirty")  # the changes of a dirty commit are unknown
    assert run() == (3, 6)
    assert run() == (4, 7)
    with pytest.raises(ValueError, match="names no benchmark; there are good, bad"):
        run(only=["goof"])


@pytest.mark.parametrize("cpus", [(0, 1), (0,)])
def test_parallel_tables_are_not_measured_if_two_loops_do_not_scale(
    make: Make, here: pytest.MonkeyPatch, tmp_path: Path, capsys, cpus: tuple[int, ...]
) -> None:
    here.setattr(benchmarks, "available_cpus", lambda: cpus)
    here.setattr(benchmarks, "scaling", lambda *_: Scaling(100.0, 149.0, 1.49))
    some = [make("one", "one/a", parallel=False), make("two", "two/a", "two/b")]
    assert benchmarks.run(tmp_path / "cpu.json", benchmarks=some)
    tables = Results.read(tmp_path / "cpu.json").tables
    assert [tables[key]["status"] for key in ("one/a", "two/a", "two/b")] == ["measured", *2 * ["not measured"]]
    why = "do 1.49 × the work of one, at least 1.5 × is needed" if len(cpus) == 2 else "there is one CPU"
    assert why in tables["two/b"]["message"]
    assert starts(tmp_path, "two") == 0
    assert f"{why}" in capsys.readouterr().out
    here.setattr(benchmarks, "available_cpus", lambda: (0, 1))
    here.setattr(benchmarks, "scaling", lambda *_: Scaling(100.0, 150.0, 1.5))
    assert benchmarks.run(tmp_path / "cpu.json", benchmarks=some)
    assert Results.read(tmp_path / "cpu.json").tables["two/b"]["status"] == "measured"
    assert starts(tmp_path, "one") == 1


def test_bare_loops_are_measured() -> None:
    cpus = benchmarks.available_cpus()
    found = scaling([cpus[0], cpus[-1]], seconds=0.05, turns=1)
    assert found.one > 0
    assert found.ratio == pytest.approx(found.two / found.one)
    assert Scaling(1.0, 2.0, 1.5).enough
    assert not Scaling(1.0, 2.0, 1.49).enough
    assert 0 < yardstick_s(0.01) < 1


def results(quick: bool = False, cpu: str = "a CPU", **tables: dict[str, float] | str) -> Results:
    """Return results with tables of these ratios; a word is the status of a table without ratios."""
    found = Results("abc", {"cpu": cpu, "cores": 2}, quick)
    for key, ratios in tables.items():
        if isinstance(ratios, str):
            found.without(key, ratios, "a reason")
        else:
            found.measured(TABLE | {"key": key, "ratios": ratios})
    return found


def test_slower_and_missing_ratios_are_named(tmp_path: Path, capsys) -> None:
    old = results(a={"x": 10.0, "y": 2.0, "z": 1.0}, b={"x": 1.0}, c={"x": 1.0}, d="not measured")
    new = results(a={"x": 8.9, "y": 1.81, "w": 1.0}, b="failed", d={"x": 1.0}, e={"x": 3.0})
    found = compare(new, old)
    assert found.slower == ["a: x: 10 × before, 8.9 × now, -11%"]
    facts = [("a: z", "new"), ("a: w", "old"), ("b: failed", "new", "a reason"), ("c: ", "new"),
             ("d: not measured", "old", "a reason"), ("e: ", "old")]  # fmt: skip
    assert all(says(line, *each) for line, each in zip(found.missing, facts, strict=True))
    assert found.compared == 2
    new_file, old_file = tmp_path / "new.json", tmp_path / "old.json"
    new.write(new_file)
    old.write(old_file)
    assert benchmarks.main(["check", "--file", str(new_file), "--against", str(old_file)]) == 1
    output = capsys.readouterr().out
    assert "slower by more than 10 %:\n  a: x: 10 × before" in output
    assert "  c: not in the new file" in output
    assert "2 ratios compared, 1 slower" in output
    new.tables["a"]["ratios"] = {"x": 9.01, "y": 2.5}
    new.tables["a"] |= {"busy": True, "others_cpus": 0.9}
    new.write(new_file)
    assert benchmarks.main(["check", "--file", str(new_file), "--against", str(old_file)]) == 0
    output = capsys.readouterr().out
    assert "a: y: 2 × before, 2.5 × now, +25%" in output
    assert "a: other processes had 0.90 CPUs in the new file" in output


def test_a_check_without_a_common_ratio_fails(tmp_path: Path, capsys) -> None:
    new_file, old_file = tmp_path / "new.json", tmp_path / "old.json"
    arguments = ["check", "--file", str(new_file), "--against", str(old_file)]
    assert benchmarks.main(arguments) == 2
    assert "make bench writes it" in capsys.readouterr().out
    results(a={"x": 1.0}).write(new_file)
    for old, why in (
        (results(a="failed"), "0 ratios compared"),
        (results(cpu="another CPU", a={"x": 1.0}), "the other on another CPU"),
        (results(quick=True, a={"x": 1.0}), "small sizes"),
    ):
        old.write(old_file)
        assert benchmarks.main(arguments) == 2
        assert why in capsys.readouterr().out
    old_file.write_text('{"format": 1}')
    assert benchmarks.main(arguments) == 2
    assert "is not a file of benchmarks" in capsys.readouterr().out


def test_only_a_complete_run_of_full_size_is_kept(tmp_path: Path, capsys) -> None:
    new_file, old_file = tmp_path / "new.json", tmp_path / "kept" / "old.json"
    keys = [key for benchmark in benchmarks.BENCHMARKS for key in benchmark.keys]
    arguments = ["keep", "--file", str(new_file), "--against", str(old_file)]
    for bad in (results(**{key: {} for key in keys[1:]}), results(quick=True, **{key: {} for key in keys})):
        bad.write(new_file)
        assert benchmarks.main(arguments) == 2
        assert not old_file.exists()
    results(**{key: "failed" if key == keys[0] else {} for key in keys}).write(new_file)
    assert benchmarks.main(arguments) == 0
    assert f"{keys[0]}: failed" in capsys.readouterr().out
    assert Results.read(old_file) == Results.read(new_file)


def test_the_list_names_every_benchmark_once() -> None:
    keys = [key for benchmark in benchmarks.BENCHMARKS for key in benchmark.keys]
    names = [benchmark.name for benchmark in benchmarks.BENCHMARKS]
    assert len(set(keys)) == len(keys)
    assert len(set(names)) == len(names)
    scripts = {path.name for path in FOLDER.glob("[a-z]*.py") if not path.name.startswith("test_")}
    assert {benchmark.command[0] for benchmark in benchmarks.BENCHMARKS} == scripts
    assert benchmarks.chosen(["actors", "scale"]) == [b for b in benchmarks.BENCHMARKS if b.name[:2] in ("ac", "sc")]


def test_the_name_of_a_cpu_becomes_a_file_name() -> None:
    assert slug("AMD EPYC, family 26, model 2") == "amd-epyc-family-26-model-2"


@pytest.mark.parametrize("path", sorted((FOLDER / "results").glob("*.json")), ids=lambda path: path.name)
def test_kept_files_are_complete(path: Path) -> None:
    found = Results.read(path)
    assert slug(found.machine["cpu"]) == path.stem
    assert not found.quick
    assert path.stat().st_size < 200_000
