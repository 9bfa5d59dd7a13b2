"""The distributions: what they hold, and that every file names the same version."""

from __future__ import annotations

import io
import json
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import yaml

import hflray
from tests.release.distributions import ROOT


def distributions(folder: Path, held: set[str], sources: set[str]) -> tuple[Path, Path]:
    wheel, sdist = folder / "hflray-1-py3-none-any.whl", folder / "hflray-1.tar.gz"
    with ZipFile(wheel, "w") as archive:
        for name in held:
            archive.writestr(name, "")
    with tarfile.open(sdist, "w:gz") as archive:
        for name in sources:
            archive.addfile(tarfile.TarInfo(f"hflray-1/{name}"), io.BytesIO())
    return wheel, sdist


def test_every_file_names_the_same_version_and_its_date() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    meta = json.loads((ROOT / "codemeta.json").read_text(encoding="utf-8"))
    assert {project["version"], hflray.__version__, citation["version"], meta["version"]} == {hflray.__version__}
    date = citation["date-released"]
    assert meta["dateModified"] == str(date)
    heading = f"## {hflray.__version__} ({date.day} {date:%B %Y})"
    assert heading in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert citation["license"] == project["license"]
    assert meta["description"] == project["description"]
    assert meta["keywords"][:4] == project["keywords"][:4]
    assert set(citation["keywords"]) <= set(project["keywords"])


def test_this_version_has_left_a_sweep_for_the_next_ones() -> None:
    assert (ROOT / "tests" / "data" / "released" / f"hflray-{hflray.__version__}.zip").exists()
