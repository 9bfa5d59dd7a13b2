"""The README and CONTRIBUTING agree with the code: Python runs, sweeps are valid, and links and names exist."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

import hflray
from hflray import registry
from hflray.sweep import expand, load_sweep
from tests.blocks import LEFT_TO_CI, blocks
from tests.conftest import FIFTHS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_WORDS = 700


def of_language(language: str) -> list[str]:
    return [block.text for block in blocks(TEXT) if block.language == language]


def test_it_is_short() -> None:
    assert len(TEXT.split()) <= MAX_WORDS


def skeleton(path: str) -> tuple[list[int], list[str], list[str]]:
    """Return the levels of a page's headings, its blocks of code, and the targets of its links to other pages."""
    text = (ROOT / path).read_text(encoding="utf-8")
    code = re.findall(r"^```.*?^```", text, flags=re.S | re.M)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"(README|zh|index)", link)]
    return [len(marks) for marks in re.findall(r"^(#+) ", prose, flags=re.M)], code, sorted(links)


def test_the_chinese_pages_have_the_headings_commands_and_links_of_the_english_ones() -> None:
    assert skeleton("README.zh.md") == skeleton("README.md")
    levels, code, links = skeleton("docs/index.md")
    assert skeleton("docs/zh.md") == (levels, [block for block in code if "toctree" not in block], links)


def test_its_counts_are_those_of_the_registry() -> None:
    plurals = {"schedulers": "scheduler", "assigners": "assigner", "rules": "local_rule", "aggregators": "aggregator",
               "compressors": "compressor", "ways": "access"}  # fmt: skip
    said = {noun: int(number) for number, noun in re.findall(rf"(\d+) ({'|'.join(plurals)})", TEXT)}
    assert said == {noun: len(registry.BUILTIN[kind]) for noun, kind in plurals.items()}  # type: ignore[index]


def test_the_loop_runs(capsys) -> None:
    (loop,) = of_language("python")
    exec(loop, {})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_example_sweep_is_valid(tmp_path) -> None:
    (sweep,) = of_language("yaml")
    (tmp_path / "my_sweep.yaml").write_text(sweep, encoding="utf-8")
    assert len(expand(load_sweep(tmp_path / "my_sweep.yaml"))) == 4


def newest_training() -> dict[str, Any]:
    """Return the table ``training/L = 5`` that was measured last, of all types of CPU."""
    files = (ROOT / "tests" / "benchmarks" / "results").glob("*.json")
    tables = [json.loads(file.read_text(encoding="utf-8"))["tables"]["training/L = 5"] for file in files]
    return max(tables, key=lambda table: str(table["date"]))


def test_its_speeds_are_those_of_the_benchmarks() -> None:
    """``make bench-keep`` of a newer run makes this test name the sentences to change."""
    files = (ROOT / "tests" / "benchmarks" / "results").glob("*.json")
    tables = [json.loads(file.read_text(encoding="utf-8"))["tables"] for file in files]
    solved = [made["allocation/one thread"]["ratios"] for made in tables if "allocation/one thread" in made]
    allocation = {f"{each['allocate_round, one edge']:.0f}" for each in solved}
    text = " ".join(TEXT.split())
    assert re.findall(r"ten devices (\d+) times as fast as CVXPY", text)[0] in allocation
    trained = newest_training()["ratios"]["actors (d), of bare2 (b)"]
    assert re.findall(r"two cores train ([\d.]+) times", text) == [f"{trained:.1f}"]


PEERS = {"flower": "Flower", "pfl": "pfl-research"}


def said_of_peers(table: dict[str, Any]) -> str:
    """Return what README says of the peers, given the table ``training/L = 5`` of a run of all benchmarks."""
    ratios = {row["row"].split()[0]: row.get("ratio") for row in table["rows"]}
    if any(ratios.get(name) is None for name in PEERS):
        return "Flower and pfl-research were not measured on this code"
    return f"Flower and pfl-research train {ratios['flower']:.1f} and {ratios['pfl']:.1f} times as many"


