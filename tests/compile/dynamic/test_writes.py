"""States of one size: rows are written where they lie, by every spelling of a static cache."""

import numpy as np
import onnx
import pytest

import hetero_tvm
from hetero_tvm import Span
from hetero_tvm.compile.build import plan_memory
from hetero_tvm.errors import LibraryError
from hetero_tvm.records.choose import default_choice
from hetero_tvm.runtime.sessions import Session, states_of
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

ROOM, DIM = 48, 8
STATE = 2 * ROOM * DIM * 4
NUMBERS = ", ".join(map(str, range(ROOM)))

ATTENTION = f"""
    turned = Transpose<perm=[0, 2, 1]>(cache_out)
    scores = MatMul(x, turned)
    places = Constant<value_ints=[{NUMBERS}]>()
    seen = LessOrEqual(places, last)
    low = Constant<value_float=-1e9>()
    masked = Where(seen, scores, low)
    shares = Softmax<axis=-1>(masked)
    y = MatMul(shares, cache_out)
"""

SCATTER_ND = """
    order = Constant<value_ints=[1, 0, 2]>()
    front = Transpose<perm=[1, 0, 2]>(cache)
    rows = Transpose<perm=[1, 0, 2]>(x)
    axis = Constant<value_ints=[-1]>()
    where = Unsqueeze(at, axis)
    after = ScatterND(front, where, rows)
    cache_out = Transpose<perm=[1, 0, 2]>(after)
"""
SCATTER_ELEMENTS = """
    axes = Constant<value_ints=[0, 2]>()
    wide = Unsqueeze(at, axes)
    shape = Shape(x)
    where = Expand(wide, shape)
    cache_out = ScatterElements<axis=1>(cache, where, x)
"""
SELECTION = f"""
    numbers = Constant<value_ints=[{NUMBERS}]>()
    here = Equal(numbers, at)
    axes = Constant<value_ints=[0, 2]>()
    mask = Unsqueeze(here, axes)
    cache_out = Where(mask, x, cache)
"""
OPPOSITE = SELECTION.replace(
    "here = Equal(numbers, at)", "same = Equal(numbers, at) here = Not(same)"
).replace("Where(mask, x, cache)", "Where(mask, cache, x)")
TENSOR_SCATTER = """
    two = Constant<value_ints=[2]>()
    first = Expand(at, two)
    cache_out = TensorScatter<axis=1>(cache, x, first)
"""
SPELLINGS = {
    "scatter_nd": SCATTER_ND,
    "scatter_elements": SCATTER_ELEMENTS,
    "selection": SELECTION,
    "opposite": OPPOSITE,
    "tensor_scatter": TENSOR_SCATTER,
}


def proto(write, new="1", read=ATTENTION, more="", batch="2"):
    return text_model(
        f"""
        step (float[{batch}, {new}, {DIM}] x, int64[{new}] at, float[{batch}, {ROOM}, {DIM}] cache)
            => (float[{batch}, {new}, {DIM}] y, float[{batch}, {ROOM}, {DIM}] cache_out{more})
        {{
            minus = Constant<value_ints=[-1]>()
            zero = Constant<value_ints=[0]>()
            end = Constant<value_ints=[9223372036854775807]>()
            last = Slice(at, minus, end, zero)
            {write}
            {read}
        }}
        """,
        opset=24,
        ir=10,
    )


