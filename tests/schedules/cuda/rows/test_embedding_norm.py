"""Embeddings and norm on the emulated GPU."""

from hetero_tvm.schedules.cuda.rows.embedding_norm import CudaEmbeddingNormSpace
from tests.schedules.cuda.rows.cases import EMBEDDINGS, check_both, some

EMBEDDING = CudaEmbeddingNormSpace()


def test_embeddings(emulated):
    check_both(EMBEDDING, [(op, some(op)) for op in EMBEDDINGS])
