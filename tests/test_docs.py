"""The documentation agrees with the code: its Python runs, its commands are valid, and generated pages are complete."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import hflray
from hflray import metrics, registry
from hflray.command import check
from hflray.config import ExperimentConfig, TrackingConfig, flatten, named_settings
from hflray.config.decisions import LimitsConfig
from hflray.config.system import GossipConfig, RegionConfig
from hflray.experiment import Experiment
from hflray.scheduling import RoundContext, choose_devices
from hflray.support import live_metrics, pinned
from hflray.support.terminal.app import exit_code
from hflray.sweep import expand, load_sweep
from hflray.sweep.tasks import Job, find_task
from hflray.tracking import Tracker
from hflray.tune import cli
from tests import blocks as runner
from tests.blocks import Block, blocks
from tests.conftest import says, small_config
from tests.scheduling import toy

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def python_of(page: str) -> str:
    """Return the block of Python after the comment ``<!-- runs -->`` of a page."""
    (block,) = [one.text for one in blocks(text_of(page)) if one.comment == "<!-- runs -->"]
    return block


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """Return the module that makes the generated pages, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("pages", DOCS / "_ext" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Texts that people wrote


@pytest.mark.parametrize("page", [*PAGES, "../README.md", "../tune_configs/RESULTS.md"])
def test_a_table_has_a_rule_for_each_heading_or_it_is_no_table(page: str) -> None:
    lines = text_of(page).splitlines()
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    rules = [number for number, line in enumerate(lines) if re.fullmatch(r"(\|\s*:?-+:?\s*)+\|", line)]
    assert [lines[number - 1] for number in rules if cells[number - 1] != cells[number]] == []


def test_the_notebook_example_runs(capsys, tmp_path, monkeypatch) -> None:
    names: dict[str, Any] = {}
    exec(python_of("howto/notebook.md"), names)
    assert len(capsys.readouterr().out.splitlines()) == 2
    (kept,) = [block.text for block in blocks(text_of("howto/notebook.md")) if block.comment == "<!-- runs too -->"]
    monkeypatch.chdir(tmp_path)
    exec(kept, names | {"config": names["config"].model_copy(update={"tracking": TrackingConfig(sinks=())})})
    assert capsys.readouterr().out.splitlines()[2].startswith("run")
    (after,) = [block.text for block in blocks(text_of("howto/notebook.md")) if "state_dict" in block.text]
    exec(after, names)
    assert names["later"].round == names["experiment"].round == 2
    names["later"].close()


def test_the_debugger_stops_in_the_training_of_the_device_that_the_page_names(tmp_path) -> None:
    (tmp_path / "loop.py").write_text(python_of("howto/notebook.md"), encoding="utf-8")
    (line,) = re.findall(r"^python -m pdb .*$", text_of("howto/notebook.md"), flags=re.M)
    words = shlex.split(line)
    done = subprocess.run(
        [sys.executable, *words[1:]], input="p ('stopped', start.device)\nq\n", cwd=tmp_path, capture_output=True,
        text=True, timeout=300, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "('stopped', 3)" in done.stdout, done.stdout + done.stderr


def test_the_page_of_contracts_has_every_kind_with_its_settings() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text_of("reference/parts.md"), flags=re.M)
    said = {kind: set(re.findall(r"`([\w.]+)`", settings)) for kind, settings in rows}
    settings = {kind: {key for key, each in named_settings().items() if each == kind} for kind in registry.GROUPS}
    assert said == settings


def test_the_example_scheduler_runs_through_the_registry(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_ADDED", {})
    names: dict[str, Any] = {"__name__": "docs"}
    exec(python_of("howto/scheduler.md"), names)
    (register,) = [block.text for block in blocks(text_of("howto/scheduler.md")) if "register(" in block.text]
    exec(register, names)
    scheduler = registry.build("scheduler", "carousel", num_devices=5, num_scheduled=3, clusters=None)
    rng = np.random.default_rng(0)
    assert [scheduler.schedule(rng).tolist() for _ in range(3)] == [[0, 1, 2], [0, 3, 4], [1, 2, 3]]
    other = registry.build("scheduler", "carousel", num_devices=5, num_scheduled=3, clusters=None)
    other.load_state_dict(scheduler.state_dict())
    assert other.schedule(rng).tolist() == [0, 1, 4]


def test_the_example_network_is_accepted_and_trains(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_ADDED", {})
    names: dict[str, Any] = {"__name__": "docs"}
    exec(python_of("howto/model.md"), names)
    assert names["config"].model.options == {"width": 4}
    experiment = Experiment(small_config("model={name: thin, options: {width: 4}}", "max_rounds=1"))
    assert experiment.work.model_bits == 32 * (4 * 26 + 10 * (4 * 8 * 8 + 1))
    first = experiment.global_model
    assert not np.array_equal(first, experiment.run_round() and experiment.global_model)


def test_the_example_of_a_scheduler_that_sees_prefers_high_losses() -> None:
    names: dict[str, Any] = {"__name__": "docs"}
    exec(python_of("howto/scheduler.md"), names)
    (sees,) = [one.text for one in blocks(text_of("howto/scheduler.md")) if one.comment == "<!-- runs too -->"]
    exec(sees, names)
    scheduler = names["HighestLoss"](num_devices=5, num_scheduled=2)
    context = toy.context(toy.fleet(np.ones((5, 1))), last_loss=[0.1, 0.9, np.nan, 0.5, 0.7])
    assert choose_devices(scheduler, context).tolist() == [1, 2]
    rest = toy.context(toy.fleet(np.ones((5, 1))), last_loss=np.ones(5), available=[False, False, True, False, False])
    assert choose_devices(scheduler, rest).tolist() == [2]


def test_the_examples_of_physics_are_parts_that_can_be_billed(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    parts = [one.text for one in blocks(text_of("howto/physics.md")) if one.comment == "<!-- mine.py -->"]
    Path("mine.py").write_text("\n\n".join(parts), encoding="utf-8")
    assert exit_code(check.app, ["mine.py"], "hflray check") == 0
    assert re.findall(r"^(\w+) +(\w+) .*: ok$", capsys.readouterr().out, re.M) == [
        ("access", "Guarded"),
        ("compute", "Cool"),
        ("download", "Listening"),
    ]
    names = {"access": "Guarded", "compute": "Cool", "download": "Listening"}
    config = small_config(*(f"cost.{kind}.name=mine.py:{name}" for kind, name in names.items()), "max_rounds=1")
    experiment = hflray.Experiment(config)
    (record,) = experiment
    logged = record.metrics()
    assert logged["round/download_s"] > 0
    trips = experiment.work.edge_iterations * len(np.unique(record.plan.schedule.edges))
    assert logged["round/download_bits"] == trips * experiment.work.download_bits  # once an edge


def test_the_library_is_used_without_ray(tmp_path) -> None:
    program = tmp_path / "program.py"
    (after,) = [one.text for one in blocks(text_of("howto/library.md")) if one.comment == "<!-- runs after -->"]
    asked = 'import sys\nprint(values.shape, "ray" in sys.modules)\n'
    program.write_text(f"{python_of('howto/library.md')}\n{after}\n{asked}")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, check=True)
    bill, *shares, rest = done.stdout.splitlines()
    assert len("".join(shares).strip("[]").split()) == 10
    assert re.fullmatch(r"[\d.]+ s, [\d.]+ J, [\d.]+% above a lower bound at most", bill)
    assert rest == "(10, 3) False"


def test_the_example_of_a_data_set_is_one_and_a_network_learns_it(monkeypatch, tmp_path) -> None:
    names: dict[str, Any] = {"__name__": "docs"}
    exec(python_of("howto/data.md"), names)
    monkeypatch.setitem(registry._ADDED, ("dataset", "lines"), names["load"])
    config = small_config("data.name=lines", "model.name=mlp", "training.learning_rate=0.1", "target.value=0.8",
                          "max_rounds=20")  # fmt: skip
    *_, last = hflray.Experiment(config)
    assert (last.metric, last.score >= 0.8) == (metrics.R2, True)


def test_the_page_of_data_lists_every_data_set() -> None:
    text = text_of("howto/data.md").partition("Only `fashion_mnist`")[0]
    assert [name for name in registry.BUILTIN["dataset"] if f"`{name}`" not in text] == []


def test_every_scheduler_is_explained_with_its_options_and_their_defaults() -> None:
    text = text_of("explanation/schedulers.md")
    common = {"self", "num_devices", "num_scheduled", "clusters"}
    options = {}
    for name in registry.BUILTIN["scheduler"]:
        assert f"| `{name}` |" in text
        parameters = inspect.signature(registry.resolve("scheduler", name)).parameters.values()
        options |= {f"{name}.{p.name}": p.default for p in parameters if p.name not in common}
    listed = dict(re.findall(r"^\| `(\w+\.\w+)` \| (\S+) \|", text, flags=re.M))
    assert {name: "null" if default is None else str(default) for name, default in options.items()} == listed


@pytest.mark.parametrize("kind", ["local_rule", "aggregator", "compressor"])
def test_every_part_inside_the_round_is_explained_with_its_options(kind: Any) -> None:
    text = text_of("explanation/inside.md")
    for name in registry.BUILTIN[kind]:
        rows = [line.split(" | ")[1] for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        options = [
            p for p in inspect.signature(registry.resolve(kind, name)).parameters.values() if p.kind != p.VAR_POSITIONAL
        ]
        options = [p for p in options if p.kind != p.VAR_KEYWORD]
        assert rows, name
        if name != "fedyogi":  # it has the options of fedadam
            assert {tuple(re.findall(r"`(\w+)`", row)) for row in rows} == {tuple(p.name for p in options)}, name
        for p in options if name != "fedyogi" else []:
            form = r"(\w+)" if isinstance(p.default, str) else r"([\d.e-]+)"
            (given,) = {value for row in rows for value in re.findall(rf"`{p.name}` {form}", row)} or {None}
            said = given if isinstance(p.default, str) or given is None else float(given)
            assert p.default in (p.empty, None) or said == p.default, (name, p.name)


@pytest.mark.parametrize(
    "page, kind",
    [("explanation/world.md", kind) for kind in ("availability", "fading", "mobility")] + [("howto/model.md", "model")],
)
def test_every_other_part_is_listed_with_its_options(page: str, kind: Any) -> None:
    given = {"self", "num_devices", "seed", "position_m", "area_m", "slot_s", "fleet", "names", "input_shape"}
    for name in set(registry.BUILTIN[kind]) - {"torchvision:"}:
        rows = " ".join(line for line in text_of(page).splitlines() if line.startswith(f"| `{name}` |"))
        options = set(inspect.signature(registry.resolve(kind, name)).parameters) - {*given, "num_outputs"}
        assert rows, name
        assert [option for option in sorted(options) if f"`{option}`" not in rows] == [], name


def test_the_timelines_are_read_as_the_page_of_the_world_says(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    config = small_config("scheduling.name=fedavg", "max_rounds=3", "world.dropout.rate_per_s=0.1")
    tracker = Tracker("unused", "e", "world-1", tmp_path / "hflray_results" / "world-1", sinks=())
    tracker.start("t", "t", config, {})
    wasted = []
    for result in find_task("experiment").run(Job(config)):
        tracker.round("t", result.step, result.metrics, timeline=result.timeline)
        wasted.append(result.metrics[metrics.ROUND_WASTED_J])
    tracker.timeline("t")
    exec(python_of("explanation/world.md"), {})
    told = re.findall(r"^(?:t.csv.gz)? +(\d) +([\d.e-]+)$", capsys.readouterr().out, flags=re.M)
    assert {int(number): float(joules) for number, joules in told} == {
        number: pytest.approx(joules, rel=1e-3) for number, joules in enumerate(wasted, 1) if joules
    }
    assert sum(joules > 0 for joules in wasted) > 1


def test_the_pictures_can_be_drawn_from_the_committed_exports() -> None:
    make = runpy.run_path(str(DOCS / "images" / "make.py"))
    rows, panels = make["draw"]().axes, make["draw_inside"]().axes
    assert [len(axes.patches) for axes in rows] == [len(make["ROWS"])] * 2
    shown = [text.get_text() for axes in panels for text in axes.get_legend().get_texts()]
    assert shown == [
        *("whole models", "qsgd 7", "sign", "top_k 0.01", "top_k 0.1", "H = 100", "H = 200"),
        *("mean", "median", "trimmed mean", "krum", "multi krum", "geometric median"),
    ]


def test_what_a_scheduler_sees_is_listed() -> None:
    text = text_of("howto/scheduler.md")
    fields = {field.name for field in dataclasses.fields(RoundContext)} - {"poll"} | {"poll_loss(devices)"}
    assert [name for name in sorted(fields) if f"`{name}`" not in text] == []


@pytest.fixture
def own(tmp_path) -> Path:
    """Write the files of the page "Bring your own" into a folder, and return the sweep file."""
    page = blocks(text_of("howto/own.md"))
    (python,) = [one.text for one in page if one.comment == "<!-- own.py -->"]
    (sweep,) = [one for one in page if one.file]
    (tmp_path / "own.py").write_text(python, encoding="utf-8")
    path = tmp_path / sweep.file
    path.write_text(sweep.text, encoding="utf-8")
    return path


def test_a_newcomers_model_and_data_set_are_short_and_learn(own) -> None:
    text = (own.parent / "own.py").read_text()
    model, data = text.partition("class Net")[2].partition("\n\n\ndef load")[::2]
    assert len([line for line in model.splitlines() if line.strip()]) <= 12
    assert len([line for line in data.splitlines() if line.strip()]) <= 8
    trials = expand(load_sweep(own))
    assert [trial.name.partition("-H")[0] for trial in trials] == ["load", "load"]
    serial = trials[0].config.training.model_copy(update={"backend": "serial"})
    with Experiment(trials[0].config.model_copy(update={"training": serial})) as experiment:
        assert experiment.scenario.dataset.name == "own.py:load"
        *before, last = experiment
        assert last.accuracy > 0.9
        assert last.metrics()["macro_f1"] >= 0.95 > max((one.metrics()["macro_f1"] for one in before), default=0)


@pytest.mark.parametrize(
    "page, file, trials",
    [("howto/sweeps.md", "my_sweep.yaml", 6), ("howto/sweeps.md", "population.yaml", 8),
     ("explanation/world.md", "world.yaml", 1),
     ("explanation/inside.md", "private.yaml", 1),
     ("start/tutorial.md", "first.yaml", 4)],
)  # fmt: skip
def test_the_example_sweeps_are_valid(page, file, trials, tmp_path) -> None:
    (block,) = [one for one in blocks(text_of(page)) if one.file == file]
    (tmp_path / file).write_text(block.text, encoding="utf-8")
    assert len(expand(load_sweep(tmp_path / file))) == trials


def checked_commands() -> list[str]:
    (block,) = [one for one in blocks(text_of("howto/sweeps.md")) if one.comment == "<!-- checked commands -->"]
    return [line.partition("#")[0].strip() for line in block.text.splitlines()]


@pytest.mark.parametrize("command", checked_commands())
def test_every_command_is_valid(command: str, monkeypatch, tmp_path) -> None:
    program, subcommand, *words = command.split()
    assert (program, subcommand) == ("hflray", "tune")
    arguments = [str(ROOT / word) if word.startswith("tune_configs/") else word for word in words]
    here = ["--set", "data.name=synthetic", "--set", "data.split=stratified"]
    data = [] if "--smoke" in arguments or not any("fashion" in a for a in arguments) else here
    monkeypatch.setattr(sys, "argv", ["hflray.tune", *arguments, *data, "--dry-run"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code


def test_the_loop_over_long_sweeps_resumes_one_and_skips_what_has_ended(tmp_path) -> None:
    (loop,) = [one.text for one in blocks(text_of("howto/queue.md")) if one.comment == "<!-- the loop -->"]
    said = tmp_path / "said"
    fake = """#!/bin/bash
    echo "$@" >> said
    [ -e interrupt ] && rm interrupt && kill -INT $PPID && exit 130
    [ "$1" = report ] && mkdir -p exports && touch "exports/$2.zip"
    [[ "$*" != *fig5_ceilings.yaml* && "$*" != *"${broken:-none}"* ]]
    """
    (tmp_path / "hflray").write_text(fake, encoding="utf-8")
    (tmp_path / "hflray").chmod(0o755)
    (tmp_path / "interrupt").touch()

    def calls(broken: str = "none") -> list[str]:
        said.write_text("", encoding="utf-8")
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "broken": broken}
        subprocess.run(["bash", "-c", loop], cwd=tmp_path, env=env, timeout=60, check=False)
        return said.read_text(encoding="utf-8").splitlines()

    begin = "tune tune_configs/{}.yaml --cpus 2"
    resume, report = "tune --resume {} --cpus 2", "report {} --export exports --brief"
    one, other = "fig5_ceilings", "fig5_fewer_draws"
    assert calls() == [begin.format(one)]  # Ctrl-C
    assert calls(broken=other) == [
        *(each.format(one) for each in (begin, resume, report)),
        *(each.format(other) for each in (begin, resume, resume)),
    ]
    assert calls() == [begin.format(other), report.format(other)]
    assert calls() == []
    assert [load_sweep(ROOT / "tune_configs" / f"{name}.yaml").name for name in (one, other)] == [one, other]


MORE = ("../README.md", "../CONTRIBUTING.md")  # pages beside the documentation


def test_every_link_leads_to_a_file() -> None:
    links = [
        (page, target.partition("#")[0])
        for page in (*PAGES, *MORE)
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S))
    ]
    assert len(links) > 60
    wrong = [each for each in links if "://" not in each[1] and not ((DOCS / each[0]).parent / each[1]).exists()]
    assert wrong == []


def test_every_make_target_and_shipped_file_that_is_named_exists() -> None:
    text = "\n".join(text_of(page) for page in (*PAGES, *MORE))
    named = set(re.findall(r"`make ([a-z-]+)", text))
    assert len(named) > 6
    assert named <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    files = set(re.findall(r"\b((?:tune_configs|examples)/[\w/]+\.(?:yaml|py|json))", text))
    assert len(files) > 5
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_the_paper_is_short_and_cites_what_it_lists() -> None:
    text = (DOCS / "paper" / "paper.md").read_text(encoding="utf-8").split("---", 2)[2]
    assert 700 < len(text.split()) <= 1000
    listed = set(re.findall(r"^@\w+\{(\w+),", (DOCS / "paper" / "paper.bib").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"@(\w+)", text)) == listed


def test_each_number_of_the_paper_has_a_command_and_a_page_that_holds_it() -> None:
    text = " ".join((DOCS / "paper" / "paper.md").read_text(encoding="utf-8").split())
    table = (DOCS / "paper" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if line.startswith("| ")][1:]
    assert len(rows) >= 8
    for phrase, _, place in rows:
        assert all(each in text for each in phrase.split(", ")), phrase
        held = (ROOT / place).read_text(encoding="utf-8")
        for number in re.findall(r"[0-9.]*[0-9]", phrase) if place.endswith(".md") else ():
            assert number in held, (number, place)


def test_the_equations_of_the_cost_model_have_the_papers_numbers() -> None:
    numbers = re.findall(r"\\tag\{(\d+)\}", text_of("explanation/cost-model.md"))
    assert numbers == [*map(str, (4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)), "27"]


def test_every_key_in_the_texts_exists() -> None:
    """A dotted key such as `fleet.num_devices`, in backquotes, is a setting."""
    known = set(flatten(ExperimentConfig().model_dump(mode="json")))
    known |= {key.rpartition(".")[0] for key in known if key.count(".") > 1}  # sections, such as clock.edge
    known |= {f"{section}.options" for section in ("scheduling", "assignment", "model", "world.availability")}
    known |= {"learning.teacher", "data.root", "data.partition_options", "data.options", "fleet.options"}
    known |= {*pinned.SETTINGS, "data.options.kind", "data.options.unmatched", "data.partition_options.unmatched"}
    for name, level in (("region", RegionConfig(count=1)), ("gossip", GossipConfig())):
        known |= {f"tree.{name}", *(f"tree.{name}.{key}" for key in flatten(level.model_dump(mode="json")))}
    known |= {"allocation.limits", *(f"allocation.limits.{key}" for key in LimitsConfig.model_fields)}
    for kind in ("access", "compute", "download"):
        known |= {f"cost.{kind}", f"cost.{kind}.name", f"cost.{kind}.options"}
    heads = {key.partition(".")[0] for key in known if "." in key}
    wrong = [
        f"{page}: {key}"
        for page in PAGES
        if "<!-- generated: " not in text_of(page)  # what is made from the code names modules as well
        for key in re.findall(r"`((?:[a-z_]+)\.[a-z_.]+?)(?:[:=][^`]*)?`", text_of(page))
        if key.partition(".")[0] in heads and key not in known
        and not key.endswith((".py", ".md", ".yaml", ".webp", ".safetensors"))
        and not (DOCS.parent / "hflray" / key).exists()
    ]  # fmt: skip
    assert wrong == []


def commands_of(text: str) -> set[tuple[str, ...]]:
    """Return the words of each command ``hflray …`` in code, in a line of a block or between backquotes."""
    code = [line for block in blocks(text) for line in block.text.splitlines()]
    code += re.findall(r"`(hflray [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    lines = (line.partition(" #")[0].strip() for line in code)
    return {tuple(line.split()[1:]) for line in lines if re.match(r"hflray [a-z]", line)}


def test_every_subcommand_and_option_of_the_texts_exists() -> None:
    command = pytest.importorskip("hflray.command.cli", reason="the command hflray is not there yet")
    texts = [text_of(page) for page in PAGES] + [(ROOT / "README.md").read_text(encoding="utf-8")]
    lines = set().union(*map(commands_of, texts))
    assert len(lines) > 20
    for name, *words in lines:
        assert name in command.COMMANDS, name
        part = command.load(name)
        while words and words[0] in getattr(part, "commands", {}):
            part = part.commands[words.pop(0)]
        flags = {flag for one in part.params for flag in one.opts}
        if hasattr(part, "commands"):  # `hflray report NAME` stands for `hflray report show NAME`
            flags |= {flag for one in part.commands.get("show", part).params for flag in one.opts}
        unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - flags - {"--help"}
        assert unknown == set(), f"hflray {name} {' '.join(words)}"


# Pages made from the code


def test_the_glossary_is_complete(made) -> None:
    text = made.glossary()
    edges = {f"edge/<m>/{quantity}" for quantity in ("delay_s", "energy_j", "devices", "accuracy")}
    edges |= {f"region/<r>/{quantity}" for quantity in ("delay_s", "energy_j")}
    assert {row.name for row in metrics.PER_EDGE} == edges
    listed = re.findall(r"^\| `([^`]+)` \| (\S+) \| [^|]+ \| [^|]{5,} \|$", text, flags=re.M)
    units = dict(listed)
    assert set(metrics.METRICS) | edges == set(units)
    assert all(metrics.describe(name).unit == units[name] for name in metrics.METRICS)
    assert all(f"`{live.exported}`" in text for live in live_metrics.LIVE)
    assert [row.name for row in (*metrics.METRICS.values(), *metrics.PER_EDGE) if not row.meaning] == []


def test_every_setting_is_listed_with_its_default_and_meaning(made) -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| (.+?) \| (`.*?`|) \| (.*?) \| (.*) \|$", made.experiment_settings(), flags=re.M
    )
    listed = {key: (accepted, default, meaning) for key, accepted, default, _, meaning in rows}
    assert set(flatten(ExperimentConfig().model_dump(mode="json"))) <= set(listed)
    assert listed["scheduling.num_scheduled"] == (
        "an integer at least 1", "`50`", "H, the devices that train in a round",
    )  # fmt: skip
    assert all(meaning for _, _, meaning in listed.values())
    text = made.sweep_settings()
    assert all(f"`{key}`" in text for key in ("tune.samples", "tune.search.metric", "sweep.KEY.grid", "task"))


def test_every_public_name_is_in_the_api(made) -> None:
    text = made.api()
    assert {*re.findall(r"^### (\w+)$", text, flags=re.M), "__version__"} == set(hflray.__all__)
    assert "`allocate_round(fleet, work, devices, assignment, method='newton', coupling='per_edge')`" in text
    assert "* `devices`: the scheduled devices, (H,) indices." in text


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- generated: " in text_of(page)])
def test_what_is_made_from_the_code_is_that_of_this_code(page, made, monkeypatch) -> None:
    monkeypatch.setattr(registry, "_ADDED", {})  # parts that other tests have registered in this process
    assert made.renewed(text_of(page)) == text_of(page), "run make reference"


def test_the_page_of_benchmarks_shows_each_table_with_its_date(made, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(made, "KEPT", tmp_path)
    assert made.benchmarks().startswith("*Not measured*")
    about = {"date": "2026-11-22T08:30:00Z", "busy": True, "others_cpus": 0.1, "status": "measured", "message": ""}
    table = about | {"title": "an edge", "notes": ["a note"], "columns": [["name", "solver", "s"], ["us", "µs", ".1f"]],
                     "rows": [{"name": "newton", "us": 10.04}], "ratios": {"over cvxpy": 880.4}}  # fmt: skip
    failed = about | {"status": "failed", "message": "it ended with code 1", "ratios": {}}
    kept = {"commit": "0123456789abcdef", "bare_loops": {"ratio": 1.9},
            "machine": {"cpu": "A CPU", "cores": 2, "memory_gib": 7.7, "system": "Linux"},
            "tables": {"allocation/one thread": table, "scale/steps": failed}}  # fmt: skip
    (tmp_path / "cpu.json").write_text(json.dumps(kept), encoding="utf-8")
    text = made.benchmarks()
    assert says(text, "## A CPU", "2 cores", "`0123456789ab`", "1.90", "*Not measured*", "sweep/overhead")
    assert says(text, "an edge", "2026-11-22", "08:30 UTC", "too busy", "| newton | 10.0 |", "| over cvxpy | 880 × |")
    assert says(text, "scale/steps", "*not measured*", "it ended with code 1")


# The blocks of README and tutorial


def test_a_block_runs_in_its_folder_and_its_failure_is_seen(tmp_path) -> None:
    page = "```bash\ntrue\n```\n\n<!-- test command -->\n```bash\nfalse\n```\n\n```yaml\n# a.yaml\nx: 1\n```\n"
    assert [block.runs for block in blocks(page)] == [True, False, True]
    home = tmp_path / "home"
    assert runner.run(blocks(page)[2], tmp_path, home).status == 0
    listed = runner.run(Block("bash", "cat a.yaml; echo $HOME\n"), tmp_path, home)
    assert (listed.status, listed.output) == (0, f"# a.yaml\nx: 1\n{home}\n")
    assert runner.run(Block("bash", "false | true\n"), tmp_path, home).status == 1
    assert runner.run(Block("bash", "sleep 9\n"), tmp_path, home, limit_s=0.2).status == 124


def test_the_pages_have_blocks_to_run() -> None:
    counts = [sum(block.runs for block in blocks((ROOT / page).read_text(encoding="utf-8"))) for page in runner.PAGES]
    assert counts == [3, 9]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", runner.PAGES, ids=str)
def test_each_block_runs_in_a_new_environment(page, tmp_path) -> None:
    outcomes = runner.run_page(page, tmp_path)
    assert [one.output[-2000:] for one in outcomes if one.status] == []
    assert len(outcomes) > 2