def attended(x, at, cache):
    """The step in float64: its result, and the cache after it."""
    cache = cache.astype(np.float64)
    cache[:, at] = x
    scores = np.where(np.arange(ROOM) <= at[-1], x @ cache.transpose(0, 2, 1), -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ cache, cache


def room_of(model):
    return {} if model.step is None else dict(model.step[1].room)


def peak(model):
    """Bytes of the largest arena of a model's kernels."""
    return plan_memory(model, {task.key: default_choice(task, model.machine) for task in model.tasks}).peak


@pytest.mark.parametrize(
    "spelling",
    ["scatter_nd", *thorough(["opposite"]), *thorough(["scatter_elements", "selection", "tensor_scatter"])],
)
def test_rows_are_written_where_the_state_lies(spelling, tmp_path):
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(proto(SPELLINGS[spelling])))
    assert room_of(model) == {"cache": 0}
    # As a function it has the state as a result; step by step nothing of its size exists but the state.
    assert peak(model.step[0]) < STATE
    built = hetero_tvm.build_model(model)
    assert not built.no_step and built.check().ok
    net = hetero_tvm.load(built.export(tmp_path))
    session, plain = net.session(), Session(net, net.signature, states_of(net.signature))
    random = np.random.default_rng(0)
    cache, places = np.zeros((2, ROOM, DIM)), set()
    for n in (0, 1, 2, 3, 2, ROOM - 1):
        x, at = random.standard_normal((2, 1, DIM)).astype(np.float32), np.array([n])
        wanted, cache = attended(x, at, cache)
        y = session(x=x, at=at)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)  # float32 sums of 48 values
        np.testing.assert_array_equal(y, plain(x=x, at=at))
        np.testing.assert_array_equal(session.states["cache"], cache.astype(np.float32))
        places.add(session._arrays["cache"].ctypes.data)
    assert len(places) == 1


def test_forks_part_and_states_are_given_taken_back_and_reordered(tmp_path):
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(proto(SCATTER_ND)))
    net = hetero_tvm.load(hetero_tvm.build_model(model).export(tmp_path))
    x = np.random.default_rng(1).standard_normal((4, 2, 1, DIM)).astype(np.float32)
    first = net.session()
    for n in range(2):
        first(x=x[n], at=np.array([n]))
    before = first.states["cache"]
    other, kept = first.fork(), first.fork()
    other(x=x[2], at=np.array([2]))
    first(x=x[3], at=np.array([2]))
    np.testing.assert_array_equal(kept.states["cache"], before)
    np.testing.assert_array_equal(other.states["cache"][:, 2:3], x[2])
    np.testing.assert_array_equal(first.states["cache"][:, 2:3], x[3])
    given = net.session(initial={"cache": before})
    np.testing.assert_array_equal(given(x=x[3], at=np.array([2])), kept(x=x[3], at=np.array([2])))
    first.reorder([1, 1])
    np.testing.assert_array_equal(first.states["cache"][0], first.states["cache"][1])
    first(x=x[0], at=np.array([3]))
    np.testing.assert_array_equal(first.states["cache"][1, 2], x[3, 1, 0])
    first.reset()
    assert first.states == {}
    y = first(x=x[0], at=np.array([0]))
    np.testing.assert_allclose(y, x[0], rtol=1e-6)  # attends to itself alone
    np.testing.assert_array_equal(first.states["cache"][:, 1:], np.zeros((2, ROOM - 1, DIM)))


@pytest.mark.thorough
@pytest.mark.parametrize("spelling", ["scatter_elements", *thorough(["scatter_nd", "tensor_scatter"])])
def test_a_place_outside_of_the_state_changes_nothing(spelling, tmp_path):
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(proto(SPELLINGS[spelling])))
    net = hetero_tvm.load(hetero_tvm.build_model(model).export(tmp_path))
    session = net.session(initial={"cache": np.ones((2, ROOM, DIM), np.float32)})
    x = np.full((2, 1, DIM), 2, np.float32)
    session(x=x, at=np.array([5]))
    before = session.states["cache"]
    for place in (ROOM, -ROOM - 1, 1 << 40):
        with pytest.raises(LibraryError, match="outside|must be 0 or more"):
            session(x=x, at=np.array([place]))
        np.testing.assert_array_equal(session.states["cache"], before)


