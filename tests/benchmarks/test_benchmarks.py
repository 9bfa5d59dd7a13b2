"""The benchmarks: one runs and is compared, and all run among the slow tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks._results import Results, compare


def test_a_run_is_stored_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "scaling", lambda *_: {"ratio": 1.98})
    bad = command.Benchmark("bad", "decision:table", ("bad/a",), {"fleets": 0})  # there is no median of nothing
    good = command.BENCHMARKS[[benchmark.name for benchmark in command.BENCHMARKS].index("decision")]
    file = tmp_path / "cpu.json"
    monkeypatch.setattr(command, "BENCHMARKS", (bad, good))
    commands: list[list[str]] = []
    store = command.store

    def stored(benchmark: command.Benchmark, results: Results, words: list[str], log: Path) -> None:
        commands.append(words)
        store(benchmark, results, [*words, "--set", "fleets=0"] if benchmark is bad else words, log)

    monkeypatch.setattr(command, "store", stored)
    assert not command.run(file, quick=True, benchmarks=command.BENCHMARKS)
    assert [words[-2] for words in commands] == ["bad", "decision"]
    found = Results.read(file)
    assert {key: table["status"] for key, table in found.tables.items()} == {
        "bad/a": "failed", "decision/policy": "measured",
    }  # fmt: skip
    assert "names no benchmark" in found.tables["bad/a"]["message"]
    assert command.check(file, file) == 0
    slower = json.loads(file.read_text(encoding="utf-8"))
    ratios = slower["tables"]["decision/policy"]["ratios"]
    name = next(iter(ratios))
    ratios[name] /= 2
    answer = compare(Results(**{key: value for key, value in slower.items() if key != "format"}), found)
    assert (len(answer["slower"]), len(answer["compared"])) == (1, len(ratios))
    assert name in answer["slower"][0]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("benchmark", command.BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_every_benchmark_runs(tmp_path: Path, benchmark: command.Benchmark) -> None:
    file = tmp_path / "cpu.json"
    assert command.run(file, quick=True, only=[benchmark.name]), Results.read(file).tables
