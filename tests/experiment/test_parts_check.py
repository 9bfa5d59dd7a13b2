"""What a user's part of any kind returns is refused before anything starts, in one line that names all."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from hflray import registry
from hflray.config import ExperimentConfig, load_config, named_settings
from hflray.errors import ConfigError, DivergedError, HflrayError
from hflray.experiment import Experiment
from hflray.experiment.parts_check import check_parts
from hflray.support.contract import Contract
from tests.conftest import SMALL, says

QUICK = ("model.name=logistic", "data.samples_per_device=[10, 20]", "scheduling.name=fedavg")


class Written(NamedTuple):
    """A part in a file of one's own: its setting, its text with EXPR for what it returns, and the right EXPR."""

    setting: str
    text: str
    right: str
    wrong: tuple[str, ...]
    also: tuple[str, ...] = ()


PARTS: dict[str, Written] = {
    "partition": Written(
        "data.partition",
        "class Mine:\n"
        "    def __call__(self, labels, num_devices, sizes, rng):\n"
        "        parts = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])\n"
        "        return EXPR\n",
        "parts",
        (
            "None", "parts[1:]", "[*parts[1:], np.array([-1])]", "(part for part in parts)",
            "[*parts[1:], np.array([len(labels)])]", "[*parts[1:], parts[1]]", "[*parts[1:], []]",
            "[*parts[1:], parts[0] * 1.0]", "np.zeros(num_devices)",
        ),
    ),
    "fleet": Written(
        "fleet.name",
        "def Mine(config, rng):\n    made = hflray.Fleet.of(config, rng)\n    return EXPR\n",
        "made",
        (
            "None", "(made,)", "made.take([0, 1])", "made.take_edges([0])",
            "dataclasses.replace(made, power_w=-made.power_w)",
            "dataclasses.replace(made, max_cpu_hz=made.max_cpu_hz * np.nan)",
            "dataclasses.replace(made, position_m=made.position_m + 1e9)", "hflray.Fleet.of(config, rng, gain=[1.0])",
        ),
    ),
    "fading": Written(
        "world.fading.name",
        "class Mine(hflray.world.fading.Fading):\n"
        "    def factor(self, *indices):\n"
        "        drawn = self.draws.exponential(*indices)\n"
        "        return EXPR\n",
        "drawn",
        (
            "drawn * np.nan", "drawn * 0", "None", "drawn.ravel()[:1]", "drawn > 1",
            "np.random.default_rng().uniform(1, 2, drawn.shape)",
        ),
    ),
    "access": Written(
        "cost.access.name",
        "class Mine(hflray.Access):\n"
        "    def upload(self, share, link, bits):\n"
        "        rate = 0.5 * link.rate_bps(share * link.bandwidth_hz)\n"
        "        seconds = bits / rate\n"
        "        return EXPR\n",
        "(seconds, link.power_w * seconds)",
        (
            "None", "seconds", "(seconds[:-1], seconds)", "(seconds, seconds[:-1])", "(seconds * np.nan, seconds)",
            "(bits / (0 * rate), seconds)", "(-seconds, seconds)", "(seconds, -seconds)",
            "(bits / link.rate_bps(), seconds)",
            "(seconds + share, seconds)", "(seconds, share)", "(seconds * 0 + 3 - share ** 2, 1 / share)",
        ),
    ),
    "compute": Written(
        "cost.compute.name",
        "class Mine(hflray.Compute):\n"
        "    def run(self, setting, device, work):\n"
        "        cycles = device.cycles_per_sample * work.passes\n"
        "        return EXPR\n",
        "(cycles / setting, 1e-28 * cycles * setting ** 2)",
        (
            "None", "(cycles / setting, None)", "(cycles / setting, 1 / setting)", "(cycles, cycles)",
            "(cycles / setting * 0, cycles)", "(cycles[:1] / setting[:1], cycles)",
        ),
    ),
    "download": Written(
        "cost.download.name",
        "class Mine(hflray.Download):\n"
        "    def receive(self, link, node, bits):\n"
        "        seconds = bits / link.rate_bps()\n"
        "        return EXPR\n",
        "(seconds, link.power_w * seconds)",
        ("None", "(seconds, -seconds)", "(-seconds, seconds)", "(seconds * np.inf, seconds)", "(seconds[1:], seconds)"),
    ),
    "availability": Written(
        "world.availability.name",
        "class Mine(hflray.world.availability.Availability):\n"
        "    def available(self, round_index, clock_s):\n"
        "        up = np.ones(self.num_devices, bool)\n"
        "        return EXPR\n",
        "up",
        (
            "np.flatnonzero(up)", "up * 1.0", "up[:-1]", "None",
        ),
    ),
    "mobility": Written(
        "world.mobility.name",
        "class Mine(hflray.world.mobility.Mobility):\n"
        "    def move(self, first, last):\n"
        "        there = self.position_m\n"
        "        self.position_m = EXPR\n",
        "there",
        (
            "there + 1e9", "there * np.nan", "there[1:]", "None",
        ),
    ),
    "scheduler": Written(
        "scheduling.name",
        "class Mine(hflray.Scheduler):\n"
        "    def schedule(self, context):\n"
        "        first = np.arange(self.num_scheduled)\n"
        "        return EXPR\n",
        "first",
        (
            "first[1:]", "first * 0", "first * 1.0", "first + 10**6", "None", "[[1], [2, 3]]",
        ),
    ),
    "assigner": Written(
        "assignment.name",
        "class Mine:\n"
        "    def assign(self, fleet, work, devices, rng):\n"
        "        edges = np.zeros(len(devices), int)\n"
        "        return EXPR\n",
        "edges",
        (
            "edges - 1", "edges + fleet.num_edges", "edges * 1.0", "edges[1:]", "None", "dict(zip(devices, edges))",
        ),
    ),
    "aggregator": Written(
        "aggregation.cloud.name",
        "class Mine(hflray.aggregation.Mean):\n"
        "    linear = False\n"
        "    def finish(self, total, before, state, frame):\n"
        "        model, state = super().finish(total, before, state, frame)\n"
        "        return EXPR\n",
        "(model, state)",
        (
            "model", "(model * np.nan, state)", "(model[1:], state)", "(model, None)", "(model, state, frame)",
            "(model, {'a': object()})",
        ),
    ),
    "compressor": Written(
        "compression.device.name",
        "class Mine(hflray.compression.Compressor):\n"
        "    def bits(self, sizes):\n"
        "        return 16.0 * sum(sizes)\n"
        "    def send(self, update, sizes, rng, residual):\n"
        "        return EXPR\n",
        "(update, residual)",
        (
            "update", "(update * np.nan, residual)", "(update[1:], residual)", "(update, update)",
            "(list('ab'), None)",
        ),
    ),
    "model": Written(
        "model.name",
        "def Mine(input_shape, num_outputs):\n"
        "    size = int(np.prod(input_shape))\n"
        "    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, num_outputs))\n"
        "    return EXPR\n",
        "layers",
        ("None", "layers.state_dict()", "layers[0]", "torch.nn.Sequential(layers, torch.nn.Flatten(0))", "lambda x: x"),
    ),
    "loss": Written(
        "training.loss",
        "def Mine(outputs, targets):\n"
        "    value = torch.nn.functional.cross_entropy(outputs, targets)\n"
        "    return EXPR\n",
        "value",
        ("None", "value[None]", "value * float('nan')", "float(value)", "value.detach()", "outputs.sum(1)"),
    ),
    "metric": Written(
        "target.metric",
        "def Mine(outputs, targets):\n    value = float((outputs.argmax(1) == targets).mean())\n    return EXPR\n",
        "value",
        (
            "None", "float('nan')", "[value, value]", "'good'",
        ),
    ),
    "dataset": Written(
        "data.name",
        "def Mine(root):\n"
        "    x, y = np.random.default_rng(0).normal(size=(400, 4)), np.arange(400) % 4\n"
        "    made = hflray.Dataset.of(x, y, x, y)\n"
        "    return EXPR\n",
        "made",
        (
            "None", "(x, y)", "hflray.Dataset('a', x, y, x, y, 4)", "dataclasses.replace(made, y_test=y - 1)",
            "dataclasses.replace(made, x_train=made.x_train * np.float32('nan'))",
            "dataclasses.replace(made, groups=y[1:])",
        ),
        ("data.samples_per_device=[10, 12]",),
    ),
    "observer": Written(
        "observers",
        "class Mine(hflray.Observer):\n"
        "    def after(self, record):\n"
        "        mine = record.class_balance\n"
        "        return EXPR\n",
        "{'mine': mine}",
        (
            "mine", "{'mine': None}", "{'mine': float('nan')}", "{'mine': [1, 2]}", "{'mine': True}", "{'mine/1': 1.0}",
            "{'accuracy': 1.0}", "{1: 1.0}", "[('mine', 1.0)]",
        ),
    ),
    "local_rule": Written(
        "training.rule.name",
        "class Mine(hflray.training.rules.LocalRule):\n"
        "    extra = ('moved',)\n"
        "    vectors = (1, 1)\n"
        "    def finish(self, received, trained, rate, memory):\n"
        "        moved = trained - received.model\n"
        "        return EXPR\n",
        "(memory, {'moved': moved})",
        ("None", "memory", "(memory, moved)", "(memory, {'moved': moved * np.nan})", "(memory, {'moved': moved[1:]})"),
    ),
}  # fmt: skip
MORE = {  # further contracts of a kind, as (kind, setting, text, right, wrong)
    "loss with a reduction": ("loss", "training.loss",
        "def Mine(outputs, targets, reduction='mean'):\n"
        "    value = torch.nn.functional.cross_entropy(outputs, targets, reduction=reduction)\n"
        "    return EXPR\n",
        "value", ("torch.nn.functional.cross_entropy(outputs, targets)", "value.mean()")),
    "edge's aggregator": ("aggregator", "aggregation.edge.name",
        "class Mine(hflray.aggregation.OfModels):\n    def of_models(self, models, weights):\n"
        "        model = models.mean(axis=0)\n        return EXPR\n",
        "model", (
            "model[0]", "model * np.nan", "None", "model[1:]",
        )),
    "step of the cloud": ("aggregator", "aggregation.cloud.name",
        "class Mine(hflray.aggregation.OfUpdate):\n    def step(self, update, state):\n        return EXPR\n",
        "(update, state)", ("update", "(update[:1], state)", "(update / 0, state)", "None", "(update, 5)")),
    "edge's compressor": ("compressor", "compression.edge.name",
        "class Mine(hflray.compression.Compressor):\n    remembers = True\n"
        "    def bits(self, sizes):\n        return 16.0 * sum(sizes)\n"
        "    def send(self, update, sizes, rng, residual):\n        return EXPR\n",
        "(update, update * 0)", ("(update, update[1:])", "(update, update * np.nan)", "(update, 0.0)")),
    "bits of a compressor": ("compressor", "compression.device.name",
        "class Mine(hflray.compression.Compressor):\n    def bits(self, sizes):\n        return EXPR\n"
        "    def send(self, update, sizes, rng, residual):\n        return update, residual\n",
        "16 * sum(sizes)", (
            "None", "float('nan')", "sizes", "-1",
        )),
    "scheduler that assigns": ("scheduler", "scheduling.name",
        "class Mine(hflray.Scheduler):\n    def schedule(self, context):\n        return None\n"
        "    def schedule_and_assign(self, context):\n        devices = np.arange(self.num_scheduled)\n"
        "        edges = devices * 0\n        return EXPR\n",
        "(devices, edges)", (
            "devices", "(devices, edges * 1.0)", "(devices, edges - 1)", "None", "(devices * 0, edges)",
            "(devices, edges[1:])",
        )),
    "scheduler's state": ("scheduler", "scheduling.name",
        "class Mine(hflray.Scheduler):\n    def schedule(self, rng):\n        return np.arange(self.num_scheduled)\n"
        "    def state_dict(self):\n        state = super().state_dict()\n        return EXPR\n",
        "state", ("state | {'a': np.int64(3)}", "None", "[1]", "state | {'a': float('nan')}", "state | {'a': {1, 2}}")),
    "observer's end": ("observer", "observers",
        "class Mine(hflray.Observer):\n    def stops(self):\n        return EXPR\n",
        "np.bool_(False)", ("None", "0", "[False]", "True")),
    "observer's state": ("observer", "observers",
        "class Mine(hflray.Observer):\n    def state_dict(self):\n        return EXPR\n",
        "{'a': [1, 'b', None]}", ("{'a': np.ones(2)}", "None", "[1]", "{'a': float('nan')}", "{'a': {1, 2}}")),
    "state of the world": ("availability", "world.availability.name",
        "class Mine(hflray.world.availability.Availability):\n    def available(self, round_index, clock_s):\n"
        "        return np.ones(self.num_devices, bool)\n    def state_dict(self):\n        return EXPR\n",
        "{}", ("None", "[1]", "{'a': object()}", "{1: np.ones(2)}")),
    "rule's vectors and state": ("local_rule", "training.rule.name",
        "class Mine(hflray.training.rules.LocalRule):\n    vectors = (1, 1)\n    def start(self, size, num_edges):\n"
        "        return {'c': np.zeros(size, np.float32)}\n    def sends(self, state, edge):\n        c = state['c']\n"
        "        return EXPR\n",
        "{'c': c}", ("c", "{'c': c[1:]}", "{'c': c * np.nan}", "{'c': None}", "[c]")),
    "rule at the cloud": ("local_rule", "training.rule.name",
        "class Mine(hflray.training.rules.LocalRule):\n    makes_model = True\n    def cloud(self, report, state):\n"
        "        return EXPR\n",
        "(report.mean, state)", (
            "None", "report.mean", "(report.mean[1:], state)", "(report.mean * np.nan, state)",
            "(report.mean, None)",
        )),
    "rule's correction": (
        "local_rule",
        "training.rule.name",
        "class Mine(hflray.training.rules.LocalRule):\n"
        "    def correction(self, weights, received, vectors, memory):\n        pull = 0.1 * (weights - received)\n"
        "        return EXPR\n",
        "pull",
        (
            "pull[:, 1:]", "0.1", "pull / pull.norm()", "[pull]",
        ),
    ),
    "rule that scales": ("local_rule", "training.rule.name",
        "class Mine(hflray.training.rules.LocalRule):\n    def scales(self, place, steps, weights, momentum):\n"
        "        return EXPR\n",
        "(np.ones(len(steps)), 1.0)", (
            "np.ones(len(steps))", "(np.ones(len(steps) + 1), 1.0)", "(np.ones(len(steps)) * np.nan, 1.0)",
            "(np.ones(len(steps)), None)",
        )),
    "rule's memory": ("local_rule", "training.rule.name",
        "class Mine(hflray.training.rules.LocalRule):\n    memory = ('m',)\n    def begin(self, received, memory):\n"
        "        m = np.zeros_like(received.model)\n        return EXPR\n",
        "{'m': m}", ("None", "m", "[m]", "{'m': object()}")),
}  # fmt: skip
PARTS |= {name: Written(setting, text, right, wrong) for name, (kind, setting, text, right, wrong) in MORE.items()}
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
    with pytest.raises(ConfigError) as error:
        contract.array(value, shape, type_, low=0, high=8, where=" for device 3")
    assert says(str(error.value), "a.setting: own.py:Mine returned ", " for device 3; accepted: what is right; correct")


