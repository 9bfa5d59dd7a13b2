"""Faults at random moments of a real sweep: nothing may be lost, and nothing may appear twice.

``python -m tests.chaos`` (or ``make chaos``) breaks one small sweep after another, goes on with it as a user would,
and compares its journals, its runs in MLflow, its CSV files and its final models with those of an unbroken run.
docs/chaos.md has the figures of the last long run.
"""
