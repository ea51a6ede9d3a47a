"""Parameters that are packed into a library, watched for changes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_version_of = operator.attrgetter("_version")
_address_of = torch.Tensor.data_ptr


class FrozenParameters:
    """Tensors whose values are part of a library.

    A change is seen by what PyTorch counts: the tensor's version, which every operation in place raises
    (optimizers, ``load_state_dict``, ``copy_``), its address (``p.data = ...``), and the tensor itself
    (``module.weight = ...``).

    Parameters
    ----------
    tensors : by number of the argument that they are passed as.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]):
        self._indices = list(tensors)
        self.tensors = dict(tensors)
        self._known = list(tensors.values())
        self._pick = operator.itemgetter(*self._indices) if len(self._indices) > 1 else None
        self._versions = list(map(_version_of, self._known))
        self._addresses = list(map(_address_of, self._known))

    def __bool__(self) -> bool:
        return bool(self._known)

    def unchanged(self, arguments: Sequence[Any]) -> bool:
        """Whether the arguments of a call are these tensors, with the values that they had."""
        known = self._known
        if not known:
            return True
        given = self._pick(arguments) if self._pick is not None else (arguments[self._indices[0]],)
        return (
            all(map(operator.is_, given, known))
            and list(map(_version_of, known)) == self._versions
            and list(map(_address_of, known)) == self._addresses
        )


def freezable(gm: torch.fx.GraphModule, arguments: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Arguments that Dynamo knows as a module's own tensors, by number.

    Tensors made in inference mode count no changes, and are left out.
    """
    found = {}
    for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = arguments[index]
        if (
            "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
            and type(value) in (torch.Tensor, torch.nn.Parameter)
            and not value.is_inference()
            and value.device.type == "cpu"
            and value.layout is torch.strided
        ):
            found[index] = value
    return found
