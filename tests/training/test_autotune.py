"""hflray.training.autotune: what is measured, what is saved, and which settings stay."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from hflray.config import TrainingConfig
from hflray.errors import HflrayError
from hflray.models.problem import ModelSpec, Problem
from hflray.support import references
from hflray.training import autotune
from tests.conftest import says

SHAPE = (1, 16, 16)
PROBLEM = Problem(SHAPE, 3)
BIG = autotune.WORTH_MEASURING


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(autotune, "SECONDS", 0.001)
    monkeypatch.setattr(autotune, "REPEATS", 1)


def rates(monkeypatch: pytest.MonkeyPatch, by_choice: dict[str, float], module: ModuleType = autotune) -> list[str]:
    """Replace the measurements of `module` by these rates; return the list that receives each measurement's name."""
    measurements: list[str] = []

    def remembered(key, measure):
        measurements.append(key["measured"])
        return by_choice

    monkeypatch.setattr(module, "remembered", remembered)
    return measurements


def test_named_settings_stay_and_nothing_is_measured(monkeypatch) -> None:
    measurements = rates(monkeypatch, {})
    named = TrainingConfig(kernel="eager", threads=3)
    assert autotune.resolve(named, PROBLEM, BIG) == named
    assert measurements == []


@pytest.mark.parametrize("changes, passes", [({}, BIG - 1), ({"autotune": False}, BIG)])
def test_small_rounds_and_no_autotune_take_the_fixed_choice(monkeypatch, changes, passes) -> None:
    measurements = rates(monkeypatch, {})
    resolved = autotune.resolve(TrainingConfig(**changes), PROBLEM, passes)
    assert (resolved.kernel, resolved.threads) == (autotune.fixed_kernel(), 1)
    assert measurements == []


def test_the_fixed_choice_is_fused_where_it_can_be_built(tmp_path, monkeypatch) -> None:
    assert autotune.fixed_kernel() == ("fused" if autotune.compiler() else "channels_last")
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for compiler in ("no-such-compiler", str(broken)):
        monkeypatch.setenv("CC", compiler)
        autotune.library.cache_clear()
        try:
            assert autotune.resolve(TrainingConfig(), PROBLEM, 1).kernel == "channels_last"
        finally:
            autotune.library.cache_clear()


def test_the_fastest_kernel_is_taken_and_more_threads_only_if_they_pay(monkeypatch) -> None:
    monkeypatch.setattr(autotune, "available_cpus", lambda: (0, 1))
    by_choice = {"eager/1": 5.0, "channels_last/1": 8.0, "native/1": 9.0, "fused/1": 11.0, "fused/2": 11.1}
    rates(monkeypatch, by_choice)
    resolved = autotune.resolve(TrainingConfig(), PROBLEM, BIG)
    assert (resolved.kernel, resolved.threads) == ("fused", 1)
    rates(monkeypatch, by_choice | {"fused/2": 15.0})
    resolved = autotune.resolve(TrainingConfig(), PROBLEM, BIG)
    assert (resolved.kernel, resolved.threads) == ("fused", 2)


def test_a_measurement_is_made_once_and_saved(tmp_path, monkeypatch) -> None:
    config = TrainingConfig(batch_size=4, threads=1)
    first = autotune.resolve(config, PROBLEM, BIG)
    (path,) = (tmp_path / "hflray" / "autotune").iterdir()
    saved = json.loads(path.read_text())
    assert {"eager/1", "channels_last/1"} <= set(saved["rates"])
    assert saved["of"]["model"] == [*SHAPE, 3, 4, "float32"]

    monkeypatch.setattr(autotune, "sample_kernel", lambda *_: pytest.fail("measured again"))
    assert autotune.resolve(config, PROBLEM, BIG) == first


