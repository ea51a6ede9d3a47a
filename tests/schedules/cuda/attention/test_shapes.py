"""Division of an attention among blocks of threads."""

from hetero_tvm.schedules.cuda.attention import shapes
from hetero_tvm.schedules.cuda.attention.tensor_cores import CudaAttentionSpace
from tests.schedules.cuda.attention.cases import attention
from tests.schedules.cuda.running import MACHINE

HALF = CudaAttentionSpace()
DECODE = attention(1, 4096, 128, 32, kv_heads=8)


def test_few_queries_split_the_keys():
    assert shapes.is_grouped(DECODE) and shapes.rows_of(DECODE) == 4
    assert HALF.default(DECODE, MACHINE)["tile"][2] == 16  # 8 blocks would leave 100 multiprocessors idle
    assert HALF.default(attention(2048, 2048, 128, 32), MACHINE)["tile"][2] == 1