@pytest.mark.thorough
def test_rows_of_any_number_as_one_library(tmp_path):
    source = proto(SCATTER_ND, new="n")
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(source, shapes={"n": (Span(1, 7),)}))
    assert room_of(model) == {"cache": 0}
    built = hetero_tvm.build_model(model)
    assert not built.no_step and built.check().ok
    net = hetero_tvm.load(built.export(tmp_path))
    session = net.session()
    random, cache, at = np.random.default_rng(2), np.zeros((2, ROOM, DIM)), 0
    for count in (7, 1, 3, 1, 5, 7):
        x = random.standard_normal((2, count, DIM)).astype(np.float32)
        wanted, cache = attended(x, np.arange(at, at + count), cache)
        y = session(x=x, at=np.arange(at, at + count))
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
        at += count
    np.testing.assert_array_equal(session.states["cache"], cache.astype(np.float32))


@pytest.mark.thorough
@pytest.mark.parametrize("spelling", ["selection", *thorough(["scatter_nd"])])
def test_any_number_of_sequences(spelling, tmp_path):
    source = proto(SPELLINGS[spelling], batch="b", new="1" if spelling == "selection" else "n")
    spans = {"b": (Span(1, 5),), "n": (Span(1, 4),)}
    shapes = {name: span for name, span in spans.items() if name == "b" or spelling != "selection"}
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(source, shapes=shapes))
    assert room_of(model) == {"cache": 0}
    built = hetero_tvm.build_model(model)
    assert not built.no_step and built.check().ok
    net = hetero_tvm.load(built.export(tmp_path))
    random = np.random.default_rng(5)
    for batch in (1, 4):
        session, cache = net.session(), np.zeros((batch, ROOM, DIM))
        for at in range(3):
            x = random.standard_normal((batch, 1, DIM)).astype(np.float32)
            wanted, cache = attended(x, np.array([at]), cache)
            np.testing.assert_allclose(session(x=x, at=np.array([at])), wanted, rtol=1e-5, atol=1e-6)
        session.reorder([0] * 3)
        again = session.fork()
        x = random.standard_normal((3, 1, DIM)).astype(np.float32)
        wanted, _ = attended(x, np.array([3]), cache[[0] * 3])
        for one in (session, again):
            np.testing.assert_allclose(one(x=x, at=np.array([3])), wanted, rtol=1e-5, atol=1e-6)


def test_what_else_reads_the_state_or_nothing_reads_is_copied():
    reading = ATTENTION.replace("y =", "y0 =") + " s = ReduceSum<keepdims=0>(cache) y = Add(y0, s)"
    assert room_of(hetero_tvm.optimize_model(hetero_tvm.import_model(proto(SCATTER_ND, read=reading)))) == {}
    unread = "y = Mul(x, x)"
    assert room_of(hetero_tvm.optimize_model(hetero_tvm.import_model(proto(SCATTER_ND, read=unread)))) == {}
    adding = SCATTER_ELEMENTS.replace("axis=1", 'axis=1, reduction="add"')
    assert room_of(hetero_tvm.optimize_model(hetero_tvm.import_model(proto(adding)))) == {}


def test_a_check_of_what_was_written_leaves_no_step():
    """The row that is looked up is told by the cache: a wrong one would be found after the write."""
    reading = """
        number = ReduceMax<keepdims=0>(cache_out)
        place = Cast<to=7>(number)
        row = Gather<axis=1>(x, place)
        axis1 = Constant<value_ints=[1]>()
        y = Unsqueeze(row, axis1)
    """
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(proto(SCATTER_ND, read=reading)))
    assert model.step is None


