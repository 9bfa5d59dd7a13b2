"""Mutants of the core modules: does a mirror test notice when one token of its module changes? (``make mutants``)

cosmic-ray makes the mutants and keeps the session, which its own tools read (``cr-report``, ``cr-html``). mutmut 3 does
not serve: it changes neither decorated functions, which are our kernels and properties, nor numbers outside functions.

Two things are ours, because cosmic-ray has one test command for a whole session:

* `tests.mutants.sample` draws a seeded sample of places, and one mutant of each;
* `tests.mutants.worker` runs the mirror tests of the mutant's module in a copy of the repository.
"""
