"""`hflray.reproduction.queue.items`: the list of the queue, the state of an item, and its progress."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hflray.errors import ConfigError
from hflray.reproduction.queue import items
from hflray.reproduction.queue.command import LIST
from hflray.reproduction.queue.items import (
    Item,
    Progress,
    QueueFile,
    State,
    find_item,
    is_exported,
    load_items,
    progress,
)
from hflray.sweep import expand, load_sweep

ROOT = Path(__file__).parents[3]
SHIPPED = load_items(ROOT / LIST)


def has_sweep_file(item: Item) -> bool:
    return (ROOT / item.path).exists()


def trials(item: Item) -> list[str]:
    return list(items.trials_of(items.sweep_of(ROOT, item, SHIPPED.experiments)[0]))


@pytest.mark.parametrize("file", ["fig3_fashion_scheduling", "fig4_cifar_scheduling", "fig7_framework"])
def test_the_shipped_list_has_every_run_of_a_figure_once(file: str) -> None:
    names = Counter(name for item in SHIPPED.items if item.exhibit == file for name in trials(item))
    shipped = {trial.name for trial in expand(load_sweep(ROOT / "tune_configs" / f"{file}.yaml"))}
    assert shipped <= set(names)
    assert all(name.endswith(("-s5", "-s6", "-s7", "-s8", "-s9")) for name in set(names) - shipped)
    assert set(names.values()) == {1}


def test_the_shipped_list_begins_with_what_settles_most_for_the_least_time() -> None:
    names = [f"{item.exhibit.partition('_')[0]} {item.part}" for item in SHIPPED.items]
    assert names[:3] == ["fig3 h10", "fig3 h10_seeds1to4", "fig3 h30"]
    assert names[3:10] == ["fig3 h30_seeds12", "fig3 h30_seeds34", *(f"fig3 h10_seed{seed}" for seed in range(5, 10))]
    assert names[10:14] == [f"fig7 fashion_{part}" for part in ("h50", "h50_seeds12", "h100", "h100_seeds12")]
    assert names[14:26] == [
        "fig7 fashion_h30_seed1",
        "fig3 h10_seeds01",
        "fig3 h10_seeds234",
        "fig5 ceilings_units256",
        "fig5 ceilings_units64",
        "fig5 fewer_draws_units256",
        "fig5 fewer_draws_units256_seeds12",
        "fig5 steps300000_units256_db_buffer50000",
        "fig3 h10_seeds567",
        "fig3 h10_seeds89",
        "fig4 h10",
        "fig4 h10",
    ]


@pytest.mark.parametrize("item", [item for item in SHIPPED.items if has_sweep_file(item)], ids=lambda item: item.name)
def test_every_shipped_item_is_valid_and_trains_in_bf16(item: Item) -> None:
    """An exhibit has one precision.

    HierFAVG began before its network had a kernel for bfloat16, and a run in float32 is compared with Figure 4's.
    """
    file, overrides = items.sweep_of(ROOT, item, SHIPPED.experiments)
    assert ("training.precision=bf16" in overrides) == (file.task == "experiment")
    precision = "float32" if item.paper == "hierfavg" or item.exhibit.endswith("float32") else "bf16"
    assert all(trial.config.training.precision == precision for trial in expand(file)) or file.task != "experiment"
    assert all(total > 0 for total in items.trials_of(file).values())


def test_a_papers_item_is_a_sweep_file_of_its_folder() -> None:
    item = Item(exhibit="mtgc", part="seed0", paper="mtgc", file="mtgc")
    assert item.path == "hflray/reproduction/mtgc/mtgc.yaml"
    assert {one.path for one in SHIPPED.items if one.paper} == {
        f"hflray/reproduction/{name}/{name}.yaml" for name in ("mtgc", "hierfavg", "asynchfl", "niidbench")
    }


def test_learning_counts_steps_unless_a_time_limit_ends_it(tmp_path) -> None:
    (tmp_path / "learn.yaml").write_text("task: train_assigner\nexperiment: {learning: {minutes: 5, env_steps: 700}}\n")
    assert list(items.trials_of(load_sweep(tmp_path / "learn.yaml")).values()) == [0]
    assert list(items.trials_of(load_sweep(tmp_path / "learn.yaml", ["learning.minutes=null"])).values()) == [700]


def test_two_items_of_one_name_are_refused(tmp_path) -> None:
    line = "  - {exhibit: fig3, part: h10, file: fig3}\n"
    (tmp_path / "list.yaml").write_text(f"items:\n{line}{line}")
    with pytest.raises(ConfigError, match="two are called fig3-h10; give every part"):
        load_items(tmp_path / "list.yaml")


def test_find_item_accepts_a_name_or_a_path() -> None:
    queue = QueueFile(items=[Item(exhibit="fig3", part="h10", file="fig3")])
    assert find_item(queue.items, "fig3-h10") is find_item(queue.items, "fig3/h10") is queue.items[0]
    with pytest.raises(ConfigError, match=r"fig3-h1: no such item; did you mean 'fig3-h10'\?"):
        find_item(queue.items, "fig3-h1")


def test_the_state_loads_as_it_was_saved_and_damage_is_named(tmp_path) -> None:
    assert State.load(tmp_path) == State()
    state = State("stopped", "abc", "/usr/bin/python", ["numpy==2"], ["seed=0"], {"a-λ1": 60}, 2, 7, 1.5, "no")
    state.save(tmp_path)
    assert State.load(tmp_path) == state
    (tmp_path / items.STATE).write_text('{"stage": "run')
    with pytest.raises(ConfigError, match=r"state\.json: cannot be read .* drop the item"):
        State.load(tmp_path)


def journal(results: Path, trial: str, entries: list[dict[str, Any]], tail: str = "") -> None:
    path = results / "sweep-20260101-000000" / "journal" / f"{trial}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries) + tail)


def rounds(*times_s: float, first: int = 1) -> list[dict[str, Any]]:
    return [{"round": n, "time": int(1000 * t), "metrics": {}} for n, t in enumerate(times_s, first)]


def test_progress_counts_rounds_and_its_rate_excludes_the_pause(tmp_path) -> None:
    begin: dict[str, Any] = {"start": 0, "name": "a"}
    # The sweep was stopped for an hour after round 3. The second start is the resume, and the last line is incomplete.
    journal(tmp_path, "a", [begin, *rounds(10, 20, 30), begin, *rounds(3630, 3640, first=4)], tail='{"round": 6, "ti')
    assert progress({"a": 8, "b": 8}, tmp_path) == Progress(done=5, total=16, rate_s=10.0)
    assert progress({"a": 8, "b": 8}, tmp_path).remaining_s == 110.0
    assert progress({"a": 8, "b": 8}, tmp_path, cpus=2).rate_s == 5.0


def test_a_trial_that_ended_early_counts_as_done(tmp_path) -> None:
    ended: list[dict[str, Any]] = [{"start": 0}, *rounds(10, 20), {"end": "FINISHED", "error": None, "time": 20000}]
    journal(tmp_path, "a", ended)
    assert progress({"a": 150}, tmp_path) == Progress(done=2, total=2, rate_s=10.0)
    journal(tmp_path, "a", [*ended, {"start": 30000}])  # the trial continues after a failure
    assert progress({"a": 150}, tmp_path).total == 150


def test_progress_counts_the_steps_of_learning(tmp_path) -> None:
    entries = [{"round": step, "time": 100 * step, "metrics": {}} for step in (1000, 2000, 3000)]
    journal(tmp_path, "a", entries)
    assert progress({"a": 30000}, tmp_path) == Progress(done=3000, total=30000, rate_s=pytest.approx(0.1))


def test_there_is_no_rate_before_the_second_round(tmp_path) -> None:
    assert progress({"a": 8}, tmp_path) == Progress(0, 8, None)
    journal(tmp_path, "a", rounds(10))
    assert progress({"a": 8}, tmp_path) == Progress(1, 8, None)
    assert progress({"a": 8}, tmp_path).remaining_s is None


def test_an_export_is_whole_when_every_trial_has_ended(tmp_path) -> None:
    assert not is_exported(tmp_path, ["a"])
    runs = [{"name": "a", "status": "FINISHED"}, {"name": "b", "status": "RUNNING"}]
    (tmp_path / "runs.json").write_text(json.dumps({"runs": runs}))
    assert is_exported(tmp_path, ["a"])
    assert not is_exported(tmp_path, ["a", "b"])
    assert not is_exported(tmp_path, ["a", "c"])
    (tmp_path / "runs.json").write_text("{")
    assert not is_exported(tmp_path, ["a"])
