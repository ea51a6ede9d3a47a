"""Nodes in the making have names of their own, that tell where they come from."""

import numpy as np

from hetero_tvm.frontend.nodes import Nodes


def test_names_and_constants():
    nodes = Nodes()
    nodes.at = "place"
    one = nodes.constant([1, 2], "int64")
    total = nodes.emit("Add", "x", one)
    assert one != total and nodes.nodes[0].input == ["x", one]
    assert nodes.nodes[0].name.startswith("place")
    assert (nodes.emit("Add", "x", one), nodes.constant([1, 2], "int64")) == (total, one)  # made once
    assert nodes.emit("Concat", "x", one, axis=0) != nodes.emit("Concat", "x", one, axis=1)
    assert nodes.constant([1, 2], "int32") != one and nodes.constant([[1, 2]], "int64") != one
    assert np.frombuffer(nodes.constants[0].raw_data, "int64").tolist() == [1, 2]
