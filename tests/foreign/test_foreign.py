"""Files of strangers: every reader reads them or refuses them in a line, and nothing exhausts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.foreign import attacks, samples
from tests.foreign.cases import KINDS, Ended, _assigner, _data, _loads, _scheduler, _swept, run
from tests.foreign.samples import FOLDER, NAME
from tests.inputs.harness import limits

COMMAND = [sys.executable, "-m", "hflray"]
MOST_BYTES, WITHIN_S = 10**9, 60


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every format, which no test changes."""
    root = tmp_path_factory.mktemp("foreign") / "samples"
    samples.make(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def defects(whole: Path, work: Path, count: int, seed: int) -> list[str]:
    found = []
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        what, ended = run(whole, work, kind, seed + number // len(KINDS))
        if ended.outcome == "defect":
            found.append(f"{kind} {seed + number // len(KINDS)}: {what}: {ended.reason}")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_read(whole: Path, tmp_path: Path, kind: str) -> None:
    ended = [run(whole, tmp_path / "work", kind, seed, mutates=False)[1] for seed in range(2)]
    assert {(each.outcome, each.code) for each in ended} == {("read", 0)}, ended


@pytest.mark.parametrize("seed", [0, 1000])
def test_mutated_files(whole: Path, tmp_path: Path, seed: int) -> None:
    assert defects(whole, tmp_path / "work", 2 * len(KINDS), seed) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_5000_mutated_files(whole: Path, tmp_path: Path) -> None:
    assert defects(whole, tmp_path / "work", 5000, 5000) == []


def called(*words: str) -> tuple[int, str]:
    """Return the exit code of the command in this process, and what it printed on stderr; without Ray and MLflow."""
    from hflray.command.cli import app
    from hflray.support.terminal.app import exit_code

    with (
        mock.patch("hflray.tune.driver.run_sweep", _swept),
        mock.patch("hflray.tracking.tracker.SINKS", ("csv",)),
        mock.patch("hflray.command.report._draw", return_value=[]),
        limits(),
    ):
        return exit_code(app, list(words), "hflray")  # type: ignore[return-value]


def lines(captured: Any) -> list[str]:
    return [line for line in captured.err.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("attack", attacks.EXPORT)
def test_an_export_that_attacks(root: Path, attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    attacks.EXPORT[attack](root)
    part = "older" if "older" in attack else "exports"
    code = called("report", "show", NAME, "--from", str(root / part), "--out", str(root / "out"))
    assert code == 2
    assert len(lines(capsys.readouterr())) == 1


@pytest.mark.parametrize("attack", attacks.RESULTS)
@pytest.mark.parametrize(
    "command", ["report", "sync", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resume", "explain"))]
)
def test_a_results_folder_that_attacks(
    root: Path, attack: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attacks.RESULTS[attack](root)
    results, folder = root / "results", root / "results" / FOLDER
    words = {
        "report": ("report", "show", FOLDER, "--results", str(results), "--out", str(root / "out")),
        "explain": ("explain", "digits-H6-λ1-ikc-geographic-s0", "--round", "1", "--results", str(results)),
        "sync": ("sync", str(folder)),
        "resume": ("tune", "--resume", FOLDER, "--results", str(results)),
    }[command]
    code = called(*words)
    errors = lines(capsys.readouterr())
    assert code in (0, 1) or (code == 2 and errors)
    if "sweep.json" in attack:
        assert code == 2
    if command in ("sync", "resume") and ("link" in attack or "pipe" in attack):
        assert code == 2  # nothing is written through it


@pytest.mark.parametrize("attack", attacks.POLICY)
def test_a_policy_or_a_data_set_that_attacks(root: Path, attack: str) -> None:
    attacks.POLICY[attack](root)
    with limits():
        assert _loads(_data if "data" in attack else _assigner)(root / "files", None) == 2  # type: ignore[arg-type]


def test_a_policy_of_a_huge_network(root: Path) -> None:
    from tests.foreign.mutations import with_head

    path = root / "files" / "assigner.safetensors"
    with_head(path, lambda head: head["spec"].update(hidden=60_000, width=60_000))
    with limits():
        assert _loads(_assigner)(root / "files", None) == 2  # type: ignore[arg-type]
    with_head(root / "files" / "scheduler.safetensors", lambda head: head["spec"].update(width=90_000))
    with limits():
        assert _loads(_scheduler)(root / "files", None) == 2  # type: ignore[arg-type]


def test_a_policy_computes_with_the_same_bits(whole: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from hflray.assignment.policy import SHIPPED, load_policy

    network, _ = load_policy(SHIPPED)
    saved = load_file(SHIPPED)
    assert all(torch.equal(saved[name], tensor) for name, tensor in network.state_dict().items())
    assert {tensor.device.type for tensor in network.state_dict().values()} == {"cpu"}


@pytest.mark.parametrize("link", ["report", "journal", "csv"])
def test_nothing_is_written_through_a_link(root: Path, link: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder, elsewhere = root / "results" / FOLDER, root / "elsewhere"
    if (folder / link).exists():
        shutil.move(folder / link, elsewhere)
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "index.html").write_text("mine")
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    (folder / link).symlink_to(elsewhere)
    codes = [
        called("report", "show", FOLDER, "--results", str(root / "results")),
        called("sync", str(folder)),
        called("tune", "--resume", FOLDER, "--results", str(root / "results")),
    ]
    assert codes[1:] == [2, 2]
    assert codes[0] == (0 if link == "csv" else 2)
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_a_link_to_the_results_is_the_users_own(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "mine").symlink_to(root / "results")
    assert called("report", "show", FOLDER, "--results", str(root / "mine")) == 0
    assert (root / "results" / FOLDER / "report" / "index.html").is_file()
    (root / "link").symlink_to(root / "results" / FOLDER)
    assert called("sync", str(root / "link"), "--tracking-uri", "sqlite:///x.db") == 0
    (root / "to_exports").symlink_to(root / "exports")
    assert called("report", "show", NAME, "--from", str(root / "to_exports"), "--out", str(root / "out")) == 0


@contextmanager
def _watched(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most memory, in bytes, that a process has had, as `/proc` says it."""
    most = [0]

    def watch() -> None:
        while process.poll() is None:
            try:
                text = Path(f"/proc/{process.pid}/status").read_text()
                most[0] = max(most[0], int(text.partition("VmHWM:")[2].split()[0]) * 1024)
            except (OSError, IndexError, ValueError):
                pass
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    yield lambda: most[0]
    thread.join()


SEPARATE = {"a ZIP bomb", "a table of many rows", "a table of long texts", "nested JSON in an export"}


@pytest.mark.parametrize(
    "attack", [name if name in SEPARATE else pytest.param(name, marks=pytest.mark.slow) for name in attacks.EXPORT]
)
def test_a_process_stays_below_a_gigabyte(root: Path, attack: str) -> None:
    attacks.EXPORT[attack](root)
    part = "older" if "older" in attack else "exports"
    words = ["report", "show", NAME, "--from", str(root / part), "--out", str(root / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    with _watched(process) as most:
        _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 2, err
    assert err.startswith(b"error: ")
    assert err.count(b"\n") == 1
    assert 0 < most() < MOST_BYTES


def test_an_ending_is_a_defect_if_a_reader_breaks(whole: Path, tmp_path: Path) -> None:
    with mock.patch("hflray.data.npz.read_arrays", side_effect=KeyError("x")):
        what, ended = run(whole, tmp_path / "work", "data set", 0)
    assert isinstance(ended, Ended)
    assert (ended.outcome, what != "") == ("defect", True)
    with mock.patch("hflray.data.npz.read_arrays", side_effect=lambda path: print("\x1b]52;c;x\x07")):
        assert run(whole, tmp_path / "work", "data set", 0)[1].reason == "prints '\\x1b'"
