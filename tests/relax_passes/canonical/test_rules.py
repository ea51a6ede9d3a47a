"""All rules of the canonical form on random chains: names and numbers stay."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.relax_passes.canonical.rules import CANONICAL
from hetero_tvm.relax_passes.canonical.views import MergeReshapes
from tests.relax_passes.canonical.simplified import X
from tests.relax_passes.graphs import bindings, constant, fuse, module, names_of, op, same_numbers, weights


@settings(max_examples=40)
@given(st.data())
def test_random_chains(data):
    steps = st.sampled_from(
        [
            lambda x: op.multiply(x, constant(1.0)),
            lambda x: op.divide(x, constant(2.0)),
            lambda x: op.add(x, x),
            lambda x: op.reshape(x, (4, 3, 2)),
            lambda x: op.reshape(x, (2, 3, 4)),
            lambda x: op.permute_dims(x, [2, 0, 1]),
            lambda x: op.permute_dims(x),
            lambda x: op.power(x, constant(2.0)),
            lambda x: op.tanh(x),
            lambda x: op.squeeze(op.expand_dims(x, 0), 0),
            lambda x: op.astype(x, "float32"),
            lambda x: op.multiply(x, op.add(constant(1.0), constant(weights(1)))),
            lambda x: op.add(op.broadcast_to(constant(weights(1)), (2, 3, 4)), op.reshape(x, (2, 3, 4))),
        ]
    )
    chain = data.draw(st.lists(steps, min_size=1, max_size=8))
    keep = data.draw(st.integers(0, len(chain) - 1))

    def body(emit, x):
        values = []
        for step in chain:
            x = emit(step(x))
            values.append(x)
        return (x, values[keep]) if keep < len(chain) - 1 else x

    before = module(X, body)
    after, names, _ = fuse(before, *CANONICAL, MergeReshapes())
    assert len(bindings(after)) <= 2 * len(bindings(before))
    assert names_of(before) <= set().union(*names.values())
    same_numbers(before, after)
