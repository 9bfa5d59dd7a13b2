"""What a user's part of any kind returns is refused before anything starts, in one line that names all."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml

from hflray import registry
from hflray.config import ExperimentConfig, load_config, named_settings
from hflray.errors import ConfigError, DivergedError, HflrayError
from hflray.experiment import Experiment
from hflray.experiment.parts_check import check_parts
from hflray.support.contract import Contract
from tests.conftest import SMALL, refusal, says

QUICK = ("model.name=logistic", "data.samples_per_device=[10, 20]", "scheduling.name=fedavg")


class Written(NamedTuple):
    """A part of `parts.yaml`, where its fields are explained."""

    setting: str
    text: str
    right: str
    wrong: tuple[str, ...]
    kind: str
    later: str = ""
    also: tuple[str, ...] = ()


PARTS = {
    name: Written(**{"kind": name, **fields})
    for name, fields in yaml.safe_load(Path(__file__).with_name("parts.yaml").read_text(encoding="utf-8")).items()
}
IMPORTS = (
    "import dataclasses\n"
    "import numpy as np\nimport torch\nimport hflray, hflray.aggregation, hflray.compression, hflray.training.rules\n"
)
IMPORTS += "import hflray.world.fading, hflray.world.availability, hflray.world.mobility\n\n\n"


def configured(kind: str, expression: str, folder: Path, *overrides: str) -> ExperimentConfig:
    part = PARTS[kind]
    path = folder / "own.py"
    path.write_text(IMPORTS + part.text.replace("EXPR", expression))
    name = f"[{path}:Mine]" if part.setting == "observers" else f"{path}:Mine"
    return load_config(None, [*SMALL, *QUICK, *part.also, f"{part.setting}={name}", *overrides])


def dry_run(config: ExperimentConfig) -> Experiment:
    """Build and try an experiment as `--dry-run` does."""
    experiment = Experiment(config)
    check_parts(experiment)
    return experiment


ONES = np.ones(3)


@pytest.mark.parametrize(
    "value, shape, type_",
    [
        (None, (3,), "f"), ("abc", (3,), "f"), ({1, 2}, (2,), "f"), ({0: 1.0}, (1,), "f"), ([[1], [2, 3]], (2,), "f"),
        (ONES, (), "f"), (ONES, (2,), "f"), (ONES, (3, 1), "f"), (ONES, (3,), "i"), (ONES, (3,), "b"),
        (ONES > 0, (3,), "f"), (ONES * 1j, (3,), "f"), (ONES.astype(str), (3,), "f"), (ONES * np.nan, (3,), "f"),
        (ONES * np.inf, (3,), "f"), (ONES * 9, (3,), "f"), (-ONES, (None,), "f"), (object(), (), "f"),
    ],
)  # fmt: skip
def test_what_no_contract_accepts(value: object, shape: tuple[int | None, ...], type_: str) -> None:
    contract = Contract.of("a.setting", "own.py:Mine", "what is right")
    for right in (ONES, [1, 1, 1], torch.ones(3)):
        assert contract.array(right, (3,), "f", low=0, high=8).tolist() == [1, 1, 1]
    with refusal(ConfigError, "a.setting: own.py:Mine returned ", " for device 3; accepted: what is right; correct"):
        contract.array(value, shape, type_, low=0, high=8, where=" for device 3")


def test_every_kind_has_a_contract_here() -> None:
    elsewhere = {"sink", "figure"}  # tests/tracking/test_sender.py and tests/report/test_figures.py
    assert {part.kind for part in PARTS.values()} == set(registry.BUILTIN) - elsewhere
    assert all(named_settings()[part.setting] == part.kind for part in PARTS.values())


@pytest.mark.parametrize("kind, expression", [(kind, wrong) for kind, part in PARTS.items() for wrong in part.wrong])
def test_what_a_part_returns_wrongly_is_one_line_before_anything_starts(
    kind: str, expression: str, tmp_path: Path
) -> None:
    config = configured(kind, expression, tmp_path)
    with pytest.raises(HflrayError) as error:
        dry_run(config)
    message = str(error.value)
    assert "\n" not in message
    assert says(message, PARTS[kind].setting, "own.py:", "; ")
    assert "accepted" in message or "Dataset.of" in expression or "layers[0]" in expression
    assert "learning_rate" not in message


@pytest.mark.parametrize("kind", PARTS)
def test_a_right_part_is_accepted_and_trains(kind: str, tmp_path: Path) -> None:
    experiment = dry_run(configured(kind, PARTS[kind].right, tmp_path))
    assert experiment.round == 0
    assert experiment.run_round().score >= 0


@pytest.mark.parametrize("kind", [name for name, part in PARTS.items() if part.later])
def test_what_a_part_returns_wrongly_in_a_later_round_is_one_line_too(kind: str, tmp_path: Path) -> None:
    experiment = Experiment(configured(kind, PARTS[kind].later, tmp_path, "world.mobility.slot_s=0.001"))
    with pytest.raises(HflrayError) as error:
        list(experiment)
    assert experiment.round in (0, 1)
    assert says(str(error.value), PARTS[kind].setting, "own.py:", "accepted")
    assert "\n" not in str(error.value)
    assert "learning_rate" not in str(error.value)


def test_weights_that_diverge_are_no_fault_of_the_aggregator(tmp_path: Path) -> None:
    experiment = Experiment(configured("edge's aggregator", "model", tmp_path, "training.learning_rate=1e30"))
    with pytest.raises(DivergedError, match=r"lower training\.learning_rate"):
        list(experiment)


def test_a_part_that_says_so_may_give_a_sample_to_several_devices(tmp_path: Path) -> None:
    with pytest.raises(HflrayError, match=r"again for device 1; accepted: .*shared = True"):
        Experiment(configured("partition", "[parts[0]] * num_devices", tmp_path))
    text = (tmp_path / "own.py").read_text().replace("class Mine:\n", "class Mine:\n    shared = True\n")
    (tmp_path / "shared.py").write_text(text.replace("sizes.sum()", "sizes[0]"))
    sizes = "data.samples_per_device=[1000, 1438]"
    config = load_config(None, [*SMALL, *QUICK, f"data.partition={tmp_path / 'shared.py'}:Mine", sizes])
    assert len(Experiment(config).scenario.parts) == 12


@pytest.mark.parametrize(
    "line, facts",
    [
        ("list(module.parameters())[0].data.fill_(float('nan'))", ("training.rule.name: own.py:Mine", "not finite")),
        ("list(module.parameters())[0].data.fill_(1e30)", ("training.rule.name: own.py:Mine", "as large as 1e+30")),
        ("module.nothing()", ("device 0: own.py:", "AttributeError")),
    ],
)
def test_training_of_ones_own_is_tried(line: str, facts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"def Mine(module, batches, loss, rate, rng):\n    {line}\n")
    config = load_config(None, [*SMALL, *QUICK, f"training.rule.name={tmp_path / 'own.py'}:Mine"])
    with pytest.raises(HflrayError) as error:
        dry_run(config)
    assert says(str(error.value), *facts)
    assert "learning_rate" not in str(error.value)
    assert "\n" not in str(error.value)
