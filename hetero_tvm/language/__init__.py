"""Language models from their checkpoints: a folder of transformers or a GGUF file becomes one library.

The step of a decoder is written straight in Relax from the target's kernels (``schedules/cpu/decoding/``);
what runs it is in ``hetero_tvm/generation/``, which needs no compiler.
"""
