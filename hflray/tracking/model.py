"""The model that a run ends with, as its trackers are given it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hflray import checkpoint
from hflray.data import Dataset
from hflray.models import build_model, load_vector

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FinalModel:
    """The global model of a checkpoint.

    It takes images as the trained network saw them: float32, scaled to [0, 1] and normalised by channel.

    Attributes:
        saved: opens the checkpoint's folder, which holds `state`; called when the model is sent, as it may have to be
            fetched from a storage first.
        dataset: what it was trained on.
    """

    saved: Callable[[], AbstractContextManager[str | Path]]
    dataset: Dataset

    def module(self) -> torch.nn.Module:
        """The network with the checkpoint's weights, ready to infer."""
        module = build_model("hfl", self.dataset.image_shape, self.dataset.num_classes)
        with self.saved() as folder:
            load_vector(module, checkpoint.load(Path(folder) / "state")["global_model"])
        return module.eval()

    def example(self) -> NDArray[np.float32]:
        """Two test images as the network takes them, (2, channels, height, width)."""
        data = self.dataset
        mean, std = (v.reshape(1, -1, 1, 1) for v in (data.channel_mean, data.channel_std))
        return np.asarray(((data.x_test[:2] / np.float32(255)) - mean) / std, dtype=np.float32)

    def write(self, folder: Path) -> list[Path]:
        """Write the network's weights by name as ``model.safetensors``."""
        from safetensors.torch import save_file

        path = folder / "model.safetensors"
        save_file(self.module().state_dict(), path)
        return [path]
