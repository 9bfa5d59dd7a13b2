"""hflray.report.labels: the labels of a run's settings, and the colours of methods."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import hflray
from hflray import metrics
from hflray.assignment.policy import SHIPPED
from hflray.report import charts, labels, series
from hflray.report.labels import (
    COLOURS,
    NAMES,
    colour,
    describe,
    group_by,
    hfel,
    label_apart,
    label_each,
    mark_modified,
    pretty,
)  # fmt: skip
from hflray.report.runs import RunRecord, differing
from hflray.report.tables import summary
from tests.conftest import cases
from tests.report.fabricated import CLEAN, run, sweep

PACKAGE = Path(hflray.__file__).parent


def test_a_method_has_its_label_and_its_colour() -> None:
    assert [pretty(name) for name in ("ikc", "hfel", "d3qn", "somebody_elses")] == [
        "IKC", "HFEL", "D3QN", "somebody_elses",
    ]  # fmt: skip
    assert hfel(300) == "HFEL-300"
    assert {colour("IKC", number) for number in range(9)} == {labels.BLUE}
    assert colour("IKC, H = 10", 1) == COLOURS[1]
    assert colour("local search", 9) == COLOURS[1]


def test_labels_and_colours_of_methods_are_defined_only_in_labels() -> None:
    """No string in another module is the label of a method or a colour of the palette."""
    labels_of = set(NAMES.values()) | {hfel(100), hfel(300)}
    copies = {
        (path.relative_to(PACKAGE).as_posix(), node.value)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "labels.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in labels_of | {*COLOURS}
    }
    assert copies == set()


def test_a_label_leaves_out_settings_without_effect() -> None:
    one = run(
        {metrics.ACCURACY: [0.5]},
        "assignment.name=hfel",
        "assignment.exchanges=100",
        "allocation.coupling=joint",
        "scheduling.num_scheduled=10",
    )
    keys = ["assignment.name", "assignment.exchanges", "allocation.coupling"]
    assert describe(one, keys) == "HFEL-100, joint deadline"
    assert describe(one, ["scheduling.num_scheduled", "cost.delay_weight", "data.dirichlet_alpha"]) == "H = 10, λ = 1"


def test_a_number_has_the_name_of_its_setting() -> None:
    keys = ["training.batch_size", "training.weight_decay", "training.local_iteration", "training.rule.name"]
    one = run({metrics.ACCURACY: [0.5]}, "training.batch_size=16", "training.weight_decay=0.0")
    assert describe(one, keys) == "batch size 16, weight decay 0, one epoch a local iteration, sgd"
    assert describe(one, ["data.train_per_device"]) == "train per device none"


def test_a_schedulers_options_are_named_and_those_that_it_does_not_have_are_left_out() -> None:
    keys = ["scheduling.name", "scheduling.options.max_wait"]
    schedulers = (("ikc", "{}"), ("joint_cost", "{max_wait: 0}"), ("joint_cost", "{max_wait: null}"))
    runs = [
        run({metrics.ACCURACY: [0.5]}, f"scheduling.name={name}", f"scheduling.options={options}")
        for name, options in schedulers
    ]
    assert [describe(one, keys) for one in runs] == ["IKC", "joint_cost, max_wait 0", "joint_cost, max_wait none"]
    assert differing(runs) == keys
    assert differing([runs[2], run({metrics.ACCURACY: [0.5]}, "scheduling.name=joint_cost")]) == keys[1:]


def test_the_label_counts_runs_from_a_modified_checkout() -> None:
    runs = [run({metrics.ACCURACY: [0.5]}, commit=commit) for commit in (CLEAN, f"{CLEAN}-dirty")]
    assert mark_modified("IKC", runs[:1]) == "IKC"
    assert mark_modified("IKC", runs) == "IKC (1 of 2 runs: modified checkout)"
    assert mark_modified("IKC", runs[1:]) == "IKC (modified checkout)"


NET = "class {}:\n    size = {}\n"


def seeds_of(settings: str, seeds: tuple[int, ...] = (0, 1)) -> list[RunRecord]:
    return [run({metrics.ACCURACY: [0.5 + seed / 10]}, settings, f"seed={seed}") for seed in seeds]


def written(folder: Path, name: str, thing: str, size: int) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(NET.format(thing, size))
    return f"{folder / name}:{thing}"


def test_references_of_one_class_name_are_two_groups_everywhere(tmp_path) -> None:
    names = [written(tmp_path, "v1.py", "Net", 1), written(tmp_path, "v2.py", "Net", 2), "mlp"]
    runs = [one for name in names for one in seeds_of(f"model.name={name}")]
    of = sweep("twins", runs)
    assert {label: len(group) for label, group in of.groups().items()} == {"v1.py:Net": 2, "v2.py:Net": 2, "mlp": 2}
    assert list(summary(of)["seeds"]) == ["2", "2", "2"]
    assert list(series.panels(of)[""]) == ["v1.py:Net", "v2.py:Net", "mlp"]
    assert len(set(series.group_colours(of).values())) == 3
    assert [group["values"] for group in charts.groups(of)] == [["v1.py:Net"], ["v2.py:Net"], ["mlp"]]
    alone = sweep("one", runs[2:])
    assert list(alone.groups()) == ["Net", "mlp"], "a label is short as long as it is unique"


def test_two_files_of_one_name_are_told_apart_by_their_hashes(tmp_path) -> None:
    names = [written(tmp_path / place, "mine.py", "Net", size) for size, place in enumerate("ab")]
    labels = label_each([one for name in names for one in seeds_of(f"model.name={name}", (0,))], ["model.name"])
    hashes = [one.config.model.name[-64:][:12] for name in names for one in seeds_of(f"model.name={name}", (0,))]
    assert labels == [f"mine.py:Net (sha256 {digest}…)" for digest in hashes]


@pytest.mark.parametrize("settings, expected", cases("report/labels"))
def test_different_values_have_different_labels(settings, expected) -> None:
    more = "data.partition=majority"
    runs = [run({metrics.ACCURACY: [0.5]}, one, more) for one in settings]
    assert list(group_by(runs, differing(runs))) == expected


def test_transfers_of_hfel_are_two_groups() -> None:
    of_hfel = ["assignment.name=hfel", "assignment.exchanges=300"]
    runs = [run({metrics.ACCURACY: [0.5]}, *of_hfel, f"assignment.transfers={count}") for count in (50, 100)]
    keys = ["assignment.name", *differing(runs)]
    assert list(group_by(runs, keys)) == ["HFEL, transfers 50", "HFEL, transfers 100"]


def test_names_of_parts_are_told_apart() -> None:
    assert label_apart(["a.py:Mine", "b.py:Mine", "ikc"]) == {
        "a.py:Mine": "a.py:Mine", "b.py:Mine": "b.py:Mine", "ikc": "IKC",
    }  # fmt: skip
    assert label_apart(["x/a.py:Mine", "y/a.py:Mine"]) == {name: name for name in ("x/a.py:Mine", "y/a.py:Mine")}
    assert label_apart(["mine.py:HFEL"]) == {"mine.py:HFEL": "HFEL"}
    assert label_apart(["mine.py:HFEL"], ["HFEL"]) == {"mine.py:HFEL": "mine.py:HFEL"}


def test_two_policies_of_one_file_name_are_two_groups(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = []
    for place, name in (("a", "paper_db"), ("b", "paper_literal")):
        (tmp_path / place).mkdir()
        paths.append(shutil.copy(SHIPPED.with_name(f"{name}.safetensors"), tmp_path / place / "mine.safetensors"))
    policies = [*paths, "null", "any_deployment"]
    runs = [run({metrics.ACCURACY: [0.5]}, "assignment.name=d3qn", f"assignment.policy={name}") for name in policies]
    groups = group_by(runs, ["assignment.policy"])
    assert list(groups) == [*(f"policy {path}" for path in paths), "shipped (any deployment)"]


def labelled(own: dict[str, str], *overrides: str) -> RunRecord:
    return replace(run({metrics.ACCURACY: [0.5]}, *overrides), labels=own)


def test_a_label_of_ones_own_comes_first_and_identifies_nothing() -> None:
    own = {"ikc": "Ours", "d3qn": "Learned", "paper_best": "Theirs", "train": "own option"}
    keys = ["scheduling.name", "assignment.name", "assignment.policy"]
    one = labelled(own, "assignment.policy=paper_best")
    assert describe(one, keys) == "Ours, Learned, Theirs"
    assert describe(one, keys[2:]) == "Theirs"
    assert describe(labelled(own, "scheduling.options={loss: train}"), ["scheduling.options.loss"]) == "own option"
    assert describe(labelled(own), ["data.name", "data.partition"]) == describe(
        labelled({}), ["data.name", "data.partition"]
    )
    hfel_keys = ["assignment.name", "assignment.exchanges"]
    assert describe(labelled({"hfel": "Moves"}, "assignment.name=hfel"), hfel_keys) == "Moves, k = 300"
    plain = labelled({}, "assignment.policy=paper_best")
    assert one.identity == plain.identity


def test_a_label_that_another_value_has_does_not_join_them() -> None:
    runs = [labelled({"fedavg": "IKC"}, f"scheduling.name={name}") for name in ("ikc", "fedavg")]
    assert label_each(runs, ["scheduling.name"]) == ["ikc", "fedavg"]
