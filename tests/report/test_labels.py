"""hflray.report.labels: the labels of a run's settings, and the colours of methods."""

from __future__ import annotations

import ast
from pathlib import Path

import hflray
from hflray import metrics
from hflray.report import labels
from hflray.report.labels import COLOURS, NAMES, colour, describe, hfel, mark_modified, pretty, setting
from hflray.report.runs import differing
from tests.report.fabricated import CLEAN, run

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
    labels_of = {label.label for name, label in NAMES.items() if label.label != name} | {hfel(100), hfel(300)}
    # Table II's rows have the paper's own labels, one of which is IKC.
    allowed = {("reproduction/table2_choices.py", pretty("ikc"))}
    copies = [
        (path.relative_to(PACKAGE).as_posix(), node.value)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "labels.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in labels_of | {*COLOURS}
    ]
    assert set(copies) == allowed


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


def test_two_numbers_have_two_labels() -> None:
    rates = [0.01, 0.0100000001, 1e-05, 100000.1, 100000.2]
    labels = [setting("training.learning_rate", rate) for rate in rates]
    assert len(set(labels)) == len(rates)
    assert labels[0] == "learning rate 0.01"


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
