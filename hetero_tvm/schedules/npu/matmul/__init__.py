"""Products with constant weights on the matrix unit.

``roles``: what lies in L1; ``tiles``, ``cost``, ``choices``: the tiles; ``operands``, ``finish``,
``kernel``: the code; ``space``: all of it as a design space.
"""
