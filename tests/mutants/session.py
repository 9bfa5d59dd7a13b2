"""A session: the drawn mutants and what became of them, in cosmic-ray's database, so that a broken run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult

from tests.mutants.modules import source_of, tests_of
from tests.mutants.sample import Mutant, all_mutants, changed_lines, draw, mutated
from tests.mutants.worker import Outcome, Worker

# An unchanged run of a module takes this share of the CPU time after which a mutant's run counts as endless.
CPU_SHARE, LEAST_CPU_S, WALL_FACTOR = 0.25, 20.0, 6.0


@dataclass(frozen=True)
class Result:
    """A mutant, the line that it changes, what the line becomes, and what the tests said."""

    mutant: Mutant
    was: str
    becomes: str
    outcome: str
    test: str
    wall_s: float


class Session:
    """The mutants of one seed.

    Args:
        folder: the folder of the sessions.
        sources: each module's source.
        seed, count: the sample.
    """

    def __init__(self, folder: Path, sources: dict[str, str], seed: int, count: int) -> None:
        self.folder, self.sources, self.seed, self.count = folder, sources, seed, count
        folder.mkdir(parents=True, exist_ok=True)
        self._facts = folder / f"seed-{seed}-{count}.json"
        self.database = WorkDB(str(folder / f"seed-{seed}-{count}.sqlite"), WorkDB.Mode.create)
        hashes = {module: hashlib.sha256(text.encode()).hexdigest() for module, text in sources.items()}
        facts = json.loads(self._facts.read_text(encoding="utf-8")) if self._facts.exists() else {}
        if facts.get("sources") != hashes:
            self._draw(hashes, facts.get("sources", {}))
        facts = json.loads(self._facts.read_text(encoding="utf-8"))
        self.places: dict[str, int] = facts["places"]

    def _draw(self, hashes: dict[str, str], before: dict[str, str]) -> None:
        """Draw the sample; the results of modules that have not changed since an earlier draw are kept."""
        kept = {
            item.job_id: result
            for item, result in self.database.completed_work_items
            if before.get(module := item.job_id.partition(":")[0]) == hashes.get(module)
        }
        mutants = draw(self.sources, self.count, self.seed)
        self.database.clear()
        self.database.add_work_items(
            WorkItem.single(
                one.name,
                MutationSpec(
                    module_path=Path(source_of(one.module)),
                    operator_name=one.operator,
                    occurrence=one.occurrence,
                    start_pos=one.start,
                    end_pos=one.end,
                ),
            )
            for one in mutants
        )
        for one in mutants:
            if one.name in kept:
                self.database.set_result(one.name, kept[one.name])
        places = {
            module: len({mutant.start for mutant in all_mutants(module, text)}) for module, text in self.sources.items()
        }
        self._facts.write_text(json.dumps({"sources": hashes, "places": places}, indent=1), encoding="utf-8")

    def pending(self) -> list[Mutant]:
        """Return the mutants without a result, module after module."""
        return sorted(_mutant(item) for item in self.database.pending_work_items)

    def results(self) -> list[Result]:
        """Return all results, module after module."""
        found = []
        for item, result in self.database.completed_work_items:
            mutant = _mutant(item)
            told = json.loads(result.output)
            found.append(Result(mutant, told["was"], told["becomes"], told["outcome"], told["test"], told["wall_s"]))
        return sorted(found, key=lambda one: one.mutant)

    def save(self, mutant: Mutant, outcome: Outcome) -> Result:
        """Keep what became of a mutant."""
        was, becomes = changed_lines(self.sources[mutant.module], mutant)
        result = Result(mutant, was, becomes, outcome.result, outcome.test, round(outcome.wall_s, 2))
        told = {name: value for name, value in asdict(result).items() if name != "mutant"}
        survived = outcome.result == "survived"
        self.database.set_result(
            mutant.name,
            WorkResult(
                worker_outcome=WorkerOutcome.NORMAL,
                output=json.dumps(told),
                test_outcome=TestOutcome.SURVIVED if survived else TestOutcome.KILLED,
                diff=f"--- {source_of(mutant.module)}\n- {was}\n+ {becomes}",
            ),
        )
        return result


def _mutant(item: WorkItem) -> Mutant:
    (spec,) = item.mutations
    start, end = tuple(spec.start_pos), tuple(spec.end_pos)
    return Mutant(item.job_id.partition(":")[0], spec.operator_name, spec.occurrence, start, end)


def run_mutants(
    session: Session, mutants: list[Mutant], worker: Worker, say: Callable[[str], Any], limit: int = 1_000_000
) -> None:
    """Run the tests on each of `mutants` and keep the results.

    Raises:
        RuntimeError: a module's tests fail without a mutant.
    """
    module, unchanged = "", Outcome("error")
    for number, mutant in enumerate(mutants[:limit], start=1):
        tests = tests_of(mutant.module)
        if mutant.module != module:
            first = worker.run(tests)  # it also fills the caches
            worker.prepare(first.modules)
            unchanged = worker.run(tests, durations=first.durations)
            module = mutant.module
            for run in (first, unchanged):
                if run.result != "survived":
                    raise RuntimeError(f"{', '.join(tests)}: {run.result} without a mutant: {run.test}")
            say(f"{module}: {len(unchanged.durations)} tests, first run {first.wall_s:.1f} s, then "
                f"{unchanged.wall_s:.1f} s")  # fmt: skip
        text = mutated(session.sources[module], mutant)
        assert text is not None
        cpu_limit_s = max(LEAST_CPU_S, unchanged.cpu_s / CPU_SHARE)
        outcome = worker.run(
            tests,
            source_of(module),
            text,
            line=mutant.start[0],
            limits_s=(WALL_FACTOR * cpu_limit_s, cpu_limit_s),
            durations=unchanged.durations,
        )
        result = session.save(mutant, outcome)
        by = f" by {outcome.test.rpartition('::')[2]}" if outcome.test else ""
        say(f"[{number}/{len(mutants)}] {mutant.name}: {outcome.result}{by} ({outcome.wall_s:.1f} s)")
        if outcome.result == "survived":
            say(f"    - {result.was}\n    + {result.becomes}")
