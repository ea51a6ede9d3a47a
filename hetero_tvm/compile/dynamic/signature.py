"""Signatures of models with open dimensions: sizes that differ between imports become expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import ImportedModel, Signature, TensorSpec
from hetero_tvm.frontend.signature import Symbol
from hetero_tvm.schedules.extents import Unfit
from hetero_tvm.schedules.symbolic import lifted


def input_signature(model: ImportedModel) -> Signature:
    """Inputs of a model, with symbols where its lengths are open; no outputs, which optimizing tells.

    Raises
    ------
    ModelError : a dimension is no polynomial of the symbols.
    """
    if model.open is None:
        return replace(model.signature, outputs=())
    signatures = [replace(one.signature, outputs=()) for one in (model, *model.open.others)]
    return symbolic_signature(signatures, model.open.sizes, model.open.symbols)


def symbolic_signature(
    signatures: Sequence[Signature], sizes: Sequence[Mapping[str, int]], symbols: Sequence[Symbol]
) -> Signature:
    """One signature for the same model at several sizes.

    Raises
    ------
    ModelError : a dimension is no polynomial of the symbols.
    """

    def spec(several: Sequence[TensorSpec]) -> TensorSpec:
        first = several[0]
        try:
            return replace(first, shape=lifted([one.shape for one in several], sizes, str))
        except Unfit as error:
            raise ModelError(
                f"a dimension of {first.name} is no expression of the open dimensions: {error}",
                hint="build the model for fixed shapes, one library each",
            ) from error

    inputs = tuple(map(spec, zip(*(one.inputs for one in signatures), strict=True)))
    outputs = tuple(map(spec, zip(*(one.outputs for one in signatures), strict=True)))
    return Signature(inputs, outputs, tuple(symbols))
