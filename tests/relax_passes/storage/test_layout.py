"""Images in channel blocks: which operators go on blocks, what is converted, and the numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm import zoo
from hetero_tvm.api import import_model, optimize_model
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import FuseConv2d
from hetero_tvm.relax_passes.fusions.group_norm import FuseGroupNorm
from hetero_tvm.relax_passes.fusions.normalization import FuseLayerNorm
from hetero_tvm.relax_passes.fusions.normalization_layout import NormAxis
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.storage.layout import BlockImages
from tests.relax_passes.graphs import (
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    relax,
    same_numbers,
    weights,
)

BLOCK = 4
PASS = BlockImages(BLOCK, lambda op: True)
X = {"x": (2, 3, 6, 5)}


def conv(emit, x, filters, kernel=3, groups=1, seed=0, **attrs):
    channels = int(x.ty.shape[1])
    weight = constant(weights(filters, channels // groups, kernel, kernel, seed=seed) * 0.3)
    return emit(op.nn.conv2d(x, weight, groups=groups, **{"padding": kernel // 2, **attrs}))


def blocked(body, inputs=X, conversions=0):
    before = module(inputs, body)
    after, names, report = fuse(before, FuseConv2d(), PASS)
    same_numbers(before, after)
    assert names_of(before) <= set().union(*names.values())
    assert len(report.conversions) == calls(after)["relayout"] == conversions, report.conversions
    return after, report


def test_padding_is_written_by_the_producer():
    """Plain into the first, zeros around what the second reads, and one conversion of the result."""
    after, report = blocked(lambda e, x: conv(e, e(op.nn.relu(conv(e, x, 8))), 4), conversions=1)
    first, second = contracts(after, "conv2d")
    assert (first.x_layout, first.y_layout) == ("NCHW", "NCHW4c+1,1,1,1")
    assert (second.x_layout, second.y_layout) == ("NCHW4c+1,1,1,1", "NCHW4c")
    assert report.conversions[0]["reason"] == "the model's result takes NCHW"


def test_a_group_norm_between_convolutions_works_on_blocks():
    """Groups of three channels lie across blocks of four; a norm of what is no image's stays plain."""
    vectors = [constant(weights(12, seed=seed)) for seed in (5, 6)]

    def body(emit, x):
        x = conv(emit, x, 12)
        x = emit(op.nn.group_norm(x, *vectors, num_groups=4, channel_axis=1, axes=[2, 3]))
        return conv(emit, emit(op.nn.silu(x)), 8, seed=1)

    before = module(X, body)
    after, _, report = fuse(before, FuseGroupNorm(), FuseConv2d(), PASS)
    same_numbers(before, after)
    (norm,) = contracts(after, "blocked_group_norm")
    assert (norm.x_layout, norm.y_layout) == ("NCHW4c", "NCHW4c+1,1,1,1")
    assert len(report.conversions) == 1, "the result alone"
    plain, _, _ = fuse(
        before, FuseGroupNorm(), FuseConv2d(), BlockImages(BLOCK, lambda op: op.kind == "conv2d")
    )
    assert [norm.shape for norm in contracts(plain, "group_norm")] == [(2, 12, 6, 5)]


def test_a_norm_over_channels_between_convolutions_works_on_blocks():
    vectors = [constant(weights(12, seed=seed)) for seed in (5, 6)]

    def body(emit, x):
        rows = emit(op.permute_dims(conv(emit, x, 12), (0, 2, 3, 1)))
        rows = emit(op.nn.layer_norm(rows, *vectors, axes=[3]))
        return conv(emit, emit(op.permute_dims(rows, (0, 3, 1, 2))), 8, seed=1)

    before = module(X, body)
    rules = FuseLayerNorm(), NormAxis(lambda op: True), FuseConv2d()
    after, _, report = fuse(before, *rules, PASS)
    same_numbers(before, after)
    (norm,) = contracts(after, "blocked_normalize")
    assert (norm.x_layout, norm.y_layout) == ("NCHW4c", "NCHW4c+1,1,1,1")
    assert len(report.conversions) == 1, "the result alone"


