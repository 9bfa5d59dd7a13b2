"""Whole files of every format, made once for all tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.foreign import samples


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
