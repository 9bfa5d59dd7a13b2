"""What a round decides: the settings of the clustering's bill."""

from __future__ import annotations

from hflray.config import load_config


def test_how_clustering_is_billed():
    assert load_config().scheduling.clustering_bill.model_dump() == {"edge_iterations": 1, "cpu": "allocated"}
    overrides = ["scheduling.clustering_bill.edge_iterations=Q", "scheduling.clustering_bill.cpu=max"]
    assert load_config(overrides=overrides).scheduling.clustering_bill.model_dump() == {
        "edge_iterations": "Q",
        "cpu": "max",
    }
