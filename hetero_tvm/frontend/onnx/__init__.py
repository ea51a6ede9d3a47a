"""ONNX to Relax.  ``importer`` takes these steps, in this order:

1. ``load``: bytes, protobuf, external data; every defect of a file is one clear error.
2. ``clean``: one model in plain ONNX of fixed shapes, in steps of its own:
   ``check`` (versions, names, order of nodes, unknown operators), ``contrib`` and ``bodies/contrib`` (ONNX
   Runtime's operators written out), ``shapes`` (of inputs), functions inlined and old opsets converted,
   ``widen`` (half precision becomes float32); then, until nothing changes, definitions inlined, ``fold``
   (constants, shapes, no-ops) and ``expand`` (operators whose form depends on shapes: ``recurrent`` with its
   ``cells``, ``transforms``); at last ``check`` again, for operators that nothing takes.
3. ``relax``: Relax through TVM's importer and our own ``converters`` (``quantized``: those of 8-bit
   tensors); every binding bears the name of its ONNX node.

Shared: ``constants`` (weights apart from the graph), ``body`` (writes the nodes that replace one).
"""
