"""``python -m tests.targets.npu.isa.stream_mutants COUNT PRESET FILE...``: damaged streams, good checksums.

A process of its own: whoever starts it sees a crash as an exit status, and a hang as a time-out.
Prints how many ended how, as JSON.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.isa.stream import seal
from tests.targets.npu.isa.programs import outcome

_AFTER_CHECKSUM = 12


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The data with one to three bytes changed: to an extreme, by one bit, or to anything."""
    result = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(_AFTER_CHECKSUM, len(result)))
        flipped = result[at] ^ 1 << int(rng.integers(8))
        result[at] = int(rng.choice([0, 1, 255, flipped, rng.integers(256)]))
    return seal(bytes(result))


def main(count: str, preset: str, *files: str) -> None:
    rng = np.random.default_rng(3)
    originals = [Path(file).read_bytes() for file in files]
    outcomes: Counter[str] = Counter()
    with open_device(NPUSpec.preset(preset)) as device:
        for i in range(int(count)):
            outcomes[outcome(device, damaged(originals[i % len(originals)], rng))] += 1
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
