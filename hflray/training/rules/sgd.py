"""Plain mini-batch SGD: equation (1) of the paper. It is the default, and needs no options."""

from __future__ import annotations

from hflray.training.rules.base import LocalRule


class SGD(LocalRule):
    """Nothing is added to the gradient, and nothing is kept."""
