"""Tables of features that need no files of their own and no network: two real ones, and Friedman's function.

``breast_cancer`` and ``diabetes`` are in scikit-learn's wheel. Each is split four to one into training and test rows,
and the split does not depend on the experiment's seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

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
