"""`hflray.reproduction.queue.lock`: one queue runs in a folder."""

from __future__ import annotations

import os

import pytest

from hflray.errors import ConfigError
from hflray.reproduction.queue.lock import holder, only_one


def test_a_folder_has_one_queue_at_a_time(folder) -> None:
    assert holder(folder) is None
    with only_one(folder):
        assert holder(folder) == os.getpid()
        with pytest.raises(ConfigError, match=f"process {os.getpid()} runs this queue; end it with"), only_one(folder):
            pass
    assert holder(folder) is None
