"""The target at which a run stops: a value of the main metric, or of the loss on the test set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from hflray import metrics
from hflray.config import ExperimentConfig, Kind
from hflray.errors import ConfigError
from hflray.losses import METRIC_OF


@dataclass(frozen=True)
class Target:
    """The value of a metric at which a run stops; None: it does not stop before its last round."""

    metric: str
    value: float | None

    @classmethod
    def of(cls, config: ExperimentConfig, kind: Kind) -> Self:
        """Return the target of a configuration for data of this kind.

        Raises:
            ConfigError: data of this kind have no such metric.
        """
        main = METRIC_OF[kind]
        if config.target_accuracy is not None:
            if main != metrics.ACCURACY:
                raise ConfigError(
                    f"target_accuracy: got {config.target_accuracy}, but data of the kind {kind} have no accuracy; "
                    f"accepted: null; remove it, and set target: {{metric: {main}, value: …}}"
                )
            return cls(main, config.target_accuracy)
        metric = config.target.metric or main
        if metric not in (main, metrics.TEST_LOSS):
            raise ConfigError(
                f"target.metric: got '{metric}' for data of the kind {kind}; accepted: {main} or {metrics.TEST_LOSS}; "
                "correct it"
            )
        return cls(metric, config.target.value)

    def reached(self, score: float, loss: float) -> bool:
        """Return whether the main metric is at least the target, or the loss at most."""
        if self.value is None:
            return False
        return loss <= self.value if self.metric == metrics.TEST_LOSS else score >= self.value