def test_its_ratios_of_peers_are_those_of_the_benchmarks() -> None:
    assert said_of_peers(newest_training()) in " ".join(TEXT.split())


def test_ci_runs_the_readmes_test_command() -> None:
    command = re.search(r"<!-- test command -->\n```bash\n(.*?)\n```", TEXT)
    assert command is not None
    assert command[1].endswith("-m pytest")
    assert command[1] == of_language("bash")[1].strip()
    assert [block.text.strip() for block in blocks(TEXT) if block.comment == LEFT_TO_CI] == [command[1]]
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    # The script creates a new environment before, and what follows uses it for the tests that the command leaves out.
    parts = ["rm -rf .venv", "<!-- test command -->", 'bash -euo pipefail -c "$command"']
    parts += ["pytest -m cluster --within", 'pytest -m slow --fifth "$fifth" --within']
    places = [steps.rindex(part) for part in parts]
    assert places == sorted(places)
    assert f"number % {FIFTHS}" in steps


def test_ci_and_make_run_the_same_checks() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = re.findall(r"^(?:lint|type): .*\n((?:\t.*\n)+)", makefile, flags=re.M)
    made = re.findall(r"\$\(VENV\)/bin/(.*)", "".join(recipes))
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    listed = re.search(r"^for check in (.*); do$", steps, flags=re.M)
    assert listed is not None
    checks = ["ruff format --check .", "ruff check .", "lint-imports", "hadolint cluster/Dockerfile", "mypy"]
    assert made == shlex.split(listed[1]) == checks
    assert re.search(r"^check: lint type docs test ##", makefile, flags=re.M)
    assert re.search(r"^make docs$", steps, flags=re.M)  # with the environment of the dev extra
    assert steps.index("done\nmake docs\n") < steps.rindex("rm -rf .venv")


def test_the_container_file_has_the_two_commands() -> None:
    """hadolint reads it in `make lint`; no container engine builds it here."""
    text = (ROOT / "cluster" / "Dockerfile").read_text(encoding="utf-8")
    first, second = of_language("bash")[:2]
    assert json.loads(text.rpartition("CMD ")[2]) == first.strip().rpartition("&& ")[2].split()
    install, tests = second.strip().split(" && ")[1:]
    assert install.removeprefix(".venv/bin/pip install ") in text
    assert tests in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert SpecifierSet(project["requires-python"]).contains(re.findall(r"FROM python:(3\.\d+)", text)[0] + ".0")
    ignored = (ROOT / "cluster" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".venv", "hflray_results", "**/*.npz"} <= set(ignored)


def test_the_classifiers_are_the_accepted_python_versions() -> None:
    """`.ci/pythons` runs the versions of the classifiers, which are those that requires-python accepts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    accepted = SpecifierSet(project["requires-python"])
    assert promised == [f"3.{minor}" for minor in range(30) if accepted.contains(f"3.{minor}.0")]
    for page in ("README.md", "docs/start/install.md", "docs/start/tutorial.md", "CONTRIBUTING.md"):
        assert f"Python {promised[0]} to {promised[-1]}" in (ROOT / page).read_text(encoding="utf-8"), page
    script = f"{(ROOT / '.ci' / 'pythons').read_text(encoding='utf-8').partition('python_of()')[0]}"
    assert all((ROOT / path).exists() for path in re.findall(r"tests/[\w/.]+", script))


def test_the_names_in_contributing_exist() -> None:
    """Its files exist, and it names every entry point group of the registry."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:hflray|tests|docs|cluster|examples|\.ci)/[\w/.]*)`", text)) - {
        "hflray/scheduling/carousel.py"
    }
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert all(f"`{group}`" in text for group in registry.GROUPS.values())
    assert all(hasattr(hflray, name) for name in re.findall(r"`hflray\.([A-Z]\w+)`", text))
