"""Python blocks of the documents run, page by page, each page in a process of its own."""

import os
import re
import subprocess
import sys
from itertools import zip_longest

import pytest

from tests.import_graph import ROOT
from tests.test_documents import PAGES, blocks

BERT = """
from pathlib import Path

import numpy as np
import onnx
from hetero_tvm import api, zoo

onnx.save(zoo.build("minilm-l6-tiny", sequence=16), "bert.onnx")
api.build_model(api.optimize_model(api.import_model("bert.onnx"), "cpu")).export("out/model.so")
ids = np.arange(16).reshape(1, 16)
mask, types = np.ones_like(ids), np.zeros_like(ids)
"""
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(32, 16), torch.nn.Linear(16, 4)

    def forward(self, ids, mask=None):
        y = self.head(self.table(ids))
        return y if mask is None else y * mask[..., None]


model = net = Net()
x = torch.arange(16).reshape(1, 16)
mask = torch.ones(1, 16)
"""
LLAMA = """
from pathlib import Path

from tests.tiny_llama import write

write(Path("checkpoint"))
"""
SPEECH = """
from tests.campaign.encoder_decoders import reference

features, others, _ = reference("whisper", Path("whisper"))[0]
model = hetero_tvm.load_language_model(hetero_tvm.build_language_model("whisper", "heard"))
"""
BERT_FOLDER = """
import tokenizers

from tests import tiny_bert
from tests.generation.test_text import write_tokenizer

hetero_tvm.build_embedding_model(tiny_bert.write(Path("bert")), "out")
write_tokenizer(tokenizers, Path("out"))
"""
BEFORE = {
    "README.md": [BERT, NET + "ids = x\n", "del ids, mask\n" + BERT],
    "pytorch.md": [NET + "ids = x\n"],
    "own-operators.md": [],
    "language-models.md": [LLAMA, SPEECH, BERT_FOLDER],
    "stablehlo.md": ["def predict(ids):\n    return (ids * 2).sum(-1)\n\n\n"],
    "concepts.md": [],
    "sessions.md": [],
    "how-to.md": [],
}
"""Code before each block of a page, which prepares what it names."""
SMALLER = {
    "(1, 128)": "(1, 16)",
    "cache_tokens=16384": "cache_tokens=512",
    "max_new_tokens=64": "max_new_tokens=4",
    "dimensions=128": "dimensions=8",
}


def script(path):
    """All blocks of a page as one program, with small sizes."""
    given, code = BEFORE.get(path.name, ()), blocks(path, "python")
    assert len(given) <= len(code)
    text = "\n".join(before + block for before, block in zip_longest(given, code, fillvalue=""))
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return re.sub(r"trials=\d+", "trials=2", text)


def test_every_page_with_code_is_known():
    pages = {path.name for path in PAGES if blocks(path, "python")} - {"README.zh-CN.md"}
    assert pages == set(BEFORE)


@pytest.mark.thorough
@pytest.mark.parametrize("path", [p for p in PAGES if p.name in BEFORE], ids=lambda path: path.name)
def test_blocks_run(path, tmp_path):
    if path.name == "stablehlo.md":
        pytest.importorskip("jax")
    program = tmp_path / "page.py"
    program.write_text(script(path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HETERO_TVM_LOGS": str(tmp_path / "logs")}
    ran = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
