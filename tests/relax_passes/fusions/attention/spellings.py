"""Attention as exporters write it, fused and compared in float64."""

import math

import numpy as np

from hetero_tvm.relax_passes.fusions.attention.attention import FuseAttention
from tests.relax_passes.graphs import (
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    same_numbers,
    weights,
)

B, S, H, D = 2, 4, 3, 5
WIDTH = H * D
QKV = {"q": (B, S, WIDTH), "k": (B, 6, WIDTH), "v": (B, 6, WIDTH)}
SELF = {"q": (B, S, WIDTH), "k": (B, S, WIDTH), "v": (B, S, WIDTH)}
SCALE = constant(1 / math.sqrt(D))
NEVER = np.finfo("float32").min
INPUT = {"x": (B, S, 7)}


def heads(emit, x, axes=(0, 2, 1, 3)):
    shape = [int(e) for e in x.ty.shape]
    return emit(op.permute_dims(emit(op.reshape(x, (*shape[:2], H, D))), list(axes)))


def attention(
    emit,
    q,
    k,
    v,
    scores=lambda emit, s: emit(op.multiply(s, SCALE)),
    *,
    key="once",
    q_by=None,
    k_by=None,
    v_by=None,
):
    """``scores`` maps the product to the softmax's input; ``*_by`` map the heads."""
    query, value = heads(emit, q), heads(emit, v)
    if key == "once":
        key = heads(emit, k, (0, 2, 3, 1))
    else:
        key = emit(op.permute_dims(heads(emit, k), [0, 1, 3, 2]))
    query = q_by(emit, query) if q_by else query
    key = k_by(emit, key) if k_by else key
    value = v_by(emit, value) if v_by else value
    weights_ = emit(op.nn.softmax(scores(emit, emit(op.matmul(query, key))), axis=-1))
    out = emit(op.permute_dims(emit(op.matmul(weights_, value)), [0, 2, 1, 3]))
    return emit(op.reshape(out, (B, int(q.ty.shape[1]), WIDTH)))


def fused(body, inputs=QKV, *rules, **fusions):
    before = module(inputs, body)
    after, names, report = fuse(before, *(rules or (FuseAttention(),)))
    assert report.fusions == (fusions or {"attention": 1}) and not report.misses
    same_numbers(before, after)
    assert names_of(before) <= set().union(*names.values())
    (found,) = contracts(after, "attention")
    return found, after


def by(function, value, left=False):
    value = constant(value)
    return lambda emit, x: emit(function(value, x) if left else function(x, value))


def triangle(q_len=S, kv_len=S):
    return np.tril(np.ones((1, 1, q_len, kv_len), bool), kv_len - q_len)


def causal_scores(kind, mask=None):
    def build(emit, s):
        length = [int(e) for e in s.ty.shape][2:]
        s = emit(op.multiply(s, SCALE))
        if kind == "where":
            return emit(op.where(constant(triangle(*length), "bool"), s, constant(NEVER)))
        return emit(op.add(s, constant(np.where(triangle(*length), 0, -1e9))))

    return build


def miss(body, inputs=QKV, rule=None):
    before = module(inputs, body)
    after, _, report = fuse(before, rule or FuseAttention())
    assert "attention" not in report.fusions and calls(after)["attention"] == 0
    same_numbers(before, after)
    return report.misses[0]["reason"] if report.misses else None


def guarded(emit, q, k, v, guard):
    """PyTorch's export: the keys transposed through rank 3, the weights guarded against NaN."""
    merged = emit(op.reshape(heads(emit, k), (B * H, 6, D)))
    key = emit(op.reshape(emit(op.permute_dims(merged, [0, 2, 1])), (B, H, D, 6)))
    w = emit(op.nn.softmax(emit(op.matmul(heads(emit, q), key)), axis=-1))
    w = guard(emit, w)
    out = emit(op.permute_dims(emit(op.matmul(w, heads(emit, v))), [0, 2, 1, 3]))
    return emit(op.reshape(out, (B, S, WIDTH)))


def projected(emit, x, *, bias=(True, True, True), shared=False, other=None, same=False, key_out=False):
    bases = []
    for i in range(3):
        source = other if other is not None and i == 2 else x
        seed = 0 if same else i
        base = emit(op.matmul(source, constant(weights(7, WIDTH, seed=seed))))
        bases.append(emit(op.add(base, constant(weights(WIDTH, seed=seed)))) if bias[i] else base)
    out = attention(emit, *bases)
    return (out, emit(op.tanh(bases[1]))) if key_out else out
