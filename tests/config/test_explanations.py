"""The list of settings in the documentation is complete, and each numeric setting has a unit."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hflray.config import ExperimentConfig, flatten
from hflray.config.explanations import sections
from hflray.errors import ConfigError
from hflray.sweep import Axis, EarlyStoppingConfig, PopulationConfig, SearchConfig, TuneConfig
from tests.conftest import cases

PAGES = Path(__file__).parents[2] / "docs" / "_ext" / "pages.py"
spec = importlib.util.spec_from_file_location("pages", PAGES)
assert spec is not None
assert spec.loader is not None
pages: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)
SUFFIXES, settings, unit_of = pages.SUFFIXES, pages.settings, pages.unit_of


def everything() -> list[Any]:
    rows = list(settings(ExperimentConfig))
    for key, section in sections(ExperimentConfig):
        rows += settings(section, f"{key}.")
    for prefix, section in (
        ("tune.", TuneConfig),
        ("tune.search.", SearchConfig),
        ("tune.early_stopping.", EarlyStoppingConfig),
        ("tune.population.", PopulationConfig),
        ("sweep.KEY.", Axis),
    ):
        rows += settings(section, prefix)
    return rows


def test_every_key_of_a_written_configuration_is_listed():
    """`flatten` leaves out an empty mapping, so that `options` are not among the written keys."""
    listed = [row.key for row in everything()]
    assert len(listed) == len(set(listed))
    written = flatten(ExperimentConfig().model_dump(mode="json"))
    assert len(written) > 90
    assert set(written) <= set(listed)


def test_every_setting_has_a_meaning():
    assert [row.key for row in everything() if not row.meaning] == []


def test_the_defaults_are_yaml_of_the_written_configuration():
    written = flatten(ExperimentConfig().model_dump(mode="json"))
    rows = {row.key: row.default for row in everything()}
    assert {key: yaml.safe_load(rows[key]) for key in written if "e-" not in rows[key]} == {
        key: value for key, value in written.items() if "e-" not in rows[key]
    }


@pytest.mark.parametrize("key, unit", cases("config/units"))
def test_units(key, unit):
    assert {row.key: row.unit for row in everything()}[key] == unit


def test_the_endings_are_those_of_the_designs_vocabulary():
    design = (Path(__file__).parents[2] / "docs" / "design.md").read_text(encoding="utf-8")
    table = design.partition("| suffix | unit |")[2].partition("\n\n")[0]
    assert set(SUFFIXES) <= set(re.findall(r"`(_\w+)`", table))


def test_a_number_without_a_unit_is_refused():
    with pytest.raises(ConfigError, match=r"fleet.mass: has no unit; end its name in one, or add it to UNITS"):
        unit_of("fleet.mass", "a number above 0")
