"""The distributions: what they hold, and that every file names the same version."""

from __future__ import annotations

import io
import json
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

import hflray
from tests.release.distributions import BESIDE, ROOT, ReleaseError, Steps, check_contents, packaged

FILES = [
    "hflray/__init__.py",
    "hflray/a.js",
    "tune_configs/one.yaml",
    "tune_configs/RESULTS.md",
    "tests/test_x.py",
    "README.md",
]
HELD = {"hflray/__init__.py", "hflray/a.js", "hflray/tune_configs/one.yaml"}
LICENCES = {"hflray-1.dist-info/licenses/LICENSE", "hflray-1.dist-info/licenses/vendor/LICENSE"}


def distributions(folder: Path, held: set[str], sources: set[str]) -> tuple[Path, Path]:
    wheel, sdist = folder / "hflray-1-py3-none-any.whl", folder / "hflray-1.tar.gz"
    with ZipFile(wheel, "w") as archive:
        for name in held:
            archive.writestr(name, "")
    with tarfile.open(sdist, "w:gz") as archive:
        for name in sources:
            archive.addfile(tarfile.TarInfo(f"hflray-1/{name}"), io.BytesIO())
    return wheel, sdist


def test_a_wheel_has_the_package_and_the_sweep_files() -> None:
    assert packaged(FILES) == HELD


SOURCES = {"hflray/__init__.py", "hflray/a.js", "tune_configs/one.yaml", *BESIDE}


def test_whole_distributions_pass(tmp_path: Path) -> None:
    wheel, sdist = distributions(tmp_path, HELD | LICENCES, SOURCES)
    assert "the wheel has 3 files" in check_contents(wheel, sdist, FILES)


@pytest.mark.parametrize(
    "held, sources, says",
    [
        (HELD - {"hflray/a.js"} | LICENCES, SOURCES, "the wheel lacks .*a.js"),
        (HELD | LICENCES | {"hflray/stray.py"}, SOURCES, "should not have .*stray.py"),
        (HELD | LICENCES, SOURCES - {"tune_configs/one.yaml"}, "the sdist lacks .*one.yaml"),
        (HELD | LICENCES, SOURCES - {"CITATION.cff"}, "the sdist lacks .*CITATION"),
        (HELD, SOURCES, "licences"),
    ],
)
def test_what_lacks_is_named(tmp_path: Path, held: set[str], sources: set[str], says: str) -> None:
    wheel, sdist = distributions(tmp_path, held, sources)
    with pytest.raises(ReleaseError, match=says):
        check_contents(wheel, sdist, FILES)


def test_a_step_that_fails_or_says_nothing_ends_the_release(tmp_path: Path) -> None:
    log = io.StringIO()
    steps = Steps(log)
    assert steps.run("fine", ["echo", "hello"], tmp_path, "hello") == "hello\n"
    with pytest.raises(ReleaseError, match="silent: its output lacks 'hello'"):
        steps.run("silent", ["true"], tmp_path, "hello")
    with pytest.raises(ReleaseError, match="broken: exit status 1"):
        steps.run("broken", ["false"], tmp_path)
    steps.close()
    assert list(steps.seconds) == ["fine", "silent", "broken"]
    assert "hello" in log.getvalue()


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
