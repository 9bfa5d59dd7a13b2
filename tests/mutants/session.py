"""A session: the drawn mutants of a seed, and what became of them as JSON lines, so that a broken run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutants.modules import source_of, tests_of
from tests.mutants.sample import Mutant, changed_lines, draw, mutated, places_of
from tests.mutants.worker import Outcome, Worker

LEAST_S, WALL_FACTOR = 60.0, 6.0  # a run that takes longer, or so many times the unchanged run, counts as endless


@dataclass(frozen=True)
class Result:
    """What the tests said about a mutant.

    Attributes:
        module, name: the module, and the name of the mutant.
        source: SHA-256 of the module; a result of another source counts no more.
        was, becomes: the line that is changed, before and after.
        outcome, test, wall_s: as in `Outcome`.
    """

    module: str
    name: str
    source: str
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
        folder.mkdir(parents=True, exist_ok=True)
        self.sources, self.seed, self.mutants = sources, seed, sorted(draw(sources, count, seed))
        self.places = {module: len(places_of(module, text)) for module, text in sources.items()}
        self._file = folder / f"seed-{seed}-{count}.jsonl"
        self._hashes = {module: hashlib.sha256(text.encode()).hexdigest() for module, text in sources.items()}

    def results(self) -> list[Result]:
        """Return the last result of each mutant of the sample, module after module."""
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        found = {result.name: result for result in (Result(**json.loads(line)) for line in lines)}
        done = [found[mutant.name] for mutant in self.mutants if mutant.name in found]
        return [result for result in done if result.source == self._hashes[result.module]]

    def pending(self) -> list[Mutant]:
        """Return the mutants without a result, module after module."""
        done = {result.name for result in self.results()}
        return [mutant for mutant in self.mutants if mutant.name not in done]

    def save(self, mutant: Mutant, outcome: Outcome) -> Result:
        """Keep what became of a mutant."""
        was, becomes = changed_lines(self.sources[mutant.module], mutant)
        result = Result(mutant.module, mutant.name, self._hashes[mutant.module], was, becomes, outcome.result,
                        outcome.test, round(outcome.wall_s, 2))  # fmt: skip
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
        return result


def run_mutants(session: Session, mutants: list[Mutant], worker: Worker, say: Callable[[str], Any]) -> None:
    """Run the tests on each of `mutants` and keep the results.

    Raises:
        RuntimeError: a module's tests fail without a mutant.
    """
    module, limit_s = "", 0.0
    for number, mutant in enumerate(mutants, start=1):
        tests = tests_of(mutant.module)
        if mutant.module != module:
            module, unchanged = mutant.module, worker.run(tests)
            if unchanged.result != "survived":
                raise RuntimeError(f"{', '.join(tests)}: {unchanged.result} without a mutant: {unchanged.test}")
            limit_s = max(LEAST_S, WALL_FACTOR * unchanged.wall_s)
            say(f"{module}: {unchanged.wall_s:.1f} s")
        text = mutated(session.sources[module], mutant)
        assert text is not None
        outcome = worker.run(tests, source_of(module), text, limit_s)
        result = session.save(mutant, outcome)
        by = f" by {outcome.test.rpartition('::')[2]}" if outcome.test else ""
        say(f"[{number}/{len(mutants)}] {mutant.name}: {outcome.result}{by} ({outcome.wall_s:.1f} s)")
        if outcome.result == "survived":
            say(f"    - {result.was}\n    + {result.becomes}")
