"""The learned scheduler: a network scores the devices, and the H of the highest scores train.

This module runs inference only, and needs neither Ray nor RLlib. The policy is a file of safetensors and JSON that the
task ``train_scheduler`` makes (`hflray.rl.scheduling_session`). ``digits`` is shipped; its card is in its header.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike

from hflray import metrics
from hflray.assignment.d3qn import one_thread
from hflray.assignment.policy import filled, read_policy
from hflray.errors import ConfigError
from hflray.scheduling.base import Scheduler
from hflray.scheduling.context import RoundContext
from hflray.scheduling.network import ScoreNetwork, ScoreSpec
from hflray.scheduling.ranking import highest
from hflray.scheduling.rows import device_rows
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.pinned import locate
from hflray.support.reader import UnfitError

SHIPPED = Path(__file__).with_name("policies") / "digits.safetensors"
SETTING = "scheduling.options.policy"
FIX = "get the file again, or train one: hflray tune tune_configs/scheduling_agent.yaml"


class Learned(Scheduler):
    """Schedules the available devices of the highest scores.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        policy: path of a policy, pinned or not; None: the shipped one.

    Raises:
        ConfigError: the file is missing, damaged, another one than was pinned, or no policy of a scheduler.
    """

    needs: ClassVar[frozenset[str]] = frozenset({metrics.ACCURACY})

    def __init__(
        self,
        *,
        num_devices: int,
        num_scheduled: int,
        clusters: ArrayLike | None = None,
        policy: str | None = None,
    ) -> None:
        super().__init__(num_devices=num_devices, num_scheduled=num_scheduled, clusters=clusters)
        self.network, self.card = load_scores(SHIPPED if policy is None else locate(policy, SETTING))

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        scores = self.scores(context)[candidates]
        return np.sort(highest(scores, candidates, self.num_scheduled, context.rng))

    def scores(self, context: RoundContext) -> FloatArray:
        """Return the score of each device, (N,)."""
        accuracy = 0.0 if context.record is None else float(np.nan_to_num(context.record.accuracy))
        progress = min(1.0, accuracy / self.card["trained_on"]["target"])
        return scores_of(self.network, device_rows(context, self.num_scheduled, progress))


def scores_of(network: ScoreNetwork, rows: ArrayLike) -> FloatArray:
    """Return the scores of the devices of these rows, (N,)."""
    with torch.inference_mode(), one_thread():
        scores = network(torch.as_tensor(np.asarray(rows, dtype=np.float32))[None])[0]
    return np.asarray(scores.numpy(), dtype=np.float64)


def load_scores(path: str | Path) -> tuple[ScoreNetwork, dict[str, Any]]:
    """Return a policy's network, ready for inference, and its card.

    Raises:
        ConfigError: the file is missing, damaged, changed since it was written, or no policy of a scheduler.
    """
    saved, tensors = read_policy(path, SETTING, FIX)
    try:
        network = filled(lambda: ScoreNetwork(ScoreSpec(**saved["spec"])), tensors)
        if saved["card"].get("trained_on", {}).get("target") is None:
            raise UnfitError("its card lacks trained_on.target")
    except (TypeError, ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"{SETTING}: {path} is no policy of a scheduler of this version ({first}); {FIX}") from None
    return network.eval().requires_grad_(False), saved["card"]