def test_a_damaged_file_is_replaced_by_a_new_measurement(tmp_path) -> None:
    config = TrainingConfig(batch_size=4, threads=1)
    autotune.resolve(config, PROBLEM, BIG)
    (path,) = (tmp_path / "hflray" / "autotune").iterdir()
    whole = path.read_text()
    for damaged in ("", '{"rates": ', whole.replace('"eager/1": ', '"eager/1": 9')):
        assert damaged != whole
        path.write_text(damaged)
        autotune.resolve(config, PROBLEM, BIG)
        assert path.read_text() != damaged
        assert json.loads(path.read_text())["rates"]


def test_bf16_without_its_instructions_takes_fused_bf16_and_naming_fused_is_an_error(monkeypatch) -> None:
    def refused(instructions: bool) -> None:
        if instructions:
            raise HflrayError("no AVX512-BF16")

    monkeypatch.setattr(autotune, "fused_library", refused)
    if autotune.compiler():
        assert autotune.fixed_kernel(PROBLEM, "bf16") == "fused_bf16"
        assert autotune.fixed_kernel(PROBLEM, "float32") == "fused"
    with pytest.raises(HflrayError, match="no AVX512-BF16"):
        autotune.resolve(TrainingConfig(kernel="fused", precision="bf16"), PROBLEM, 1)


def test_all_in_bf16_is_a_candidate_for_that_precision_only(monkeypatch) -> None:
    monkeypatch.setattr(autotune, "fused_library", lambda instructions: None)
    if autotune.compiler():
        assert autotune.fixed_kernel(PROBLEM, "bf16") == autotune.fixed_kernel(None, "bf16") == "fused_bf16"
        rates(monkeypatch, {"fused/1": 9.0, "fused_bf16/1": 12.0})
        assert autotune.resolve(TrainingConfig(threads=1, precision="bf16"), PROBLEM, BIG).kernel == "fused_bf16"
        assert (
            autotune.resolve(TrainingConfig(kernel="fused", threads=1, precision="bf16"), PROBLEM, 1).kernel == "fused"
        )
    with pytest.raises(HflrayError, match=r"training.kernel: 'fused_bf16' computes in bf16, and .* is 'float32'"):
        autotune.resolve(TrainingConfig(kernel="fused_bf16"), PROBLEM, 1)


