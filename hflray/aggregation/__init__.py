"""How edges and the cloud combine models (kind ``aggregator``).

* ``base.py`` holds the contract;
* ``fixed_point.py`` holds exact sums;
* ``mean.py``, ``robust.py`` and ``server_optimisers.py`` hold aggregators.
"""

from __future__ import annotations

from hflray.aggregation.base import Aggregator, Frame, OfModels, Rows, Sent, State, finished
from hflray.aggregation.fixed_point import FloatVector, SumVector
from hflray.aggregation.mean import Mean, OfUpdate

__all__ = [
    "Aggregator",
    "FloatVector",
    "Frame",
    "Mean",
    "OfModels",
    "OfUpdate",
    "Rows",
    "Sent",
    "State",
    "SumVector",
    "finished",
]
