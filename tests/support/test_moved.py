"""hflray.support.moved: a module's former name gives the same module, also to ``python -m``."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from hflray.support.moved import MOVED


@pytest.mark.parametrize("former", MOVED)
def test_a_former_name_is_the_module_of_today(former: str) -> None:
    module = importlib.import_module(MOVED[former])
    spec = module.__spec__
    assert importlib.import_module(former) is module
    assert module.__spec__ is spec
    assert module.__name__ == MOVED[former]


def test_a_class_is_one_under_both_names() -> None:
    from hflray import RoundRecord

    former = importlib.import_module("hflray.record")
    assert former.RoundRecord is RoundRecord


def test_another_missing_module_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"hflray\.recrod"):
        importlib.import_module("hflray.recrod")


def test_a_former_command_runs() -> None:
    process = subprocess.run([sys.executable, "-m", "hflray.compare", "--help"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "Usage:" in process.stdout
