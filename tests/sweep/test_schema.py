"""Every shipped sweep file fits the JSON Schema, what hflray refuses does not, and the committed file is current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from docs._ext.schema import sweep_schema, text
from hflray.config import ExperimentConfig, flatten, parse_yaml, to_yaml
from hflray.errors import ConfigError
from hflray.support.shipped import sweep_files
from hflray.sweep import expand, load_sweep
from tests.conftest import cases, refusals

ROOT = Path(__file__).parents[2]
SHIPPED = sweep_files()
MODELINE = "# yaml-language-server: $schema=sweep.schema.json\n"


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    Draft7Validator.check_schema(sweep_schema())
    return Draft7Validator(sweep_schema())


def mistakes(validator: Draft7Validator, tree: Any) -> list[str]:
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(tree)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_fits(validator, path):
    source = path.read_text(encoding="utf-8")
    assert mistakes(validator, parse_yaml(source, path.name)) == []
    assert source.startswith(MODELINE)  # an editor finds the schema beside the file


def test_the_committed_schema_is_current():
    assert (ROOT / "tune_configs" / "sweep.schema.json").read_text(encoding="utf-8") == text(), "run make schema"


def test_the_whole_configuration_fits(validator):
    experiment = parse_yaml(to_yaml(ExperimentConfig()), "defaults")
    assert mistakes(validator, {"experiment": experiment}) == []


def test_every_key_can_be_swept(validator):
    flat = flatten(ExperimentConfig().model_dump(mode="json"))
    sweep = {key: {"grid": [value]} for key, value in flat.items()}
    assert mistakes(validator, {"sweep": sweep}) == []


@pytest.mark.parametrize("source", cases("sweep/fits"))
def test_what_hflray_reads_fits(validator, source):
    assert mistakes(validator, parse_yaml(source, "test")) == []


@pytest.mark.parametrize("source", refusals("sweep/schema"))
def test_a_mistake_does_not_fit_and_hflray_refuses_it_too(validator, source, tmp_path):
    assert mistakes(validator, parse_yaml(source, "test"))
    path = tmp_path / "wrong.yaml"
    path.write_text(source, encoding="utf-8")
    with pytest.raises(ConfigError):
        expand(load_sweep(path))


def test_an_editor_is_offered_meanings_and_names():
    schema = sweep_schema()
    section = schema["$defs"]["SchedulingConfig"]["properties"]
    assert section["num_scheduled"]["description"] == "H, the devices that train in a round"
    assert section["num_scheduled"]["default"] == 50
    assert "ikc" in section["name"]["anyOf"][0]["enum"]
    assert '"title"' not in json.dumps(schema["$defs"])
    assert "prefixItems" not in json.dumps(schema)
