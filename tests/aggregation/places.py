"""Models that arrive at an edge or at the cloud, combined by the real aggregators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hflray.aggregation import Aggregator, Frame, Sent
from hflray.aggregation.fixed_point import fraction_bits

FLOWER: list[dict[str, Any]] = json.loads((Path(__file__).parent / "flower.json").read_text(encoding="utf-8"))["cases"]


def frame_of(weights: np.ndarray, place: str = "edge", statistics: int = 0) -> Frame:
    """Return the frame of senders with these weights."""
    total = int(weights.sum())
    return Frame(place, 0, 1, 0, len(weights), total, statistics, fraction_bits(total))


def combined(
    aggregator: Aggregator, models: Any, weights: Any = None, before: Any = None, statistics: int = 0, split: int = 0
) -> np.ndarray:
    """Return the combined model, (P,), of models (n, P); the first `split` arrive together, in reverse order."""
    models = np.asarray(models, dtype=np.float32)
    weights = np.ones(len(models), dtype=np.int64) if weights is None else np.asarray(weights)
    before = np.zeros(models.shape[1], np.float32) if before is None else np.asarray(before, dtype=np.float32)
    frame = frame_of(weights, statistics=statistics)
    parts = [
        aggregator.lift(Sent(m, before, int(w), n), frame) for n, (m, w) in enumerate(zip(models, weights, strict=True))
    ]
    if split:
        parts = [aggregator.combine(parts[split:]), aggregator.combine(parts[:split][::-1])]
    size = models.shape[1] - statistics
    return aggregator.finish(aggregator.combine(parts), before, aggregator.start(size), frame)[0]
