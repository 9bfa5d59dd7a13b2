"""The correction of a rule of the user's own, which sees one device at a time and is checked where it enters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hflray.support.contract import Contract, described
from hflray.training.method import Method
from hflray.training.rules.base import Received, further, of_correction


class OwnCorrection:
    """The correction of one device by a rule that knows of one device only.

    Args:
        method: what a step does beside the gradient.
        received: what the device received.
        shapes: the shape of each trained tensor in the network.
    """

    def __init__(self, method: Method, received: Received, shapes: Sequence[torch.Size]) -> None:
        self._shapes = shapes
        self._rule = method.parts().rule
        self._flat = of_correction(self._rule, "flat")
        self._further = {name: getattr(received, name) for name in further(self._rule.correction)}

    def of(
        self,
        weights: list[Tensor],
        received: list[Tensor],
        vectors: Mapping[str, list[Tensor]],
        memory: Mapping[str, list[Tensor]],
        checks: bool,
    ) -> list[Tensor]:
        """Return the correction of each tensor, in the shapes of `weights`.

        Raises:
            ConfigError: it has another shape, or (with `checks`) it is not finite.
        """
        resident = [tensor.shape for tensor in weights]
        weights, received = self._arranged(weights), self._arranged(received)
        vectors = {name: self._arranged(tensors) for name, tensors in vectors.items()}
        memory = {name: self._arranged(tensors) for name, tensors in memory.items()}
        corrections = [
            self._checked(
                self._rule.correction(
                    weight,
                    received[i],
                    {name: tensors[i] for name, tensors in vectors.items()},
                    {name: tensors[i] for name, tensors in memory.items()},
                    **self._further,
                ),
                weight,
                checks,
            )
            for i, weight in enumerate(weights)
        ]
        parts = torch.split(corrections[0], [shape.numel() for shape in resident]) if self._flat else corrections
        return [part.reshape(shape) for part, shape in zip(parts, resident, strict=True)]

    def _arranged(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return tensors as the rule sees them."""
        if self._flat:
            return [torch.cat([tensor.reshape(-1) for tensor in tensors])]
        return [tensor.reshape(shape) for tensor, shape in zip(tensors, self._shapes, strict=True)]

    def _checked(self, corrected: object, weight: Tensor, checks: bool) -> Tensor:
        if corrected is None:
            return torch.zeros_like(weight)
        if isinstance(corrected, Tensor) and corrected.shape == weight.shape and corrected.is_floating_point():
            if not checks or bool(torch.isfinite(corrected).all()):
                return corrected
            got = "a tensor with numbers that are not finite"
        elif isinstance(corrected, Tensor):
            got = f"a tensor of {corrected.dtype} with the shape {tuple(corrected.shape)}"
        else:
            got = described(corrected)
        accepted = f"None, or a tensor of finite floats of the weights' shape {tuple(weight.shape)}"
        raise Contract.of("training.rule.name", self._rule, accepted, "mend its method correction").error(got)
