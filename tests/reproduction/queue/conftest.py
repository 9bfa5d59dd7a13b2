"""Fixtures for the tests of the queue.

Most tests use a small repository with a stand-in for `hflray`: its sweep counts rounds, and its report copies them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hflray.report.exports import content_of, files_of
from hflray.reproduction.queue import command, processes, publishing
from hflray.reproduction.queue import runner as runner_module
from hflray.reproduction.queue.frozen import git
from hflray.reproduction.queue.items import load_items, trials_of
from hflray.reproduction.queue.lock import holder
from hflray.reproduction.queue.processes import end_leftovers
from hflray.reproduction.queue.runner import Runner
from hflray.sweep import load_sweep
from tests.reproduction.queue.test_frozen import commit

ROOT = Path(__file__).parents[3]

SWEEP = """
name: {name}
experiment: {{max_rounds: {rounds}, fleet: {{num_devices: 12}}, scheduling: {{num_scheduled: 4}}}}
"""
LIST = """
items:
  - {exhibit: fig, part: first, file: first}
  - {exhibit: fig, part: second, file: second, set: [seed=1]}
"""
# The stand-in for a sweep makes a round every 0.1 s, starts a helper process, and ends cleanly on SIGTERM. It fails if
# the repository has a file `fail.txt`.
TUNE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
words, root = sys.argv[1:], Path(__file__).parents[2]
results = Path(words[words.index("--results") + 1])
if words[0] == "--resume":
    folder = results / words[1]
else:
    folder = results / f"{Path(words[0]).stem}-20260101-000000"
about = json.loads((root / "about.json").read_text())[folder.name.partition("-")[0]]
if (root / "fail.txt").exists():
    sys.exit("no luck")
journal = folder / "journal" / f"{about['trial']}.jsonl"
journal.parent.mkdir(parents=True, exist_ok=True)
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
helper = subprocess.Popen(["sleep", "600"])
old = journal.read_text().count('"round"') if journal.exists() else 0
def say(**entry):
    with journal.open("a") as file:
        file.write(json.dumps(entry) + "\\n")
def save(finished):
    (folder / "sweep.json").write_text(json.dumps({"finished": finished}))
save(False)
say(start=1, words=words, code=(root / "code.txt").read_text(), nice=os.nice(0), mark=os.environ["HFLRAY_QUEUE_OF"])
for number in range(old + 1, about["rounds"] + 1):
    time.sleep(0.1)
    say(round=number, time=int(1000 * time.time()), metrics={})
    if stopping:
        helper.kill()
        sys.exit(130)
say(end="FINISHED", error=None, time=int(1000 * time.time()))
save(True)
helper.kill()
"""
# The stand-in for a report writes the number of rounds to the export, and the exports' names to RESULTS.md.
REPORT = """
import json, sys
from pathlib import Path
from zipfile import ZipFile
words = sys.argv[1:]
if words[0] == "results":
    paths = sorted(Path(words[words.index("--from") + 1]).glob("*/*.zip"))
    text = "".join(f"{p}: {json.loads(ZipFile(p).read('runs.json'))['rounds']} rounds\\n" for p in paths)
    Path(words[words.index("--out") + 1]).write_text(text)
else:
    (path,) = (Path(words[words.index("--results") + 1]) / words[0] / "journal").glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    status = "FINISHED" if any("end" in line for line in lines) else "RUNNING"
    out = Path(words[words.index("--export") + 1])
    out.mkdir(parents=True)
    count = sum("round" in line for line in lines)
    about = {"name": path.stem, "status": status}
    with ZipFile(out / "name.zip", "w") as file:
        file.writestr("runs.json", json.dumps({"runs": [about], "rounds": count}))
"""


def write_repository(path: Path, **rounds: int) -> None:
    """Write the stand-in repository. The keywords give the number of rounds of each sweep by name."""
    files = {"tune/__main__.py": TUNE, "report/__main__.py": REPORT, "__init__.py": "", "tune/__init__.py": ""}
    for name, text in (files | {"report/__init__.py": ""}).items():
        (path / "hflray" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "hflray" / name).write_text(text)
    (path / "tune_configs" / "queue").mkdir(parents=True)
    (path / "tune_configs" / "queue" / "figures.yaml").write_text(LIST)
    (path / "tune_configs" / "RESULTS.md").write_text("nothing yet\n")
    about = {}
    for name, count in rounds.items():
        sweep = path / "tune_configs" / f"{name}.yaml"
        sweep.write_text(SWEEP.format(name=name, rounds=count))
        overrides = ["seed=1"] if name == "second" else []
        (trial,) = trials_of(load_sweep(sweep, overrides))
        about[name] = {"trial": trial, "rounds": count}
    (path / "about.json").write_text(json.dumps(about))
    (path / "code.txt").write_text("as it was")
    (path / ".gitignore").write_text("__pycache__/\n")


@pytest.fixture
def repository(tmp_path) -> Path:
    path = tmp_path / "repository"
    write_repository(path, first=5, second=3)
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(path))
    commit(path, "the stand-in")
    return path


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    path = tmp_path / "queue"
    path.mkdir()
    yield path
    if (pid := holder(path)) is not None:
        os.kill(pid, signal.SIGKILL)
    end_leftovers(path, 0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(runner_module, "RETRIES_AFTER_S", (0.0, 0.0))
    monkeypatch.setattr(processes, "STEP_S", 0.05)
    monkeypatch.setenv("COLUMNS", "160")
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def runner(folder: Path, repository: Path, **settings: Any) -> Runner:
    items = load_items(repository / command.LIST)
    return Runner(folder, repository, items, python=Path(sys.executable), niceness=0, **settings)


def entries(folder: Path, item: str) -> list[dict[str, Any]]:
    (path,) = (folder / item / "results").glob("*/journal/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def rounds(folder: Path, item: str) -> list[int]:
    paths = (folder / item / "results").glob("*/journal/*.jsonl")
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines(keepends=True) if "\n" in line]
    return [line["round"] for line in lines if "round" in line]


def exported(repository: Path, part: str) -> Any:
    return content_of(files_of(repository / publishing.EXPORTS / "fig" / part))["rounds"]


def wait(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds} s"
        time.sleep(0.05)


@pytest.fixture
def long(repository) -> Path:
    """Return the stand-in repository with a sweep that does not end during a test."""
    about = json.loads((repository / "about.json").read_text())
    about["first"]["rounds"] = 100_000
    (repository / "about.json").write_text(json.dumps(about))
    commit(repository, "a long one")
    return repository
