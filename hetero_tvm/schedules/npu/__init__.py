"""Design spaces of the NPU.

Here lies what they share: ``base`` (spaces), ``emit`` (instructions as TensorIR), ``tiles``, ``epilogue``,
``patches``; ``convert`` and ``fetch`` (kernels between operators), ``host`` (the CPU beside the NPU).
A folder holds the spaces of one kind of operator: ``matmul``, ``attention``, ``images``, ``rows``, and
``tensor_program`` what no other takes.
"""