def test_residual_block_with_pool_and_global_mean():
    def body(emit, x):
        x = emit(op.nn.max_pool2d(conv(emit, x, 8), (3, 3), (2, 2), (1, 1)))
        y = conv(emit, emit(op.nn.relu(conv(emit, x, 8))), 8, seed=1)
        x = emit(op.nn.relu(emit(op.add(y, x))))
        return emit(op.reshape(emit(op.mean(x, [2, 3], True)), (2, 8)))

    after, _ = blocked(body)
    assert calls(after) == {"conv2d": 3, "pool2d": 2, "reshape": 2}
    assert contracts(after, "conv2d")[2].epilogue == ("residual", "relu")
    # The shared input has zeros around it for the padded reader, and the residual reads around them.
    assert contracts(after, "conv2d")[2].residual_layout == "NCHW4c+1,1,1,1"


def test_depthwise_converts_its_plain_input():
    after, report = blocked(lambda e, x: conv(e, conv(e, x, 3, groups=3), 3, groups=3), conversions=2)
    assert report.conversions[0] == {
        "node": "x",
        "from": "NCHW",
        "to": "NCHW4c+1,1,1,1",
        "reason": "input x gives NCHW",
    }


def test_a_constant_image_is_converted():
    image = constant(weights(2, 3, 6, 5))

    def body(emit, x):
        return emit(op.add(x, conv(emit, conv(emit, image, 3, groups=3), 3, groups=3)))

    _, report = blocked(body, conversions=3)
    assert report.conversions[0]["reason"] == "a constant gives NCHW"


def test_elementwise_between_convolutions_stays_in_blocks():
    """Lanes past the channels become zero again where an operator moves zero, and so do zeros around."""

    def body(emit, x):
        y = conv(emit, x, 6)
        z = emit(op.exp(emit(op.multiply(y, emit(op.sigmoid(emit(op.mean(y, [2, 3], True))))))))
        z = emit(op.add(emit(op.multiply(z, constant(weights(6, 1, 1)))), constant(0.5)))
        return emit(op.mean(conv(emit, z, 8), [2, 3], True))

    after, _ = blocked(body)
    found = calls(after)
    assert found["where"] == 3 and found["pad"] == 1 and found["relayout"] == 0


def test_elementwise_after_zeros_around_reads_a_slice():
    def body(emit, x):
        y = conv(emit, x, 4)
        return emit(op.mean(emit(op.add(emit(op.tanh(y)), conv(emit, y, 4, seed=2))), [2, 3], True))

    after, _ = blocked(body)
    assert calls(after)["strided_slice"] == 1


def test_regions_take_the_cheaper_layout():
    """A small border to the plain side does not pull a large region off its blocks, and vice versa."""
    wide = {"x": (1, 3, 6, 5), "p": (1, 4, 6, 5), "q": (1, 4, 6, 5)}

    def mostly_plain(emit, x, p, q):
        y = emit(op.add(emit(op.tanh(p)), emit(op.tanh(q))))
        return emit(op.tanh(emit(op.add(y, conv(emit, x, 4)))))

    after, _ = blocked(mostly_plain, wide)
    assert calls(after)["tanh"] == 2 and contracts(after, "conv2d")[0].plain
    assert all(len(v.ty.shape) == 4 for v in after["main"].params)

    def mostly_blocks(emit, x, p, q):
        y = emit(op.add(conv(emit, x, 4), conv(emit, p, 4)))
        y = emit(op.multiply(emit(op.tanh(y)), emit(op.tanh(conv(emit, q, 4)))))
        return emit(op.mean(y, [2, 3], True)), emit(op.mean(p, [2, 3], True))

    blocked(mostly_blocks, wide, conversions=2)


@pytest.mark.parametrize("batch", [1, 2])
def test_zeros_around_parts_lie_around_the_whole(batch):
    """Parts of one image may be written into the whole: readers of both are served without a copy."""

    def body(emit, x):
        parts = [conv(emit, x, 4)]
        for n in range(2):
            parts.append(conv(emit, parts[-1], 4, seed=n))
        return emit(op.mean(conv(emit, emit(op.concat(parts, 1)), 8, kernel=1), [2, 3], True))

    after, _ = blocked(body, {"x": (batch, 3, 6, 5)})
    around = "NCHW4c+1,1,1,1" if batch == 1 else "NCHW4c"
    *_, last, whole = contracts(after, "conv2d")
    assert (last.y_layout, whole.x_layout) == (around, around)