@pytest.mark.thorough
def test_a_program_of_pytorch_with_buffers(tmp_path):
    torch = pytest.importorskip("torch")

    class Cached(torch.nn.Module):
        def __init__(self, way):
            super().__init__()
            self.way = way
            self.register_buffer("keys", torch.zeros(1, 2, ROOM, DIM), persistent=False)

        def forward(self, x, at):
            if self.way == "copy":
                self.keys.index_copy_(2, at, x)
            elif self.way == "put":
                self.keys[:, :, at] = x
            else:
                places = torch.arange(ROOM)
                self.keys.copy_(torch.where((places == at)[:, None], x, self.keys))
            scores = x @ self.keys.transpose(-1, -2)
            seen = torch.arange(ROOM) <= at[:, None]
            return torch.softmax(scores.masked_fill(~seen, -1e9), -1) @ self.keys

    random = np.random.default_rng(3)
    for way in ("copy", "put", "select"):
        module = Cached(way)
        example = (torch.zeros(1, 2, 1, DIM), torch.tensor([0]))
        model = hetero_tvm.optimize_model(hetero_tvm.import_model(torch.export.export(module, example)))
        assert room_of(model) == {"keys": 0}, way
        net = hetero_tvm.load(hetero_tvm.build_model(model).export(tmp_path / way))
        session = net.session()
        for n in (0, 1, 7):
            x = random.standard_normal((1, 2, 1, DIM)).astype(np.float32)
            with torch.no_grad():
                wanted = module(torch.from_numpy(x), torch.tensor([n])).numpy()
            # float32 against float32: sums of 8 values in another order
            np.testing.assert_allclose(session(x, np.array([n])), wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(session.states["keys"], module.keys.numpy())


def attention_model(new, past, total):
    """GroupQueryAttention of ``new`` rows a call, by two sequences."""
    node = onnx.helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_key", "past_value", "seqlens_k", "total"],
        ["y", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=2,
    )
    tensor = onnx.helper.make_tensor_value_info
    pasts = [tensor(f"past_{name}", 1, [2, 2, past, DIM]) for name in ("key", "value")]
    presents = [tensor(f"present_{name}", 1, [2, 2, total, DIM]) for name in ("key", "value")]
    rows = [tensor(name, 1, [2, new, heads * DIM]) for name, heads in (("q", 4), ("k", 2), ("v", 2))]
    inputs = [*rows, *pasts, tensor("seqlens_k", 6, [2]), tensor("total", 6, [])]
    graph = onnx.helper.make_graph(
        [node], "attention", inputs, [tensor("y", 1, [2, new, 4 * DIM]), *presents]
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("shared", [True, *thorough([False])])
def test_group_query_attention_step_by_step_is_what_onnxruntime_computes(shared, tmp_path):
    """A present as large as the past, and one that grows: written at places that the lengths tell."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if shared:
        source, shapes, least = attention_model(1, ROOM, ROOM), None, 0
    else:
        source, least = attention_model("new", "past", "total"), 40 + 3
        shapes = {"past": (Span(0, 40),), "new": (Span(1, 3),)}
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(source, shapes=shapes))
    room = room_of(model)
    assert room.keys() == {"past_key", "past_value"}
    assert all((count >= least) if least else count == 0 for count in room.values())
    built = hetero_tvm.build_model(model)
    assert not built.no_step
    net = hetero_tvm.load(built.export(tmp_path))
    theirs = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    session = net.session()
    past = [np.zeros((2, 2, ROOM if shared else 0, DIM), np.float32) for _ in range(2)]
    random, places, length = np.random.default_rng(4), set(), 0
    # Behind a past onnxruntime takes one row of several sequences.
    for count in (1,) * 6 if shared else (3, 1, 1, 1, 1):
        length += count
        given = {
            name: random.standard_normal((2, count, heads * DIM)).astype(np.float32)
            for name, heads in (("q", 4), ("k", 2), ("v", 2))
        }
        given |= {"seqlens_k": np.int32([length - 1] * 2), "total": np.array(length, np.int32)}
        wanted, *past = theirs.run(None, {**given, "past_key": past[0], "past_value": past[1]})
        # float32 in both, exponentials of a few ulp
        np.testing.assert_allclose(session(**given), wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(session.states["past_key"][:, :, :length], past[0][:, :, :length])
        places.add(session._arrays["past_key"].ctypes.data)
    assert len(places) == 1
