"""Records and results of one product, as the GPU suite leaves them."""

import dataclasses

from hetero_tvm.machines.gpu import model_named
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.records.record import TRIAL, Record, Site
from hetero_tvm.schedules.cuda.products.matmul import CudaMatmulSpace

OP, SPACE, MACHINE = Matmul((4096,), 4096, 4096, (), "float16"), CudaMatmulSpace(), model_named("sm_90a")
TILES = SPACE.knobs(OP, MACHINE)[0].choices
GROUP = next(tile for tile in TILES if len(tile) == 7)
SITE = Site.of(MACHINE, "cuda", "NVIDIA H200")


def record(tile, seconds, role=TRIAL, **fields):
    named = {"key": "0x1", "task": OP.label, "space": SPACE.name, "version": SPACE.version}
    made = Record(
        **named, **dataclasses.asdict(SITE), point={"tile": tile, "splits": 1}, seconds=seconds, role=role
    )
    return dataclasses.replace(made, **fields)


def document(tile):
    points = {"default": {"point": {"tile": list(tile), "splits": 1}}}
    named = {"task": OP.label, "space": SPACE.name, "precision": "f16", "op": OP.to_json()}
    entry = {**named, "status": "ok", "points": points}
    return {"device": {"name": "NVIDIA H200"}, "arch": "sm_90a", "sections": {"matmul": [entry]}}
