"""A seeded sample of the mutants of the modules in `tests.mutants.modules`.

A place is an operator, a number, a condition, a decorator or a loop in a module's source. cosmic-ray has eleven mutants
of a plus sign and two of a number. The sample therefore draws places, and then one mutant of each place, so that
arithmetic does not outweigh everything else. These mutants are left out, because any test kills them or no test can:

* an arithmetic operator that becomes a bit operator or the reverse, which is a TypeError on floats;
* ``==`` that becomes ``is``, and the like;
* mutants that do not compile, and those that change nothing but an annotation, which Python does not evaluate.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

LEAST = 3  # mutants of each module, if it has as many places

ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}
IDENTITY = {"Is", "IsNot"}


class Mutant(NamedTuple):
    """One mutant: the name of cosmic-ray's operator, which of its occurrences in the module, and the place."""

    module: str
    operator: str
    occurrence: int
    start: tuple[int, int]
    end: tuple[int, int]

    @property
    def name(self) -> str:
        """A name that is unique in a session, such as ``cost:120:14:NumberReplacer:3``."""
        row, column = self.start
        return f"{self.module}:{row}:{column}:{self.operator.rpartition('/')[2]}:{self.occurrence}"


def is_telling(operator: str) -> bool:
    """Return whether the mutants of an operator tell something about a test; see this module's docstring."""
    kind, _, change = operator.rpartition("/")[2].partition("_")
    before, _, after = change.partition("_")
    if kind == "ReplaceBinaryOperator":
        return (before in ARITHMETIC) == (after in ARITHMETIC)
    if kind == "ReplaceComparisonOperator":
        return (before in IDENTITY) == (after in IDENTITY)
    return True


def all_mutants(module: str, source: str) -> Iterator[Mutant]:
    """Yield cosmic-ray's mutants of a module, without those that tell nothing."""
    nodes = list(ast_nodes(get_ast(source)))
    for name in operator_names():
        operator_class = get_operator(name)
        if operator_class.arguments() or not is_telling(name):  # those with arguments replace chosen variables
            continue
        operator = operator_class()
        positions = [position for node in nodes for position in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(positions):
            yield Mutant(module, name, occurrence, start, end)


def mutated(source: str, mutant: Mutant) -> str | None:
    """Return the mutant's source; None if it does not compile or does the same as `source`."""
    changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    if changed is None:
        return None
    try:
        different = _without_annotations(changed) != _without_annotations(source)
    except SyntaxError:
        return None
    return changed if different else None


def _without_annotations(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def quotas(places: dict[str, int], count: int) -> dict[str, int]:
    """Return how many mutants each module gets of `count`: in proportion to its places, but at least `LEAST`."""
    total = sum(places.values())
    shares = {module: min(number, max(LEAST, count * number // total)) for module, number in places.items()}
    largest = sorted(places, key=lambda module: (-places[module], module))
    while sum(shares.values()) != count:  # the modules with most places take the remainder
        step = 1 if sum(shares.values()) < count else -1
        able = [m for m in largest if (shares[m] < places[m] if step > 0 else shares[m] > LEAST)]
        if not able:
            break
        for module in able:
            if sum(shares.values()) == count:
                break
            shares[module] += step
    return shares


def places_of(module: str, source: str) -> dict[tuple[int, int], list[Mutant]]:
    """Return the mutants of each place of a module."""
    places: dict[tuple[int, int], list[Mutant]] = {}
    for mutant in all_mutants(module, source):
        places.setdefault(mutant.start, []).append(mutant)
    return places


def draw(sources: dict[str, str], count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants of the modules in `sources`, at most one of each place; the same seed draws the same."""
    places = {module: places_of(module, source) for module, source in sources.items()}
    streams = {module: _one_of_each(sources[module], places[module], f"{seed} {module}") for module in places}
    sizes = {module: len(of_module) for module, of_module in places.items()}
    chosen = {module: list(islice(streams[module], quota)) for module, quota in quotas(sizes, count).items()}
    for module in sorted(streams, key=lambda module: (-sizes[module], module)):
        # Some places have no mutant that tells anything. The modules with most places make up for them.
        chosen[module] += islice(streams[module], max(0, count - sum(map(len, chosen.values()))))
    return [mutant for mutants in chosen.values() for mutant in mutants]


def _one_of_each(source: str, places: dict[tuple[int, int], list[Mutant]], seed: str) -> Iterator[Mutant]:
    """Yield one mutant of each place, both in random order."""
    rng = random.Random(seed)
    for start in rng.sample(sorted(places), len(places)):
        candidates = rng.sample(places[start], len(places[start]))
        yield from islice((mutant for mutant in candidates if mutated(source, mutant)), 1)


def changed_lines(source: str, mutant: Mutant) -> tuple[str, str]:
    """Return the text that a mutant changes and what it becomes, as one line each, without the indentation."""
    changed = mutated(source, mutant)
    assert changed is not None
    old, new = source.splitlines(), changed.splitlines()
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    last = next(
        (i for i, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b), min(len(old), len(new))
    )
    before, after = old[first : max(first + 1, len(old) - last)], new[first : max(first, len(new) - last)]
    if not any(map(str.strip, after)):  # a decorator is gone: name what it decorated
        before, after = [*before, old[first + len(before)]], [*after, old[first + len(before)]]
    return " ".join(" ".join(before).split()), " ".join(" ".join(after).split())
