"""Results of other runtimes as arrays of numbers, as our libraries give them: no maps, no lists, no text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_LABELS = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


def plain_results(outputs: Sequence[Any], model: Path | None) -> list[np.ndarray]:
    """Arrays of numbers that are compared with ours.

    Maps from label to score (scikit-learn's classifiers end in them) become scores [n, classes] in the order
    of the file's labels, labels that are text their index there, a list of tensors its tensors.

    Parameters
    ----------
    outputs : what a runtime gave, one for each result of the model.
    model : the ONNX file, which is read only where labels are needed.

    Raises
    ------
    ValueError : a text is no label of the file.
    """
    plain: list[np.ndarray] = []
    for output in outputs:
        if isinstance(output, (list, tuple)) and output and isinstance(output[0], dict):
            order = _order(list(output[0]), model)
            plain.append(np.array([[row[label] for label in order] for row in output]))
        elif isinstance(output, (list, tuple)):
            plain += [np.array(tensor) for tensor in output]
        else:
            array = np.array(output)
            plain.append(_numbered(array, model) if array.dtype.kind in "OSU" else array)
    return plain


def _order(labels: list[Any], model: Path | None) -> list[Any]:
    """Labels of a map in the order of the file."""
    return next((found for found in _label_lists(model) if set(found) == set(labels)), labels)


def _numbered(texts: np.ndarray, model: Path | None) -> np.ndarray:
    """Index of each text in the file's list of labels that has all of them."""
    present = {str(text) for text in texts.flat}
    for labels in _label_lists(model):
        if present <= set(labels):
            numbers = [labels.index(str(text)) for text in texts.flat]
            return np.array(numbers, np.int64).reshape(texts.shape)
    raise ValueError(f"results are texts that the file does not list: {', '.join(sorted(present)[:3])}")


def _label_lists(model: Path | None) -> list[list[Any]]:
    """Lists of labels of the classifiers of an ONNX file."""
    if model is None:
        return []
    import onnx

    lists: list[list[Any]] = []
    for node in onnx.load(str(model), load_external_data=False).graph.node:
        for attribute in node.attribute:
            if attribute.name in _LABELS:
                lists.append([text.decode() for text in attribute.strings] or list(attribute.ints))
    return lists
