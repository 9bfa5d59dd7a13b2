"""YAML files and overrides are read, written back, and refused with a message if they are wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hflray.config import ExperimentConfig, FleetConfig, flatten, load_config, parse_yaml, to_yaml, validate
from hflray.errors import ConfigError
from tests.conftest import cases, refusal, refusals
from tests.hostile import BREAKING

ROOT = Path(__file__).parents[2]
SHIPPED = [path for top in ("tune_configs", "cluster", "dashboards") for path in sorted((ROOT / top).rglob("*.y*ml"))]
SHIPPED.remove(ROOT / "cluster" / "aws-account.yaml")  # a CloudFormation template, which uses tags of its own


def write(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_overrides_replace_the_files_values_in_order(tmp_path):
    path = write(tmp_path, "seed: 3\nscheduling: {num_scheduled: 20}\nfleet:\n  # everything commented out\n")
    config = load_config(path, ["scheduling.num_scheduled=30", "scheduling.name=vkc", "scheduling.num_scheduled=40"])
    assert (config.seed, config.scheduling.num_scheduled, config.scheduling.name) == (3, 40, "vkc")
    assert config.fleet == FleetConfig()
    assert load_config(write(tmp_path, "")) == load_config()


@pytest.mark.parametrize("override, key, value", cases("config/overrides"))
def test_override_values_are_yaml(override, key, value):
    found = flatten(load_config(overrides=[override]).model_dump())[key]
    assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["seed=7", "target_accuracy=0.8", "fleet.num_devices=60", "fleet.power_dbm=[3, 9]", "cost.model_kb=448"],
        ["fleet.capacitance=1.25e-28", "data.samples_per_device=[10, 20]", "scheduling.options={a: 1, b: [2, x]}"],
        ["tracking.experiment='1e3'", "data.root='été: #1'", "scheduling.num_clusters=null"],
    ],
)
def test_a_configuration_survives_a_yaml_round_trip(tmp_path, overrides):
    config = load_config(overrides=overrides)
    assert load_config(write(tmp_path, to_yaml(config))) == config


def test_a_sweep_file_gives_its_experiment(tmp_path):
    path = write(
        tmp_path, "name: s\ntask: experiment\nexperiment: {seed: 5}\nsweep: {seed: {grid: [1, 2]}}\ntracking: {}\n"
    )
    assert load_config(path).seed == 5
    assert load_config(path, ["seed=6"]).seed == 6
    assert load_config(write(tmp_path, "name: s\nsweep: {}\n")) == load_config()
    with pytest.raises(ConfigError, match=r"experiment: got \[1\]; accepted: a mapping"):
        load_config(write(tmp_path, "experiment: [1]\n"))
    # A setting beside the sections would be ignored, so it is refused.
    with pytest.raises(
        ConfigError, match=r"max_rounds: got 3 beside the sections of a sweep file.*under 'experiment:'"
    ):
        load_config(write(tmp_path, "experiment: {seed: 5}\nmax_rounds: 3\n"))


def test_yaml_merge_keys_work(tmp_path):
    text = "experiment: {seed: 5, fleet: &base {num_edges: 3, num_devices: 70}}\n"
    tree = parse_yaml(f"{text}other: {{<<: *base, num_edges: 4}}\n", "f")
    assert tree["other"] == {"num_edges": 4, "num_devices": 70}


@pytest.mark.parametrize("text, words", refusals("config/bad_files"))
def test_a_bad_file_gives_one_line(tmp_path, text, words):
    with refusal(ConfigError, *words):
        load_config(write(tmp_path, text))


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot read the configuration .*give the path"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"data: {root: \xe9}\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(path)


def exponents(ours: Any, plain: Any) -> int:
    """Count the numbers that plain YAML reads as texts, such as 1e-3, and assert that all else is the same."""
    if isinstance(ours, dict | list) and type(ours) is type(plain) and len(ours) == len(plain):
        if isinstance(ours, list):
            return sum(exponents(a, b) for a, b in zip(ours, plain, strict=True))
        assert list(ours) == list(plain)
        return sum(exponents(ours[key], plain[key]) for key in ours)
    if isinstance(ours, float) and isinstance(plain, str):
        assert "e" in plain.lower()
        assert float(plain) == ours
        return 1
    assert (type(ours), repr(ours)) == (type(plain), repr(plain))
    return 0


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_shipped_files_are_read_as_plain_yaml_except_for_exponents(path):
    text = path.read_text(encoding="utf-8")
    expected = re.findall(r"\b\d+e[-+]?\d+\b", re.sub("#.*", "", text))
    assert exponents(parse_yaml(text, path.name), yaml.safe_load(text)) == len(expected)


@pytest.mark.parametrize(
    "text, value",
    [
        *((word, True) for word in ("true", "True", "yes", "Yes", "on")),
        *((word, False) for word in ("false", "no", "No", "off")),
        *((word, None) for word in ("null", "~", "")),
        *(("0x1F", 31), ("1_000", 1000), ("1:30", 90), ("190:20:30", 685230)),  # YAML 1.2 differs
        *((word, word) for word in ("0o17", "08", "y", "1e", "e3", "1.2.3")),
        *(("1.5e+6", 1.5e6), (".5", 0.5), ("1.", 1.0), (".inf", float("inf"))),
    ],
)
def test_values_are_those_of_plain_yaml(text, value):
    assert exponents(parse_yaml(text, "f"), value) == 0
    assert exponents(value, yaml.safe_load(text)) == 0


@pytest.mark.parametrize("text", ["1e6", "1e-3", "4E-28", "+1e3", "-.5e3", "1.e3", "1.5e6"])
def test_an_exponent_needs_neither_dot_nor_sign(text):
    assert parse_yaml(text, "f") == float(text)
    assert exponents(parse_yaml(text, "f"), yaml.safe_load(text)) == 1
    assert parse_yaml(f"'{text}'", "f") == text


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text, words",
    [
        *refusals("config/hostile"),
        (LAUGHS, ["line 6", "more than 100,000 values", "aliases", "shorten"]),
        ("a: " + "[" * 60 + "]" * 60, ["nested too deeply", "50 levels"]),
        ("a: " + "[" * 5000 + "]" * 5000, ["nested too deeply"]),
        ("b: &b " + "[" * 30 + "]" * 30 + "\na: " + "[" * 30 + "*b" + "]" * 30, ["nested too deeply"]),
        (f"seed: 1\na: {'9' * 5000}\n", ["digits", "correct it"]),
        ("# comment\n" * 60_000, ["at most 200,000 characters"]),
    ],
)
def test_a_hostile_text_gives_one_short_line(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, text))
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 400
    assert all(word in message for word in ["c.yaml", *words]), message


def test_aliases_and_levels_within_the_limits_are_read():
    tree = parse_yaml(LAUGHS[: LAUGHS.index("f:")], "f")
    assert tree["e"][8][8][8][8] == ["x", "x"]
    assert parse_yaml("[" * 50 + "]" * 50, "f") == parse_yaml("[" * 50 + "]" * 50, "f")
    assert parse_yaml("\ufeffseed: 1\r\n", "f") == {"seed": 1}


@pytest.mark.parametrize("path", ["/dev/zero", "a\0b", "x" * 300])
def test_a_path_that_is_no_file_gives_one_line(path):
    with refusal(ConfigError):
        load_config(path)


@pytest.mark.parametrize("name", BREAKING)
def test_a_name_of_several_lines_is_refused(name):
    for setting in ("root", "name"):
        with pytest.raises(ConfigError, match=rf"^data.{setting}: got .*without line breaks.*remove them$"):
            validate(ExperimentConfig, {"data": {setting: f"{name}.npz"}})
    with refusal(ConfigError):
        validate(ExperimentConfig, {name: 1})
