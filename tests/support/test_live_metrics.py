"""The glossary of the metrics that Ray exports to Prometheus."""

from __future__ import annotations

import dataclasses

import pytest

from hflray.support import live_metrics


def test_only_counters_end_in_total_in_prometheus():
    exported = {row.exported for row in live_metrics.LIVE}
    assert {"ray_hflray_rounds_total", "ray_hflray_accuracy", "ray_hflray_edge_delay_seconds"} <= exported
    assert {row.name for row in live_metrics.LIVE if row.exported.endswith("_total")} == {
        "hflray_rounds", "hflray_samples_trained", "hflray_actor_restarts",
    }  # fmt: skip


def test_rows_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        live_metrics.ROUNDS.name = "x"


def test_each_row_has_a_name_of_its_own_and_is_exported():
    rows = [row for row in vars(live_metrics).values() if isinstance(row, live_metrics.LiveMetric)]
    assert set(live_metrics.LIVE) == set(rows)
    assert len({row.exported for row in rows}) == len(rows)
