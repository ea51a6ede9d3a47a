"""The module of a step, before code is generated."""

import numpy as np

from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder
from hetero_tvm.language.families.architectures import describe
from hetero_tvm.language.step import INPUTS, build_step
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Heads
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.schedules.cpu.decoding.kernels import DecoderKernels
from tests import tiny_llama

KERNELS = DecoderKernels(CpuModel("x86-64-v3", threads=2))


def made(folder, config, tensors, storage):
    folder = SafetensorsFolder(tiny_llama.write(folder, config, tensors))
    weights = DecoderWeights(*describe(folder.config), folder, storage)
    return build_step(weights, Heads(4, 2, 8, layers=2, page=16), KERNELS, rows=8)


def kernels(module):
    return sorted(v.name_hint.rpartition("_")[0] for v in module.functions if v.name_hint != "main")


def test_layers_share_their_kernels(tmp_path):
    config, tensors = tiny_llama.CONFIG, tiny_llama.weights()
    module, read = made(tmp_path, config, tensors, Storage("f32"))
    assert kernels(module) == ["append", "cachedattention", "embed", *["linear"] * 5, "rownorm", "rownorm"]
    assert [p.name for p in module["main"].params] == list(INPUTS)
    matrices = [a for name, a in tensors.items() if a.ndim == 2 and "embed" not in name]
    assert read == 4 * sum(a.size for a in matrices)


def test_a_tied_table_is_stored_once(tmp_path):
    config = {**tiny_llama.CONFIG, "tie_word_embeddings": True}
    tensors = tiny_llama.weights()
    del tensors["lm_head.weight"]
    module, read = made(tmp_path, config, tensors, Storage("int4", 32))
    constants = {id(c): c for c in constants_of(module)}
    largest = max(np.prod([int(n) for n in c.value.shape]) for c in constants.values())
    vocab, width = config["vocab_size"], config["hidden_size"]
    assert largest < vocab * width  # the packed form alone
    assert read < 0.6 * sum(a.size for a in tensors.values()) + vocab * width


def constants_of(module):
    found = []
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if hasattr(binding.value, "args"):
                arguments = binding.value.args[1]
                found += [a for a in getattr(arguments, "fields", ()) if hasattr(a, "value")]
    return found
