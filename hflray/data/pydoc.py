"""Characters of Python's own documentation, as a data set of the kind ``next_token`` without files or network.

The texts are the help topics of the standard library (`pydoc_data.topics`). They differ between versions of Python, so
the digest of the data set, which every run logs, tells which texts were used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hflray.data.datasets import Dataset

WINDOW = 32  # characters of an input
STRIDE = 7  # characters between the beginnings of two inputs; it makes some 50,000 training inputs
GROUPS = 10  # groups of topics, as many as Fashion-MNIST and CIFAR-10 have classes


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
    group_of, held = [0] * len(texts), np.zeros(GROUPS, np.int64)
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