def test_zeros_stay_within_a_whole_that_others_read():
    """An addition reads what lies between zeros from a copy: parts alone keep theirs."""

    def body(emit, x):
        part = conv(emit, x, 4)
        whole = emit(op.concat([part, conv(emit, part, 4)], 1))
        return emit(op.add(emit(op.tanh(whole)), conv(emit, whole, 8, kernel=1)))

    after, _ = blocked(body, {"x": (1, 3, 6, 5)}, conversions=1)
    assert contracts(after, "conv2d")[-1].x_layout == "NCHW4c"


def test_concat_of_whole_blocks_only():
    def body(filters):
        def inner(emit, x):
            parts = [conv(emit, x, f, seed=f) for f in filters]
            return emit(op.mean(conv(emit, emit(op.concat(parts, 1)), 4), [2, 3], True))

        return inner

    blocked(body((4, 8)))
    after, _ = blocked(body((4, 6)), conversions=1)
    assert [found.plain for found in contracts(after, "conv2d")] == [True, True, False]


def test_grouped_convolution():
    inner = BlockImages(BLOCK, lambda op: op.groups < 4)
    before = module(X, lambda e, x: conv(e, conv(e, conv(e, x, 8), 8, groups=2), 8, groups=4))
    after, _, report = fuse(before, FuseConv2d(), inner)
    same_numbers(before, after)
    assert [c.x_layout for c in contracts(after, "conv2d")] == ["NCHW", "NCHW4c+1,1,1,1", "NCHW"]
    assert [c["reason"].split(" ")[0] for c in report.conversions] == ["conv2d"]


def test_a_convolution_alone_stays_plain():
    before = module(X, lambda e, x: e(op.tanh(conv(e, e(op.tanh(x)), 4))))
    after, _, report = fuse(before, FuseConv2d(), PASS)
    assert contracts(after, "conv2d")[0].plain and not report.conversions
    only_blocks = BlockImages(BLOCK, lambda op: not op.plain)  # unless the target has no plain kernel
    after, _, report = fuse(before, FuseConv2d(), only_blocks)
    assert contracts(after, "conv2d")[0].y_layout == "NCHW4c" and len(report.conversions) == 1


def test_nothing_to_do():
    before = module(X, lambda e, x: e(op.nn.max_pool2d(e(op.tanh(x)), (2, 2))))
    after, _, report = fuse(before, PASS)
    assert calls(after) == {"tanh": 1, "max_pool2d": 1} and not report.conversions
    before = module(X, lambda e, x: conv(e, x, 4))
    after, _, report = fuse(before, FuseConv2d(), BlockImages(BLOCK, lambda op: False))
    assert contracts(after, "conv2d")[0].plain and not report.conversions
    after, _, report = fuse(before, FuseConv2d(), PASS, disabled=("blocked_images",))
    assert contracts(after, "conv2d")[0].plain