def test_without_a_compiler_native_is_no_candidate_and_naming_it_is_an_error(monkeypatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    autotune.library.cache_clear()
    try:
        assert autotune.resolve(TrainingConfig(batch_size=4, threads=1), PROBLEM, BIG).kernel not in ("native", "fused")
        for kernel in ("native", "fused"):
            with pytest.raises(HflrayError, match=f"'{kernel}' needs a C compiler"):
                autotune.resolve(TrainingConfig(kernel=kernel), PROBLEM, 1)
    finally:
        autotune.library.cache_clear()


def test_layers_is_a_candidate_where_a_network_has_them_and_naming_it_without_is_an_error(monkeypatch) -> None:
    gru = Problem((7,), 11, kind="next_token", model=ModelSpec("gru"), num_tokens=11)
    with pytest.raises(HflrayError, match="'layers' computes GRUs and group normalisation"):
        autotune.resolve(TrainingConfig(kernel="layers", threads=1), PROBLEM, 1)
    if autotune.compiler():
        assert autotune.resolve(TrainingConfig(), gru, 1).kernel == "layers"
        assert autotune.resolve(TrainingConfig(), gru, 1, own_training=True).kernel == "eager"
        rates(monkeypatch, {"eager/1": 9.0, "layers/1": 8.0})
        assert autotune.resolve(TrainingConfig(threads=1), gru, BIG).kernel == "eager"
    monkeypatch.setenv("CC", "no-such-compiler")
    autotune.library.cache_clear()
    try:
        assert autotune.resolve(TrainingConfig(), gru, 1).kernel == "eager"
        with pytest.raises(HflrayError, match="'layers' needs a C compiler"):
            autotune.resolve(TrainingConfig(kernel="layers"), gru, 1)
    finally:
        autotune.library.cache_clear()


def test_a_network_of_the_users_own_tries_layers(tmp_path) -> None:
    """Where it has none, the kernel fails to be built and is not measured."""
    (tmp_path / "own.py").write_text(WITH_NORM)
    for name, tries in (("Net", bool(autotune.compiler())), ("Bare", False)):
        problem = Problem(SHAPE, 3, model=ModelSpec(references.pin(f"own.py:{name}", tmp_path)))
        autotune.resolve(TrainingConfig(batch_size=4, threads=1), problem, BIG)
        path = max((tmp_path / "hflray" / "autotune").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        assert ("layers/1" in json.loads(path.read_text())["rates"]) == tries
        assert autotune.resolve(TrainingConfig(batch_size=4, threads=1), problem, 1).kernel == "channels_last"


WITH_NORM = """from torch import nn


class Net(nn.Sequential):
    def __init__(self, input_shape, num_outputs):
        super().__init__(
            nn.Conv2d(1, 16, 3, 4), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(num_outputs)
        )
        import torch
        self(torch.zeros(1, *input_shape))


class Bare(nn.Sequential):
    def __init__(self, input_shape, num_outputs):
        super().__init__(nn.Flatten(), nn.Linear(256, num_outputs))
"""
NEWLINE = "\n"
NARROW = """from torch import nn


class Net(nn.Module):
    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.last = nn.Linear(256, num_outputs)

    def forward(self, images):
        if images.min() < -1:
            raise ValueError("a pixel below -1")
        return self.last(images.flatten(1))
"""


def test_a_network_that_no_kernel_trains_is_one_line_with_the_reason_of_each(tmp_path) -> None:
    """The measurement draws inputs at random, which a network of the user's own may not accept."""
    (tmp_path / "own.py").write_text(NARROW)
    problem = Problem(SHAPE, 3, model=ModelSpec(references.pin("own.py:Net", tmp_path)))
    with pytest.raises(HflrayError) as error:
        autotune.resolve(TrainingConfig(batch_size=4, threads=1), problem, BIG)
    why = f"own.py:{NARROW[: NARROW.index('raise')].count(NEWLINE) + 1}: ValueError: a pixel"
    shape = ("'own.py:Net'", "4", "(1, 16, 16)")
    assert says(str(error.value), "training.kernel", *shape, "eager", why, "channels_last", why, "training.autotune")
    assert len(str(error.value).splitlines()) == 1
    assert not list((tmp_path / "hflray").rglob("*.json"))  # nothing is remembered
    fixed = autotune.resolve(TrainingConfig(batch_size=4, threads=1, autotune=False), problem, BIG)
    assert fixed.kernel == "channels_last"


def test_a_kernel_that_fails_is_left_out(monkeypatch) -> None:
    sample = autotune.sample_kernel

    def failing(name, *others):
        if name != "eager":
            raise RuntimeError("no such layout")
        return sample(name, *others)

    monkeypatch.setattr(autotune, "sample_kernel", failing)
    resolved = autotune.resolve(TrainingConfig(batch_size=4, threads=1), PROBLEM, BIG)
    assert resolved.kernel == "eager"


def test_the_available_gpus_settle_where_devices_train() -> None:
    def settled(gpus: float | None, **changes) -> tuple[str, str]:
        resolved = autotune.resolve(TrainingConfig(autotune=False, **changes), PROBLEM, 1, gpus)
        return resolved.device, resolved.kernel

    assert settled(0.5, device="cuda") == settled(2.0, device="auto") == ("cuda", "batched")
    assert settled(0.0, device="auto") == settled(1.0, device="cpu") == ("cpu", autotune.fixed_kernel())
    with pytest.raises(HflrayError, match=r"training.device: 'cuda', but Ray has no GPU"):
        settled(0.0, device="cuda")
    with pytest.raises(HflrayError, match=r"training.kernel: 'native' is for CPUs"):
        settled(1.0, device="cuda", kernel="native")
    with pytest.raises(HflrayError, match=r"training.precision: 'tf32' is for GPUs"):
        settled(0.0, device="auto", precision="tf32")
