"""Kernels and models on an NVIDIA GPU, beside cuBLAS, cuDNN, PyTorch's attention and torch.compile.

    python benchmarks/gpu.py --out results.json            # everything; again, until it says "complete"
    python benchmarks/gpu.py --out results.json --only matmul attention --trials 64
    python benchmarks/gpu.py --out results.json --report --ship logs     # afterwards, needs no GPU
    HETERO_TVM_CUDA_EMULATE=1 python benchmarks/gpu.py --quick     # numbers only, on the CPU emulation

A command starts nothing new after ``--minutes`` (7.5); the next one goes on with the entries and tuning
records that are missing.  See the package ``benchmarks/gpu`` for what is measured and how.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu.main import main

if __name__ == "__main__":
    sys.exit(main())
