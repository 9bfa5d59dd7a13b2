"""A fleet that is not drawn alone is made once, and read again bit for bit."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from hflray.config import FleetConfig, validate
from hflray.errors import ConfigError, DamagedError
from hflray.experiment import Experiment
from hflray.experiment.fleets import Fleets, is_stored, key_of, packed, unpacked
from hflray.fleet import Fleet, sample_fleet
from hflray.support.checksum import digest
from tests.conftest import small_config

TABLE = "device,x_m,y_m,battery_j,capacitance\na,0,100,5,1e-28\nb,300,50,6,2e-28\nc,5,5,7,1e-28\n"


def own(**settings):
    config = FleetConfig(num_devices=5, num_edges=2, **settings)
    names = {"device_names": list("vwxyz"), "edge_names": ["n", "s"]}
    return config, Fleet.of(config, np.random.default_rng(0), battery_j=[1.0] * 5, capacitance=[1e-28] * 5, **names)


@pytest.mark.parametrize("settings", [{}, {"dense": False}])
def test_a_fleet_survives_its_file(settings):
    config, fleet = own(**settings)
    again = unpacked(packed(fleet), config)
    for field in dataclasses.fields(Fleet):
        before, after = getattr(fleet, field.name), getattr(again, field.name)
        if field.name in ("links",):
            assert (before is None) == (after is None)
        elif isinstance(before, tuple | bool | float) or before is None:
            assert after == before, field.name
        else:
            np.testing.assert_array_equal(np.asarray(after), np.asarray(before), err_msg=field.name)
    assert packed(again) == packed(fleet)


def test_a_large_fleet_is_small_in_its_file():
    config = FleetConfig(num_devices=20_000, num_edges=300)
    fleet = sample_fleet(config, np.random.default_rng(0))
    content = packed(fleet)
    assert len(content) < 3_000_000
    np.testing.assert_array_equal(unpacked(content, config).gain[[7, 19_999]], fleet.gain[[7, 19_999]])


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: c[:70] + b"x" + c[71:], lambda c: b"", lambda c: c[::-1]]
)
def test_a_damaged_file_is_refused(damage):
    config, fleet = own()
    with pytest.raises(DamagedError, match="a stored fleet"):
        unpacked(damage(packed(fleet)), config)


@pytest.mark.parametrize("dense", [None, False])
def test_a_strangers_file_with_a_right_checksum_is_read_or_refused(dense):
    config, fleet = own(dense=dense)
    body = packed(fleet).partition(b"\n")[2]
    head = 8 + int.from_bytes(body[:8], "little")
    refused = 0
    for seed in range(300):
        rng, mutated = random.Random(seed), bytearray(body)
        for _ in range(rng.randint(1, 4)):
            mutated[rng.randrange(head if rng.random() < 0.8 else len(body))] = rng.randrange(256)
        content = bytes(mutated[: rng.randrange(len(body))] if rng.random() < 0.1 else mutated)
        try:
            unpacked(digest(content).encode() + b"\n" + content, config)
        except DamagedError:
            refused += 1
    assert refused > 250


def test_it_is_made_once_for_each_setting_and_seed(tmp_path):
    (tmp_path / "d.csv").write_text(TABLE)
    settings = [
        f"fleet={{name: table, num_edges: 2, options: {{devices: {tmp_path / 'd.csv'}}}}}",
        "world.battery.capacity_j=1",
        "scheduling={name: fedavg, num_scheduled: 2, num_clusters: null}",
    ]  # fmt: skip
    config, other = small_config(*settings), small_config(*settings, "seed=1")
    assert is_stored(config)
    assert not is_stored(small_config())
    assert key_of(config) == key_of(small_config(*settings, "assignment.name=hfel", "training.learning_rate=0.5"))
    assert key_of(config) != key_of(other)
    made = []

    def make():
        made.append(1)
        return sample_fleet(config.fleet, np.random.default_rng())

    first = Fleets(str(tmp_path)).get(config, make)
    again = Fleets(str(tmp_path)).get(config, make)
    assert len(made) == 1
    np.testing.assert_array_equal(first.gain, again.gain)
    Fleets(str(tmp_path)).get(other, make)
    assert len(list((tmp_path / "fleets").iterdir())) == 2
    elsewhere = Fleets(str(tmp_path / "copy"))
    Fleets(str(tmp_path)).copy(config, elsewhere)
    np.testing.assert_array_equal(elsewhere.get(config, make).gain, first.gain)


@pytest.mark.parametrize("file, setting", [("d", "num_edges=4"), ("d", "area_km=20"), ("e", "num_devices=40")])
def test_what_no_file_says_makes_a_fleet_of_its_own(file, setting, tmp_path):
    (tmp_path / "d.csv").write_text("device,max_cpu_ghz\na,1\nb,2\n")
    (tmp_path / "e.csv").write_text("edge,bandwidth_mhz\nn,1\ns,2\n")
    files = {"d": f"num_edges: 2, options: {{devices: {tmp_path / 'd.csv'}}}"}
    files["e"] = f"num_devices: 10, options: {{edges: {tmp_path / 'e.csv'}}}"
    alone = "scheduling={name: fedavg, num_scheduled: 2, num_clusters: null}"
    config = small_config(f"fleet={{name: table, {files[file]}}}", alone)
    tree = config.model_dump(mode="json")
    name, _, value = setting.partition("=")
    other = validate(type(config), tree | {"fleet": tree["fleet"] | {name: int(value)}})
    assert key_of(config) != key_of(other)


def test_fleets_of_owners_that_differ_in_n_alone_are_refused():
    fleets, data = Fleets(), small_config().data.model_copy(update={"partition": "owners"})
    config = small_config().model_copy(update={"data": data})
    other = config.model_copy(update={"fleet": config.fleet.model_copy(update={"num_devices": 7})})
    fleets.get(config, lambda: sample_fleet(config.fleet, np.random.default_rng(0)))
    with pytest.raises(ConfigError, match=r"fleet.num_devices: got 12 and 7 with data.partition = owners"):
        fleets.get(other, lambda: sample_fleet(other.fleet, np.random.default_rng(0)))


def test_batteries_of_the_table(tmp_path):
    (tmp_path / "d.csv").write_text(TABLE)
    settings = [
        f"fleet={{name: table, num_edges: 2, options: {{devices: {tmp_path / 'd.csv'}}}}}",
        "scheduling={name: fedavg, num_scheduled: 2, num_clusters: null}",
    ]  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"world.battery.capacity_j: got null with a fleet whose devices have batteries"
    ):
        Experiment(small_config(*settings))
    experiment = Experiment(small_config(*settings, "world.battery.capacity_j=1"))
    assert experiment.world.battery.capacity_j.tolist() == [5, 6, 7]
