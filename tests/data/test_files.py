"""Samples from a user's own files: tables, and LEAF's JSON."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from hflray.data import load_dataset
from hflray.errors import HflrayError
from hflray.experiment import Experiment
from tests.conftest import refusal, refusals, small_config

SITES = ("hill", "lake", "mill")


def readings(tmp_path, rows=60, name="readings.csv"):
    """Write a table whose label follows from its first feature, with a third of the rows at each site."""
    rng, lines = np.random.default_rng(0), ["site,temperature,humidity,label"]
    for row in range(rows):
        warm = rng.normal(20, 5)
        lines.append(f"{SITES[row % 3]},{warm:.3f},{rng.uniform(30, 90):.1f},{'hot' if warm > 20 else 'mild'}")
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def load(file, **options):
    return load_dataset("table", options={"file": file, "target": "label"} | options)


def test_text_labels_keep_their_names_and_each_owner_has_test_rows(tmp_path):
    data = load(readings(tmp_path), owner="site")
    assert (data.kind, data.num_classes, data.class_names, data.x_train.shape[1]) == (
        "classification",
        2,
        ("hot", "mild"),
        2,
    )
    assert {owner: int((data.owner == owner).sum()) for owner in SITES} == dict.fromkeys(SITES, 16)
    assert {owner: int((data.test_owner == owner).sum()) for owner in SITES} == dict.fromkeys(SITES, 4)
    again = load(readings(tmp_path, name="other.csv"), owner="site")
    np.testing.assert_array_equal(again.x_train, data.x_train)


def test_an_owner_of_one_row_trains_with_it(tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("site,v,label\n" + "a,1,x\n" + "".join(f"b,{v},{'xy'[v % 2]}\n" for v in range(20)))
    data = load(str(path), owner="site")
    assert (data.owner == "a").sum() == 1
    assert len(data.y_test) == 4


def test_numbers_are_a_regression_and_few_whole_ones_are_classes(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("v,label,y\n" + "".join(f"{v},{v % 3},{v / 7}\n" for v in range(50)))
    classes, numbers = load(str(path), features=["v"]), load(str(path), target="y", features=["v"])
    assert (classes.kind, classes.class_names, numbers.kind) == ("classification", ("0", "1", "2"), "regression")
    assert "label is learned as a classification; data.options.kind says otherwise" in classes.notes[0]
    assert load(str(path), features=["v"], kind="regression").notes == ()


def test_classes_have_one_order_whatever_the_hash_seed_and_one_spelling_of_a_number(tmp_path):
    """Texts that float() reads as NaN cannot be compared, so that their order was that of a set."""
    path = tmp_path / "labels.csv"
    labels = ("NaN", "b", "2", "nan", "10", "1", "nAn", "a", "+nan", "inf")
    path.write_text("v,label\n" + "".join(f"{row},{labels[row % 10]}\n" for row in range(100)))
    assert load(str(path)).class_names == ("1", "2", "10", "+nan", "NaN", "a", "b", "inf", "nAn", "nan")
    path.write_text("v,label\n" + "".join(f"{row},{('1', '0', '1.0')[row % 3]}\n" for row in range(30)))
    for kind in (None, "classification"):
        assert load(str(path), kind=kind).class_names == ("0", "1")


def test_nan_in_a_parquet_file_is_an_empty_cell(tmp_path):
    table = pa.table({"v": range(30), "label": [0.0, 1.0, np.nan] * 10})
    write_table(table, path := tmp_path / "n.parquet")
    with pytest.raises(HflrayError, match=r"n\.parquet, row 3, column label: is empty; accepted"):
        load(str(path))


def test_columns_of_a_parquet_file_that_hold_no_numbers_are_not_lost(tmp_path):
    """The CSV form was refused, and such columns of a Parquet file were left out without a word."""
    table = pa.table({"v": range(30), "open": [True, False, True] * 10, "label": ["a", "b", "c"] * 10})
    write_table(table, path := tmp_path / "n.parquet")
    with pytest.raises(HflrayError, match=r"features: got null, and column 'open' holds bool; accepted: numbers"):
        load(str(path))
    assert load(str(path), features=["v"]).x_train.shape[1:] == (1,)


def sited(tmp_path, devices, unmatched="error"):
    """Return a configuration of a fleet from a table, whose devices hold the readings of the sites of their names."""
    (tmp_path / "devices.csv").write_text(f"device,x_m,y_m\n{devices}")
    options = f"{{file: {readings(tmp_path)}, target: label, owner: site, unmatched: {unmatched}}}"
    return small_config(
        f"fleet={{name: table, num_edges: 2, options: {{devices: {tmp_path / 'devices.csv'}}}}}",
        f"data={{name: table, partition: owners, options: {options}}}",
        "scheduling={name: fedavg, num_scheduled: 2, num_clusters: null}", "model.name=logistic", "max_rounds=1",
    )  # fmt: skip


def test_devices_hold_the_rows_of_their_owners(tmp_path):
    with Experiment(sited(tmp_path, "mill,0,0\nhill,10,10\nlake,20,0\n")) as experiment:
        scenario = experiment.scenario
        assert experiment.config.fleet.num_devices == 3
        for device, name in enumerate(("mill", "hill", "lake")):
            assert set(scenario.dataset.owner[scenario.parts[device]]) == {name}
        assert experiment.devices()["class_names"] == ["hot", "mild"]
        assert experiment.run_round().accuracy > 0


def test_devices_without_rows_and_owners_without_a_device_are_one_line_or_dropped(tmp_path):
    """Of owners that are dropped nothing is trained, scaled or tested."""
    devices = "mill,0,0\nhill,10,10\npond,20,0\n"
    with pytest.raises(HflrayError, match=r"1 of 3 devices of the fleet have no samples, such as 'pond'"):
        Experiment(sited(tmp_path, devices))
    with Experiment(sited(tmp_path, devices, "drop")) as experiment:
        assert experiment.config.fleet.num_devices == 2
        assert experiment.scenario.fleet.device_names == ("mill", "hill")
        notes = " ".join(experiment.scenario.notes)
        assert "1 of 3 devices of the fleet have no samples, such as 'pond'; they are left out" in notes
        dataset = experiment.scenario.dataset
        assert set(dataset.owner) == set(dataset.test_owner) == {"mill", "hill"}
        np.testing.assert_allclose(dataset.x_train.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(dataset.x_train.std(axis=0), 1, atol=1e-6)
        assert [len(part) for part in experiment.scenario.parts] == [16, 16]
        assert experiment.run_round().round == 1


@pytest.mark.parametrize("options, message", refusals("data/files"))
def test_a_mistake_is_one_line(options, message, tmp_path):
    with refusal(HflrayError, message):
        load(readings(tmp_path), **({"owner": "site"} | options))


@pytest.mark.parametrize("cell", ["temperature", "label", "site"])
def test_a_missing_value_is_named_by_row_and_column(cell, tmp_path):
    path = tmp_path / "gap.csv"
    row = {"site": "a", "temperature": "1", "label": "x"} | {cell: ""}
    path.write_text("site,temperature,label\na,1,x\n" + ",".join(row.values()) + "\nb,2,y\n")
    with pytest.raises(HflrayError, match=f"gap.csv, row 3, column {cell}: is empty; accepted"):
        load(str(path), owner="site")


def test_a_file_that_changed_is_refused(tmp_path):
    from hflray.support.pinned import pin

    pinned = pin(readings(tmp_path), keep=False)
    readings(tmp_path, rows=30)
    with pytest.raises(HflrayError, match=r"readings.csv has changed: it has sha256"):
        load(pinned, owner="site")


def test_a_smoke_run_keeps_the_fleet_and_its_data(tmp_path):
    from hflray.sweep import expand, load_sweep, smoke

    (tmp_path / "devices.csv").write_text("device,x_m,y_m\nmill,0,0\nhill,10,10\nlake,20,0\n")
    readings(tmp_path)
    (tmp_path / "own.yaml").write_text(
        "experiment:\n  fleet: {name: table, options: {devices: devices.csv}}\n"
        "  data: {name: table, partition: owners, options: {file: readings.csv, target: label, owner: site}}\n"
        "  scheduling: {name: fedavg, num_scheduled: 3}\n  model: {name: logistic}\n"
        "sweep:\n  data.options.file: {grid: [readings.csv]}\n"
    )
    (trial,) = expand(smoke(load_sweep(tmp_path / "own.yaml")))
    assert (trial.config.fleet.num_devices, trial.config.scheduling.num_scheduled) == (3, 1)
    assert trial.name.endswith("file=readings.csv")
    with pytest.raises(HflrayError, match=r"data.samples_per_device: got \[5, 5\] with data.partition = owners"):
        Experiment(
            trial.config.model_copy(
                update={"data": trial.config.data.model_copy(update={"samples_per_device": (5, 5)})}
            )
        )


def write(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    path.write_text(
        json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})
    )
    return str(path)


def load_leaf(**options):
    return load_dataset("leaf", options=options)


def test_training_and_test_samples_by_user(tmp_path):
    users = {"ann": ([[0.0, 1.0], [1.0, 0.5]], [3, 7]), "bob": ([[0.5, 0.5]], [3])}
    write(tmp_path / "train" / "a.json", users)
    write(tmp_path / "train" / "b.json", {"cy": ([[0.1, 0.2]], [7])})
    test = write(tmp_path / "test.json", {"ann": ([[0.0, 0.9]], [7]), "bob": ([[0.2, 0.2]], [5])})
    data = load_leaf(train=str(tmp_path / "train"), test=test)
    assert data.owner.tolist() == ["ann", "ann", "bob", "cy"]
    assert data.y_train.tolist() == [0, 1, 0, 1]
    assert data.class_names == ("3", "7")
    assert data.test_owner.tolist() == ["ann"]  # class 5 is not trained


def test_femnists_images(tmp_path):
    rng = np.random.default_rng(0)
    users = {f"f{u}": (rng.uniform(size=(10, 784)).tolist(), [0, 1] * 5) for u in range(3)}
    data = load_leaf(train=write(tmp_path / "t.json", users), shape=[28, 28])
    assert (data.x_train.shape, str(data.x_train.dtype)) == ((24, 1, 28, 28), "uint8")
    assert set(data.owner) == set(data.test_owner) == {"f0", "f1", "f2"}


def test_shakespeares_texts(tmp_path):
    users = {"lear": (["abab", "baba", "abba"] * 3, list("aba") * 3), "juliet": (["bbaa"] * 6, list("b") * 6)}
    data = load_leaf(train=write(tmp_path / "t.json", users))
    assert (data.kind, data.num_tokens, data.x_train.shape[1]) == ("next_token", 2, 4)


@pytest.mark.parametrize(
    "content, options, message", [*refusals("data/leaf"), ("[" * 3000, {}, "t.json: is not LEAF's JSON")]
)
def test_a_mistake_in_leafs_json_is_one_line(content, options, message, tmp_path):
    (tmp_path / "t.json").write_text(content)
    with refusal(HflrayError, message):
        load_leaf(train=str(tmp_path / "t.json"), **options)