KINDS = ("conv", "conv", "depthwise", "pool", "mean", "unary", "binary", "concat")


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.data())
def test_random_nets(data):
    """Whatever is built from images computes the same on blocks."""
    draw = data.draw

    def body(emit, x):
        images = [x]
        for step in range(draw(st.integers(1, 7))):
            x = draw(st.sampled_from(images))
            channels, height, width = [int(e) for e in x.ty.shape][1:]
            kind = draw(st.sampled_from(KINDS))
            if kind == "conv":
                kernel = draw(st.sampled_from([1, 3]))
                x = conv(
                    emit,
                    x,
                    draw(st.sampled_from([4, 6, 8])),
                    kernel,
                    seed=step,
                    padding=draw(st.integers(kernel // 2, 2)),
                )
            elif kind == "depthwise":
                x = conv(emit, x, channels, groups=channels, seed=step)
            elif kind == "pool" and min(height, width) > 1:
                pool = op.nn.max_pool2d if draw(st.booleans()) else op.nn.avg_pool2d
                x = emit(pool(x, (2, 2), (2, 1), (1, 0, 0, 1)))
            elif kind == "mean":
                x = emit(op.mean(x, [2, 3], True))
            elif kind == "unary":
                x = emit(draw(st.sampled_from([op.tanh, op.sigmoid, op.nn.relu]))(x))
            else:
                others = [o for o in images if [int(e) for e in o.ty.shape][2:] == [height, width]]
                other = draw(st.sampled_from(others))
                if kind == "concat":
                    x = emit(op.concat([x, other], 1))
                elif int(other.ty.shape[1]) == channels:
                    x = emit(op.add(x, other))
                else:
                    x = emit(op.multiply(x, constant(weights(channels, 1, 1, seed=step))))
            images.append(x)
        return images[-1], emit(op.abs(draw(st.sampled_from(images))))

    before = module({"x": (1, draw(st.sampled_from([3, 4])), 5, 4)}, body)
    after, names, report = fuse(before, FuseConv2d(), PASS)
    relax.analysis.well_formed(after)
    same_numbers(before, after)
    assert {var.name for var in Graph(before).bindings()} <= set().union(*names.values())
    assert len(report.conversions) == calls(after)["relayout"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "convolutions", "added"), [("resnet50", 53, 16), ("mobilenetv2", 52, 10)])
def test_zoo_nets_need_no_conversion(name, convolutions, added):
    """First layers read plain NCHW, the last pooling leaves one pixel: the same in both layouts."""
    plan = optimize_model(import_model(zoo.build(name)))
    assert plan.report.fusions["conv_bn"] == plan.report.fusions["conv_epilogue"] == convolutions
    assert plan.report.conversions == []
    kinds = [task.op.kind if task.op is not None else "" for task in plan.tasks]
    convs = [task for task, kind in zip(plan.tasks, kinds, strict=True) if kind == "conv2d"]
    pairs = [task for task, kind in zip(plan.tasks, kinds, strict=True) if kind == "expand_depthwise"]
    assert sum(task.count for task in convs) + 2 * sum(task.count for task in pairs) == convolutions
    assert sum(task.count for task in convs if "residual" in task.op.epilogue) == added
    assert not any(task.op.plain for task in convs) and all(task.space for task in plan.tasks)


def test_slices_of_whole_blocks_stay_blocked():
    def body(emit, x):
        y = conv(emit, x, 3 * BLOCK)
        first = emit(op.strided_slice(y, [1], [0], [BLOCK], [1]))
        rest = emit(op.strided_slice(y, [-3], [-2 * BLOCK], [100], [1]))
        return conv(emit, emit(op.concat([rest, first], 1)), BLOCK)

    blocked(body, conversions=1)


def test_other_slices_are_plain():
    def body(emit, x):
        y = conv(emit, x, 3 * BLOCK)
        return conv(emit, emit(op.strided_slice(y, [1], [1], [BLOCK + 1], [1])), BLOCK)

    after, _ = blocked(body)
    assert all(found.plain for found in contracts(after, "conv2d"))


def test_a_lone_convolution_converts_where_that_pays():
    asked = []

    def pays(plain, blocked):
        asked.append((plain.x_layout, blocked.x_layout, blocked.y_layout))
        return plain.filters == 8

    rule = BlockImages(BLOCK, lambda op: True, pays=pays)
    inputs = {"x": (1, 8, 6, 5)}
    for filters, layouts in ((8, ("NCHW4c+1,1,1,1", "NCHW4c")), (4, ("NCHW", "NCHW"))):
        before = module(inputs, lambda e, x, n=filters: conv(e, x, n))
        after, _, _ = fuse(before, FuseConv2d(), rule)
        same_numbers(before, after)
        (found,) = contracts(after, "conv2d")
        assert (found.x_layout, found.y_layout) == layouts
    assert asked == 2 * [("NCHW", "NCHW4c+1,1,1,1", "NCHW4c")]
