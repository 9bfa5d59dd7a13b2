"""hflray.training.native: what it says without a compiler, and the models that it refuses; test_kernels.py has more."""

from __future__ import annotations

import pytest
import torch

from hflray.errors import HflrayError
from hflray.models import build_model
from hflray.support.native import compiler
from hflray.training import native


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Start with no library built or loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield tmp_path
    native.library.cache_clear()


def test_without_a_compiler_the_message_says_what_to_do(fresh, monkeypatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(HflrayError, match=r"training.kernel: 'native' needs a C compiler.*channels_last"):
        native.library()


def test_a_compiler_that_fails_is_quoted(fresh, monkeypatch, tmp_path) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho out of registers >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(HflrayError, match=r"broken-cc.*failed: out of registers.*channels_last"):
        native.library()


def test_a_model_it_was_not_written_for_is_refused() -> None:
    with pytest.raises(HflrayError, match="native knows no Linear"):
        native.NativeKernel(torch.nn.Linear(2, 2), (1, 16, 16), 0.1)
    wide = build_model("hfl", (1, 16, 16), 3)
    wide.conv1 = torch.nn.Conv2d(1, 17, 5)
    if compiler() is not None:
        with pytest.raises(HflrayError, match="another first layer"):
            native.NativeKernel(wide, (1, 16, 16), 0.1)
