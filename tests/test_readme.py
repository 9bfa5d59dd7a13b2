"""The README and CONTRIBUTING agree with the code: Python blocks run, commands are valid, the glossary is complete."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.specifiers import SpecifierSet

import hflray
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
    edges = {f"edge/<m>/{quantity}" for quantity in ("delay_s", "energy_j", "devices")}
    assert {*metrics.PER_ROUND, *metrics.WITH_A_CLOCK, *metrics.AT_THE_END} | edges <= named


def test_the_glossarys_units_are_the_codes() -> None:
    section = TEXT.partition("## Glossary")[2].partition("\n## ")[0]
    checked = set()
    for names, units in re.findall(r"^\| (`.*?) \| (.*?) \|", section, flags=re.M):
        logged, written = re.findall(r"`([^`]+)`", names), units.split(", ")
        for name, unit in zip(logged, written * len(logged) if len(written) == 1 else written, strict=True):
            if name in metrics.METRICS:
                assert unit == metrics.describe(name).unit, name
                checked.add(name)
    assert checked >= {
        *metrics.PER_ROUND,
        *metrics.WITH_A_CLOCK,
        *metrics.AT_THE_END,
        *metrics.LEARNING,
        metrics.ASSIGNMENT_GAP,
    }


def test_names_are_those_of_the_registry() -> None:
    section = TEXT.partition("**Names.**")[2].partition("\n\n")[0]
    for kind in registry.BUILTIN:
        for name in registry.BUILTIN[kind]:
            assert f"`{name}`" in section, name


def test_ci_runs_the_readmes_test_command() -> None:
    command = re.search(r"<!-- test command -->\n```bash\n(.*?)\n```", TEXT)
    assert command is not None
    assert command[1].endswith("-m pytest")
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "<!-- test command -->" in steps
    # The script creates a new environment before, and the test command is its last step.
    assert (
        steps.rindex("rm -rf .venv")
        < steps.rindex("<!-- test command -->")
        < steps.rindex('bash -euo pipefail -c "$command"')
    )
    assert steps.endswith('bash -euo pipefail -c "$command"\n')


def test_ci_and_make_run_the_same_checks() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = re.findall(r"^(?:lint|type): .*\n((?:\t.*\n)+)", makefile, flags=re.M)
    made = re.findall(r"\$\(VENV\)/bin/(.*)", "".join(recipes))
    listed = re.search(r"^for check in (.*); do$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), flags=re.M)
    assert listed is not None
    assert made == shlex.split(listed[1]) == ["ruff format --check .", "ruff check .", "mypy"]
    assert re.search(r"^check: lint type test ##", makefile, flags=re.M)


def test_the_classifiers_are_the_accepted_python_versions() -> None:
    """`.ci/pythons` runs the versions of the classifiers, which are those that requires-python accepts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    accepted = SpecifierSet(project["requires-python"])
    assert promised == [f"3.{minor}" for minor in range(30) if accepted.contains(f"3.{minor}.0")]
    assert " or ".join(promised) in TEXT
    script = f"{(ROOT / '.ci' / 'pythons').read_text(encoding='utf-8').partition('python_of()')[0]}"
    assert all((ROOT / path).exists() for path in re.findall(r"tests/[\w/.]+", script))


def test_the_names_in_contributing_exist() -> None:
    """Its make targets and files exist, and it names every entry point group of the registry."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z]+)", text))
    assert len(targets) > 5
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    paths = set(re.findall(r"`((?:hflray|tests|docs|cluster|\.ci)/[\w/.]*)`", text)) - {
        "hflray/scheduling/round_robin.py"
    }
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert all(f"`{group}`" in text for group in registry.GROUPS.values())
    assert all(hasattr(hflray, name) for name in re.findall(r"`hflray\.([A-Z]\w+)`", text))
