"""hflray.training.kernels: which kernel trains which network, and which settings stay."""

from __future__ import annotations

import pytest

from hflray.config import TrainingConfig
from hflray.errors import HflrayError
from hflray.models.problem import ModelSpec, Problem
from hflray.support import references
from hflray.support.native import compiler
from hflray.training import kernels as choice
from hflray.training.kernel_base import library
from tests.conftest import own_module, refusal

SHAPE = (1, 16, 16)
PROBLEM = Problem(SHAPE, 3)
GRU = Problem((7,), 11, kind="next_token", model=ModelSpec("gru"), num_tokens=11)
LARGE = choice.LARGE


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_named_settings_stay() -> None:
    named = TrainingConfig(kernel="eager", threads=3)
    assert choice.settled(named, PROBLEM, LARGE) == named
    assert choice.settled(TrainingConfig(kernel="eager"), PROBLEM, LARGE).threads == 1


@pytest.mark.parametrize("passes", [1, LARGE])
def test_the_papers_network_takes_fused(passes: int) -> None:
    settled = choice.settled(TrainingConfig(), PROBLEM, passes)
    assert (settled.kernel, settled.threads) == (choice.fixed_kernel(PROBLEM), 1)
    assert settled.kernel == ("fused" if compiler() else "channels_last")


def test_a_compiler_that_fails_leaves_pytorch_and_is_quoted_where_its_kernel_is_named(tmp_path, monkeypatch) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho out of registers >&2\nexit 1\n")
    broken.chmod(0o755)
    for name, fact in (("no-such-compiler", "needs a C compiler"), (str(broken), "failed: out of registers")):
        monkeypatch.setenv("CC", name)
        library.cache_clear()
        try:
            assert choice.settled(TrainingConfig(), PROBLEM, 1).kernel == "channels_last"
            assert choice.settled(TrainingConfig(), GRU, LARGE).kernel == "eager"
            for kernel, problem in (("fused", PROBLEM), ("layers", GRU)):
                with refusal(HflrayError, "training.kernel", kernel, fact, "channels_last"):
                    choice.settled(TrainingConfig(kernel=kernel), problem, 1)
        finally:
            library.cache_clear()


def test_bf16_takes_fused_bf16_and_fused_only_where_the_cpu_has_its_instructions(monkeypatch) -> None:
    def refused(instructions: bool) -> None:
        if instructions:
            raise HflrayError("no AVX512-BF16")

    monkeypatch.setattr(choice, "fused_library", refused)
    assert choice.fixed_kernel(PROBLEM, "bf16") == "fused_bf16"
    assert choice.fixed_kernel(PROBLEM, "float32") == "fused"
    with pytest.raises(HflrayError, match="no AVX512-BF16"):
        choice.settled(TrainingConfig(kernel="fused", precision="bf16"), PROBLEM, 1)
    with pytest.raises(HflrayError, match=r"training.kernel: 'fused_bf16' computes in bf16, and .* is 'float32'"):
        choice.settled(TrainingConfig(kernel="fused_bf16"), PROBLEM, 1)


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_the_mini_model_has_a_step_of_its_own_on_every_cpu(monkeypatch) -> None:
    def refused(instructions: bool) -> None:
        raise HflrayError("no AVX512-BF16")

    monkeypatch.setattr(choice, "fused_library", refused)
    mini = Problem((1, 10, 10), 3, model=ModelSpec("mini"))
    assert choice.fixed_kernel(mini, "bf16") == "fused"


def test_layers_are_for_networks_that_have_them() -> None:
    with pytest.raises(HflrayError, match="'layers' computes GRUs and group normalisation"):
        choice.settled(TrainingConfig(kernel="layers", threads=1), PROBLEM, 1)
    if compiler():
        assert choice.settled(TrainingConfig(), GRU, 1).kernel == "layers"
        assert choice.settled(TrainingConfig(), GRU, 1, own_training=True).kernel == "eager"


def test_a_network_of_the_users_own_takes_layers_in_large_rounds(tmp_path) -> None:
    (tmp_path / "own.py").write_text(WITH_NORM)
    for name, has_layers in (("Net", bool(compiler())), ("Bare", False)):
        problem = Problem(SHAPE, 3, model=ModelSpec(references.pin(f"own.py:{name}", tmp_path)))
        large = choice.settled(TrainingConfig(), problem, LARGE).kernel
        assert large == ("layers" if has_layers else "channels_last")
        assert choice.settled(TrainingConfig(), problem, LARGE - 1).kernel == "channels_last"


WITH_NORM = own_module("networks")


def test_the_available_gpus_settle_where_devices_train() -> None:
    def settled(gpus: float | None, **changes) -> tuple[str, str]:
        config = choice.settled(TrainingConfig(**changes), PROBLEM, 1, gpus)
        return config.device, config.kernel

    assert settled(0.5, device="cuda") == settled(2.0, device="auto") == ("cuda", "batched")
    assert settled(0.0, device="auto") == settled(1.0, device="cpu") == ("cpu", choice.fixed_kernel(PROBLEM))
    with pytest.raises(HflrayError, match=r"training.device: 'cuda', but Ray has no GPU"):
        settled(0.0, device="cuda")
    with pytest.raises(HflrayError, match=r"training.kernel: 'fused' is for CPUs"):
        settled(1.0, device="cuda", kernel="fused")
    with pytest.raises(HflrayError, match=r"training.precision: 'tf32' is for GPUs"):
        settled(0.0, device="auto", precision="tf32")
