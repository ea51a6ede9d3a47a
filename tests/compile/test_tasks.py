"""Work of kernels that no contract describes."""

from hetero_tvm.compile.tasks import tasks_of
from hetero_tvm.host.tvm import relax
from hetero_tvm.targets.registry import parse_target
from tests.relax_passes.graphs import module


def bytes_of(inputs, build):
    """Bytes that the only kernel of a graph moves, as it is counted."""
    lowered = relax.transform.LegalizeOps()(module(inputs, build))
    (task,) = tasks_of(lowered, {}, parse_target("cpu"))
    return task.nbytes


def test_rows_of_a_table_count_and_not_the_table():
    def take(emit, table, at):
        return emit(relax.op.take(table, at, axis=0))

    assert bytes_of({"t": ("float32", 5000, 32), "i": ("int64", 7)}, take) == 7 * 32 * 4 * 2 + 7 * 8
    assert bytes_of({"t": ("float32", 3, 32), "i": ("int64", 7)}, take) == 3 * 32 * 4 + 7 * 32 * 4 + 7 * 8


def test_a_part_counts_and_not_the_whole():
    def cut(emit, x):
        return emit(relax.op.strided_slice(x, [0], [0], [10]))

    assert bytes_of({"x": ("float32", 4000)}, cut) == 2 * 10 * 4


def test_every_element_counts_once():
    def total(emit, x):
        return emit(relax.op.sum(x, [0]))

    assert bytes_of({"x": ("float32", 40, 6)}, total) == 40 * 6 * 4 + 6 * 4
