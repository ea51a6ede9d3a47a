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
    assert np.frombuffer(nodes.constants[0].raw_data, "int64").tolist() == [1, 2]
