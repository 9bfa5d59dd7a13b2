"""hflray.command.cli: the subcommands, their help without heavy imports, shell completion, and the old modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hflray import __version__
from hflray.command import cli
from hflray.command.cli import COMMANDS, load
from tests.command.calls import caller
from tests.conftest import refusals

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "mlflow", "pandas", "numba", "scipy", "sklearn", "matplotlib", "cvxpy")
MODULES = {
    "tune": "hflray.tune", "report": "hflray.report", "compare": "hflray.compare",
    "nodes": "hflray.tune.nodes",
}  # fmt: skip


call = caller()


def start(*words: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_help_names_every_subcommand_with_its_summary(capsys, monkeypatch) -> None:
    monkeypatch.setattr(cli, "load", lambda name: pytest.fail(f"{name} was imported"))
    code, out, _ = call(capsys, "--help")
    assert code == 0
    squeezed = " ".join(out.split())
    for name, entry in COMMANDS.items():
        assert f"{name} {entry['summary']}" in squeezed
    assert "--install-completion" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_says_what_the_command_says(name: str) -> None:
    """The first words of the command's own help and of its summary in the table are the same."""
    own = load(name).help.split()
    assert own[:2] == COMMANDS[name]["summary"].split()[:2]


@pytest.mark.parametrize(
    "commands, absent",
    [
        (["", "tune", "report", "explain", "data get", "doctor", "new", "finetune"], (*HEAVY, "numpy")),
        ([*COMMANDS], HEAVY),
    ],
    ids=["those that are called first", "all"],
)
def test_help_imports_no_heavy_library(commands: list[str], absent: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom hflray.command.cli import app\nfrom hflray.support.terminal.app import exit_code\n"
        f"codes = [exit_code(app, [*name.split(), '--help'], 'hflray') for name in {commands!r}]\n"
        f"print([name for name in {absent!r} if name in sys.modules], file=sys.stderr)\nsys.exit(sum(codes))"
    )
    done = start("-c", code)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    for name in commands:
        assert f"Usage: {f'hflray {name}'.strip()} [" in done.stdout


@pytest.mark.parametrize("command, module", MODULES.items())
def test_the_module_has_the_options_of_the_command(command: str, module: str, capsys) -> None:
    done = start("-m", module, "--help", COLUMNS="80")
    code, out, _ = call(capsys, command, "--help")
    assert (done.returncode, code) == (0, 0)
    assert done.stdout.startswith(f"Usage: python -m {module} ")
    own, shared = (text.partition("\n\n")[2] for text in (done.stdout, out))
    assert own == shared


@pytest.mark.parametrize("words, line", refusals("command/cli"))
def test_a_mistake_is_one_line(words, line: str, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *words)
    assert code == 2, out
    assert err.count("\n") == 1, err
    assert err.startswith(line)
    assert os.listdir(tmp_path) == []


def test_tune_alone_is_the_quickstart(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "tune", "--dry-run")
    assert (code, err) == (0, "")
    assert "quickstart: 4 trials of task 'experiment'" in out
    assert os.listdir(tmp_path) == []


def complete(words: str) -> list[str]:
    """Return what bash would offer after these words."""
    code = "from hflray.command.cli import app\napp(prog_name='hflray')"
    number = str(len(words.split(" ")) - 1)
    done = start("-c", code, _HFLRAY_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=number)
    return done.stdout.split()


def test_the_shell_completes_commands_and_options() -> None:
    assert complete("hflray t") == ["tune", "train-assigner"]
    assert complete("hflray tune --res") == ["--resume", "--results"]
    assert complete("hflray report explain --ro") == ["--round"]
    assert complete("hflray data ge") == ["get"]


def test_the_module_is_the_command() -> None:
    done = start("-m", "hflray", "--version")
    assert (done.returncode, done.stdout) == (0, f"hflray {__version__}\n")
    done = start("-m", "hflray", "--help")
    assert done.stdout.startswith("Usage: python -m hflray ")