def test_every_kind_has_a_contract_here() -> None:
    kinds = {name: MORE[name][0] if name in MORE else name for name in PARTS}
    elsewhere = {"sink", "figure"}  # tests/tracking/test_sender.py and tests/report/test_figures.py
    assert set(kinds.values()) == set(registry.BUILTIN) - elsewhere
    assert all(named_settings()[part.setting] == kinds[name] for name, part in PARTS.items())


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


LATER = {  # what is right when it is tried, and wrong in round 2
    "fading": "drawn * (1 if np.min(indices[0]) < 2 else np.nan)",
    "availability": "up if round_index < 2 else up * 1.0",
    "mobility": "there + 1e6",
    "scheduler": "first if context.round < 2 else first * 0",
    "assigner": "edges - (len(vars(self).setdefault('n', []).__iadd__([1])) > 1)",
    "observer": "{'mine': 1.0 if record.round < 2 else 'much'}",
    "observer's end": "False if len(vars(self).setdefault('n', []).__iadd__([1])) < 2 else 1",
    "aggregator": "(model if frame.round < 2 else model * np.nan, state)",
    "edge's aggregator": "model if len(vars(self).setdefault('n', []).__iadd__([1])) < 3 else model * np.nan",
    "step of the cloud": "(update / 0 if state else update, {'a': np.ones(1)})",
    "compressor": "(update if len(vars(self).setdefault('n', []).__iadd__([1])) < 13 else update[1:], residual)",
    "metric": "value if len(vars(Mine).setdefault('n', []).__iadd__([1])) < 3 else None",
}


@pytest.mark.parametrize("kind", LATER)
def test_what_a_part_returns_wrongly_in_a_later_round_is_one_line_too(kind: str, tmp_path: Path) -> None:
    experiment = Experiment(configured(kind, LATER[kind], tmp_path, "world.mobility.slot_s=0.001"))
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
