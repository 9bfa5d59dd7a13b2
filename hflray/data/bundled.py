"""Data sets that need no files of their own and no network: three tables of features, and Python's own documentation.

``breast_cancer`` and ``diabetes`` are in scikit-learn's wheel. Each is split four to one into training and test rows,
and the split does not depend on the experiment's seed. The texts of ``pydoc_topics`` are the help topics of the
standard library (`pydoc_data.topics`), from which the next character is learned. They differ between versions of
Python, so the digest of the data set, which every run logs, tells which texts were used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hflray.data.datasets import Dataset, sklearn_table, split_rows

FRIEDMAN_SAMPLES, FRIEDMAN_TEST = 20_000, 4_000
FRIEDMAN_NOISE = 1.0  # the deviation in Friedman (1991); the signal's is 4.9


def load_breast_cancer(root: Path | None = None) -> Dataset:
    """Load the Wisconsin diagnostic data (Street et al. 1993): 569 tumours, 30 features, 2 classes.

    Args:
        root: ignored, because the table is in scikit-learn's wheel.
    """
    table = sklearn_table("breast_cancer.csv", delimiter=",", skiprows=1)
    features, labels = table[:, :-1], table[:, -1].astype(np.int64)
    test = split_rows(labels, "breast_cancer")
    return Dataset.of(features[~test], labels[~test], features[test], labels[test], name="breast_cancer")


def load_diabetes(root: Path | None = None) -> Dataset:
    """Load the diabetes data (Efron et al. 2004): 442 patients, 10 features, the progression of the disease a year on.

    Args:
        root: ignored, because the tables are in scikit-learn's wheel.
    """
    features, target = sklearn_table("diabetes_data_raw.csv.gz"), sklearn_table("diabetes_target.csv.gz")
    test = split_rows(np.zeros(len(target), np.int64), "diabetes")
    return Dataset.of(features[~test], target[~test], features[test], target[test], "regression", name="diabetes")


def make_friedman1(root: Path | None = None, seed: int = 0) -> Dataset:
    """Make Friedman's first regression problem (Friedman 1991): ten uniform features, five of which matter.

    The target is 10 sin(π x₀ x₁) + 20 (x₂ − ½)² + 10 x₃ + 5 x₄ with normal noise of deviation 1, so that the best
    model's R² on new samples is about 0.96.

    Args:
        root: ignored, because no file is read.
        seed: equal seeds give equal samples.
    """
    from sklearn.datasets import make_friedman1 as make

    x, y = make(FRIEDMAN_SAMPLES, noise=FRIEDMAN_NOISE, random_state=seed)
    train, test = slice(FRIEDMAN_TEST, None), slice(FRIEDMAN_TEST)
    return Dataset.of(x[train], y[train], x[test], y[test], "regression", name="friedman1")


WINDOW = 32  # characters of an input
STRIDE = 7  # characters between the beginnings of two inputs; it makes some 50,000 training inputs
TOPIC_GROUPS = 10  # groups of topics, as many as Fashion-MNIST and CIFAR-10 have classes


def load_pydoc_topics(root: Path | None = None) -> Dataset:
    """Load windows of 32 characters of Python's help topics, and the character after each.

    The last fifth of each topic is for tests. Topics quote one another, and a test window that occurs anywhere in the
    training texts is left out. Each topic belongs to one of ten groups of about the same length, so that
    a device's majority group is a part of the topics.

    Args:
        root: ignored, because the texts are in Python's standard library.
    """
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    group_of, held = [0] * len(texts), np.zeros(TOPIC_GROUPS, np.int64)
    for topic in sorted(range(len(texts)), key=lambda topic: -len(texts[topic])):  # longest first
        group_of[topic] = int(held.argmin())
        held[group_of[topic]] += len(texts[topic])
    cuts = [len(text) * 4 // 5 for text in texts]
    learned = {window for text, cut in zip(texts, cuts, strict=True) for window in _windows(text[:cut], 1)}
    train = [_windows(text[:cut], STRIDE) for text, cut in zip(texts, cuts, strict=True)]
    test = [window for text, cut in zip(texts, cuts, strict=True) for window in _windows(text[cut:], STRIDE)]
    alphabet = np.array(sorted(set("".join(texts))))
    old = _codes([window for windows in train for window in windows], alphabet)
    new = _codes([window for window in test if window not in learned], alphabet)
    return Dataset.of(
        old[:, :-1],
        old[:, -1],
        new[:, :-1],
        new[:, -1],
        kind="next_token",
        groups=np.repeat(group_of, [len(windows) for windows in train]),
        name="pydoc_topics",
    )


def _windows(text: str, stride: int) -> list[str]:
    """Return the windows of a text, each with the character after it."""
    return [text[start : start + WINDOW + 1] for start in range(0, len(text) - WINDOW, stride)]


def _codes(windows: list[str], alphabet: NDArray[np.str_]) -> NDArray[np.int64]:
    """Return the places of the windows' characters in the sorted alphabet, (n, WINDOW + 1)."""
    letters = np.array(list("".join(windows)))
    return np.searchsorted(alphabet, letters).reshape(len(windows), WINDOW + 1)
