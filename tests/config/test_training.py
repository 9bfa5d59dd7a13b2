"""Settings of local training that need a GPU are refused on a CPU."""

from __future__ import annotations

import pytest

from hflray.config import load_config
from hflray.errors import ConfigError


@pytest.mark.parametrize("setting", ["precision=tf32", "cuda_graph=true"])
def test_gpu_settings_are_refused_on_cpus(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting.partition('=')[0]}: .* is for GPUs, and device is 'cpu'"):
        load_config(None, [f"training.{setting}"])
    for device in ("cuda", "auto"):
        assert load_config(None, [f"training.{setting}", f"training.device={device}"]).training.device == device
    assert load_config(None, ["training.cuda_graph=false"]).training.cuda_graph is False
