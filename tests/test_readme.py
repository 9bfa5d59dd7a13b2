"""The README is kept true: its Python runs, its commands are valid, its glossary is the code's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from hflray import metrics, registry
from hflray.sweep import expand, load_sweep
from hflray.tune import cli

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.M | re.S)


def test_the_notebook_example_runs(capsys) -> None:
    exec(blocks("python")[0], {})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_example_scheduler_runs_through_the_registry(monkeypatch) -> None:
    namespace: dict[str, object] = {"__name__": "readme"}
    exec(blocks("python")[1], namespace)
    monkeypatch.setattr(registry, "resolve", lambda kind, name: namespace["RoundRobin"])
    scheduler = registry.build("scheduler", "round_robin", num_devices=5, num_scheduled=3, clusters=None)
    rng = np.random.default_rng(0)
    assert [scheduler.schedule(rng).tolist() for _ in range(3)] == [[0, 1, 2], [0, 3, 4], [1, 2, 3]]
    other = registry.build("scheduler", "round_robin", num_devices=5, num_scheduled=3, clusters=None)
    other.load_state_dict(scheduler.state_dict())
    assert other.schedule(rng).tolist() == [0, 1, 4]


def test_the_example_sweep_is_valid(tmp_path) -> None:
    (tmp_path / "my_sweep.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    assert len(expand(load_sweep(tmp_path / "my_sweep.yaml"))) == 6


@pytest.mark.parametrize(
    "command", [line.partition("#")[0].split() for line in blocks("bash")[2].splitlines()], ids=" ".join
)
def test_every_command_is_valid(command: list[str], monkeypatch, tmp_path) -> None:
    arguments = [str(ROOT / word) if word.startswith("tune_configs/") else word for word in command[3:]]
    data = (
        [] if "--smoke" in arguments or not any("fashion" in a for a in arguments) else ["--set", "data.name=synthetic"]
    )
    monkeypatch.setattr(sys, "argv", ["hflray.tune", *arguments, *data, "--dry-run"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code


def test_the_glossary_is_complete() -> None:
    named = set(re.findall(r"`([a-z_/<>]+)`", TEXT.partition("## Glossary")[2].partition("\n## ")[0]))
    edges = {f"edge/<m>/{what}" for what in ("delay_s", "energy_j", "devices")}
    assert set(metrics.PER_ROUND) | set(metrics.AT_THE_END) | edges <= named


def test_the_glossarys_units_are_the_codes() -> None:
    section = TEXT.partition("## Glossary")[2].partition("\n## ")[0]
    seen = set()
    for names, units in re.findall(r"^\| (`.*?) \| (.*?) \|", section, flags=re.M):
        logged, written = re.findall(r"`([^`]+)`", names), units.split(", ")
        for name, unit in zip(logged, written * len(logged) if len(written) == 1 else written, strict=True):
            if name in metrics.METRICS:
                assert unit == metrics.describe(name).unit, name
                seen.add(name)
    assert seen >= {*metrics.PER_ROUND, *metrics.AT_THE_END, *metrics.LEARNING, metrics.ASSIGNMENT_GAP}


def test_names_are_those_of_the_registry() -> None:
    section = TEXT.partition("**Names.**")[2].partition("\n\n")[0]
    for kind in registry.BUILTIN:
        for name in registry.BUILTIN[kind]:
            assert f"`{name}`" in section, name


def test_ci_runs_the_readmes_test_command() -> None:
    command = re.search(r"<!-- test command -->\n```bash\n(.*?)\n```", TEXT)
    assert command is not None
    assert command[1].endswith("-m pytest")
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text()
