"""The glossary of metrics: its names, its rows and its two formulas."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray import metrics
from tests.conftest import cases


def test_the_names_of_the_metrics_stay():
    """tests/data/metric_names.json has the names by when they are logged, which users' programs read."""
    names = json.loads((Path(__file__).parent / "data" / "metric_names.json").read_text(encoding="utf-8"))
    assert {when: sorted(metrics.names_logged(when)) for when in names} == names
    assert sum(map(len, names.values())) == len(metrics.METRICS)
    assert metrics.assigner_ratio("hfel-300") == "assigner/ratio/hfel-300"
    assert metrics.edge_metric(3, "delay_s") == "edge/3/delay_s"


def test_every_constant_is_the_name_of_its_row():
    constants = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    functions = {
        *metrics.names_logged("reference"),
        *metrics.names_logged("agent"),
        *metrics.names_logged("validation"),
    }
    assert set(metrics.METRICS) == constants | functions
    assert all(metrics.describe(name).name == name for name in constants)


def test_a_row_formats_its_number_and_titles():
    accuracy, bits = metrics.describe(metrics.ACCURACY), metrics.describe(metrics.TOTAL_MESSAGE_BITS)
    assert (accuracy.text(0.9123), accuracy.axis, accuracy.column) == ("91.2%", "Test accuracy (%)", "accuracy, %")
    assert bits.text(1234.6 * 8e6) == "1,235"  # megabytes
    assert (bits.axis, bits.printed_axis) == ("Messages (MB)", "Messages in total (MB)")
    assert metrics.describe(metrics.CLUSTERING_ARI).column == "ARI"
    assert [row.short for row in metrics.rows("clustering")] == ["ARI", "delay s", "energy J"]


def test_class_balance_by_hand():
    assert metrics.class_balance(np.array([5, 5, 5, 5])) == 1.0
    assert metrics.class_balance(np.array([9, 0, 0])) == 0.0
    # Shares of 1/2, 1/4, 1/4 and 0 have an entropy of 1.5 bits, of at most 2.
    assert metrics.class_balance(np.array([2, 1, 1, 0])) == pytest.approx(0.75)
    assert metrics.class_balance(np.array([0, 0])) == 0.0
    assert metrics.class_balance(np.array([4])) == 0.0
    # Two classes: shares of 1/4 and 3/4 have an entropy of 2 - 3/4 · log2(3) = 0.8112781 bits, of at most 1.
    assert metrics.class_balance(np.array([1, 3])) == pytest.approx(0.8112781, abs=1e-7)
    assert metrics.class_balance(np.array([7, 7])) == 1.0
    assert metrics.class_balance(np.array([0, 7])) == 0.0


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=12), st.integers(1, 9))
def test_class_balance_is_a_share_and_scale_free(counts, c):
    value = metrics.class_balance(np.array(counts))
    assert 0.0 <= value <= 1.0
    assert metrics.class_balance(c * np.array(counts[::-1])) == pytest.approx(value, abs=1e-12)
    assert str(value) != "-0.0"


@pytest.mark.parametrize("name, logged, shown", cases("metrics/shown"))
def test_a_logged_number_is_shown_in_its_unit(name, logged, shown):
    assert metrics.describe(name).text(logged) == shown


@pytest.mark.parametrize("form, values, expected", cases("metrics/digits"))
def test_the_least_number_of_a_column_has_two_digits(form, values, expected):
    assert metrics.enough_digits(form, values) == expected


def test_a_small_objective_is_told_from_another():
    row = metrics.describe(metrics.TOTAL_OBJECTIVE)
    assert row.text(0.0912) == "0.091"
    assert [row.text(value, [0.0912, 0.11]) for value in (0.0912, 0.11)] == ["0.091", "0.110"]
    assert metrics.describe(metrics.ACCURACY).text(0.0912, [0.0001]) == "9.1%"


def test_jains_index():
    assert metrics.jain_index(np.array([2, 2, 2])) == pytest.approx(1)
    assert metrics.jain_index(np.array([0, 5, 0, 0])) == pytest.approx(0.25)
    assert metrics.jain_index(np.array([1, 2, 3])) == pytest.approx(36 / 42)
    assert metrics.jain_index(np.zeros(4, dtype=int)) == 0


def test_a_metric_of_the_users_own_is_shown_as_it_is_under_its_own_name():
    row = metrics.describe("macro_f1")
    assert (row.short, row.heading, row.label, row.unit, row.text(0.73126)) == ("macro_f1",) * 3 + ("1", "0.7313")
    logged = ["macro_f1", *metrics.PER_ROUND, *metrics.COLUMNS, "edge/0/delay_s"]
    assert metrics.own_of(logged) == [row]
    assert metrics.rows("training", logged) == [row, *metrics.rows("training")]
    assert metrics.rows("learning", logged) == metrics.rows("learning")
    assert metrics.main_of(logged) == [row, metrics.describe(metrics.ACCURACY)]
    assert metrics.curves(logged) == [row, *metrics.curves()]


@pytest.mark.parametrize("name", ["round", "devices", "edge/0/delay_x", "macro f1", "1st", ""])
def test_other_names_have_no_row(name):
    assert not metrics.may_be_own(name)
    with pytest.raises(KeyError):
        metrics.describe(name)


@pytest.mark.parametrize("name", ["objective", "seeds", "rounds", "T", "accuracy_of_mine"])
def test_a_metric_of_the_users_own_has_a_heading_of_its_own(name: str) -> None:
    row = metrics.describe(name)
    others = {text for other in metrics.METRICS.values() for text in (other.short, other.heading)}
    assert row.heading not in {"seeds", "rounds", "trial", *others}
    assert row.name == name
    assert row.short == row.heading == (name if name == "accuracy_of_mine" else f"{name} (own)")


def test_the_validation_part_decides_where_it_is_logged():
    assert [metrics.on_validation(name) for name in ("accuracy", "r2", "test_loss", "f1")] == [
        "validation_accuracy", "validation_r2", "validation_loss", "validation_f1",
    ]  # fmt: skip
    assert metrics.deciding("accuracy", {"accuracy": 0.5}) == 0.5
    assert metrics.deciding("accuracy", {"accuracy": 0.5, "validation_accuracy": 0.4}) == 0.4
    assert metrics.deciding("round/delay_s", {"round/delay_s": 2.0, "validation_accuracy": 0.4}) == 2.0
    assert metrics.deciding("r2", {"accuracy": 0.5}) is None
    assert not metrics.may_be_own("validation_loss")
