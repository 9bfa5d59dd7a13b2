"""The final model of a run, as its trackers receive it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from hflray.data import Dataset
    from hflray.models.problem import Problem


@dataclass(frozen=True)
class FinalModel:
    """The global model of a checkpoint.

    Its input is the trained network's input: float32 images, scaled to [0, 1] and normalised by channel; standardised
    features; or tokens. A regression's output is in units of `Dataset.target_std` from `Dataset.target_mean`.

    Attributes:
        saved: opens the checkpoint's folder, which holds `state`. It is called when the model is sent, because the
            checkpoint may have to be fetched from a storage first.
        dataset: the training data.
        problem: what was learned, by which network.
    """

    saved: Callable[[], AbstractContextManager[str | Path]]
    dataset: Dataset
    problem: Problem

    def module(self) -> torch.nn.Module:
        """Return the network with the checkpoint's weights, in evaluation mode."""
        from hflray.models import build, load_vector
        from hflray.support import checkpoint  # imported here because torch takes a second to import

        with self.saved() as folder:
            state = checkpoint.load(Path(folder) / "state")
        module = build(self.problem, state["config"]["seed"])
        load_vector(module, state["global_model"])
        return module.eval()

    def example(self) -> NDArray[np.float32] | NDArray[np.int64]:
        """Return two test inputs of the network, (2, …): float32, or int64 for tokens."""
        data = self.dataset
        if data.num_tokens is not None:
            return np.asarray(data.x_test[:2], dtype=np.int64)
        if not data.has_images:  # features are standardised already
            return np.asarray(data.x_test[:2], dtype=np.float32)
        mean, std = (v.reshape(1, -1, 1, 1) for v in (data.channel_mean, data.channel_std))
        return np.asarray(((data.x_test[:2] / np.float32(255)) - mean) / std, dtype=np.float32)

    def write(self, folder: Path) -> list[Path]:
        """Write the network's weights by name to ``model.safetensors``; return its path in a list."""
        from safetensors.torch import save_file

        path = folder / "model.safetensors"
        save_file(self.module().state_dict(), path)
        return [path]
