"""NPU design spaces of products with constant weights: matmul, gated_matmul and their 8-bit form.

``roles``: what lies in L1; ``tiles``, ``cost``, ``choices``: the tiles; ``operands``, ``finish``,
``kernel``: the code; ``space``: all of it as a design space.
"""
