"""hflray.world.edge_failure: the share of time for which edges work, and the times between failures."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.config import EdgeFailureConfig
from hflray.errors import ConfigError
from hflray.world.edge_failure import edge_failure


def test_edges_always_work_by_default() -> None:
    assert edge_failure(EdgeFailureConfig(), 5, 0) is None


def test_a_trace_says_only_whether_an_edge_works(tmp_path) -> None:
    trace = tmp_path / "edges.csv"
    trace.write_text("time_s,edge,up\n1,0,0.5\n")
    with pytest.raises(ConfigError, match=r"world\.edge_failure\.trace: .*line 2: .*0\.5"):
        edge_failure(EdgeFailureConfig(trace=str(trace)), 2, 0)


def test_the_share_of_working_edges_and_the_time_to_the_next_failure() -> None:
    edges = edge_failure(EdgeFailureConfig(mtbf_s=900, mttr_s=100), 50_000, 0)
    assert edges is not None
    for clock_s in (0.0, 350.0, 7000.0):
        edges.advance(clock_s)
        assert edges.up.mean() == pytest.approx(0.9, abs=0.005)
        left_s = (edges.next_off_s(clock_s) - clock_s)[edges.up]
        assert left_s.min() > 0
        assert left_s.mean() == pytest.approx(900, rel=0.02)
        assert (left_s < 90).mean() == pytest.approx(1 - np.exp(-0.1), abs=0.005)
