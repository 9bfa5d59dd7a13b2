"""The settings of the bill of clustering."""

from __future__ import annotations

from hflray.config import load_config


def test_the_bill_of_clustering_has_two_settings():
    assert load_config().scheduling.clustering_bill.model_dump() == {"edge_iterations": 1, "cpu": "allocated"}
    overrides = ["scheduling.clustering_bill.edge_iterations=Q", "scheduling.clustering_bill.cpu=max"]
    assert load_config(overrides=overrides).scheduling.clustering_bill.model_dump() == {
        "edge_iterations": "Q",
        "cpu": "max",
    }
