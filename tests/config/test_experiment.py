"""The rules that combine settings, and equality with configurations of an early version."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hflray.config import load_config, to_yaml
from hflray.rl.fleets import FleetSpec
from tests.config.mistake import line_of

# Commit 5eed14e, in which hflray.config was one file, wrote overrides, the pickled configuration and its fleets' hash.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "configs.json").read_text(encoding="utf-8"))


def settings(section: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Return the settings that an object holds by dotted name; its class may have gained settings since."""
    flat: dict[str, Any] = {}
    for name, value in vars(section).items():
        flat |= settings(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {prefix + name: value}
    return flat


@pytest.mark.parametrize("case", GOLDEN)
def test_an_old_configuration_keeps_its_values(case: str) -> None:
    """An old pickle loads, values keep their order, and a cache of fleets keeps its name; new settings are allowed."""
    old = settings(pickle.loads(base64.b64decode(GOLDEN[case]["pickle"])))
    old.pop("training.autotune", None)  # nothing is measured any more
    config = load_config(overrides=GOLDEN[case]["overrides"])
    new = settings(config)
    assert [name for name in new if name in old] == list(old)
    assert {name: new[name] for name in old} == old
    assert {name: type(new[name]) for name in old} == {name: type(value) for name, value in old.items()}
    assert FleetSpec.of(config).hash == GOLDEN[case]["fleets"]
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert to_yaml(again) == to_yaml(config)


def test_settings_that_contradict_each_other_are_refused():
    message = line_of("training.devices_per_actor=2", "training.num_actors=4")
    assert all(w in message for w in ("training", "devices_per_actor = 2", "num_actors = 4", "one of", "remove"))
    assert "fleet.num_devices = 20" in line_of("fleet.num_devices=20")  # the default H is too large
    # FedAvg has no clusters, so it accepts the default K.
    small = ["fleet.num_devices=5", "scheduling.num_scheduled=2"]
    assert load_config(overrides=[*small, "scheduling.name=fedavg"]).scheduling.num_clusters == 10
    assert "10 clusters cannot be made" in line_of(*small)
    assert "'seed' is a value" in line_of("seed=1", "seed.x=2")


def test_a_deployment_has_one_number_of_edges():
    shared = ["learning.architecture=shared", "fleet.deployment_seed=0"]
    message = line_of(*shared, "learning.num_edges=[3, 6]")
    assert all(
        w in message for w in ("learning.num_edges", "[3, 6]", "fleet.deployment_seed = 0", "one number", "null")
    )
    assert load_config(overrides=[*shared, "learning.num_edges=4"]).fleet.deployment_seed == 0
    assert "at least 0, or null" in line_of("fleet.deployment_seed=-1")
