"""Layers of a transformer in Relax: what encoders and decoders have in common."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, GlobalVar, relax, tirx
from hetero_tvm.language.families.decoder import Decoder
from hetero_tvm.language.weights import DecoderWeights, expert_matrices
from hetero_tvm.ops.decoding.contracts import Embed, LayerInputs, Linear, Multiply, RowNorm, Xielu
from hetero_tvm.ops.decoding.experts import Combine, ExpertLinear, Route
from hetero_tvm.ops.decoding.storage import Storage, Weight, storage_of, stored
from hetero_tvm.ops.decoding.streams import SparseGate
from hetero_tvm.targets.base.compiling import StepKernels


class LayerBuilder:
    """Emits calls of kernels into one function of Relax.

    Attributes
    ----------
    builder : of the function.
    rows : number of its rows, an expression or a number.
    read : bytes of weights that its products read.
    """

    def __init__(self, weights: DecoderWeights, kernels: StepKernels, rows: Expr | int):
        self.weights, self.kernels, self.rows = weights, kernels, rows
        self.decoder: Decoder = weights.decoder
        self.builder = relax.BlockBuilder()
        self.read = 0
        self._functions: dict[Any, GlobalVar] = {}
        self._calls: dict[Any, int] = {}

    def embedding(self, ids: Expr, positions: Expr, head: Linear | None = None) -> tuple[Expr, Any]:
        """Rows of the stream for tokens.

        Parameters
        ----------
        head : product that reads the same table as its weight, packed; None: the table is plain.

        Returns
        -------
        The rows; the packed table where there is a head, else None.
        """
        d, weights = self.decoder, self.weights
        width, learned = d.embed_width or d.width, 0 if d.embed_width else d.learned
        name, packed = weights.embeddings(), None
        if head is not None:
            table = stored(weights.checkpoint.matrix(name), weights.storage)
            storage = storage_of(table)
            packed = [constant(array) for array in self.kernels.pack(head, table)]
            arguments = list(packed)
        else:
            storage = Storage("f16") if weights.storage.bits else weights.storage
            plain = weights.table(name, d.vocab, width, d.spare_tokens).astype(storage.dtype, copy=False)
            arguments = [constant(plain)]
        if learned:
            arguments.append(constant(weights.positions()))
        op = Embed(d.vocab, width, storage, head is not None, d.embed_scale, learned, d.learned_offset)
        x = self.call(op, [ids, positions, *arguments], self.type(self.rows, width))
        if d.embed_width:  # positions are added to what the matrix makes of embeddings
            at = weights.positions()[d.learned_offset :]
            rows = Embed(len(at), d.width, Storage("f32"), False)
            at = self.call(rows, [positions, positions, constant(at)], self.type(self.rows, d.width))
            x = self.linear(x, [weights.names.project_in], d.width, width, residual=at)
        if d.embed_norm:
            x = self.norm(x, weights.names.embed_norm)
        return x, packed

    def layer_inputs(self, x: Expr, ids: Expr, positions: Expr) -> Expr:
        """Rows of what all layers have of each token beside the stream."""
        d, weights = self.decoder, self.weights
        table, projection, norm = weights.names.layer_inputs[:3]
        width, count = d.layer_inputs, len(d.layers)
        total, name = width * count, weights.need(table)
        given = weights.checkpoint.matrix(name)
        if given.shape[1:] != (total,):
            raise ModelError(f"{name} is {list(given.shape)}, expected [.., {total}]")
        bits = weights.storage.bits
        rows = stored(given, Storage("int8", weights.storage.group) if bits == 4 else weights.storage)
        storage, half = storage_of(rows), math.sqrt(0.5)
        op = Embed(
            rows.shape[0], total, storage, bool(bits), width**0.5 * half, lacking=rows.shape[0] < d.vocab
        )
        arrays = self.kernels.pack(Linear(op.vocab, total, storage), rows) if bits else [rows]
        own = self.call(op, [ids, positions, *map(constant, arrays)], self.type(self.rows, total))
        made = self.linear(x, [projection], total, d.width)
        scale = constant(weights.checkpoint.array(weights.need(norm)) * np.float32(half))
        # The matrix is divided by the root of the width, which the norm does not see but for its epsilon.
        op = LayerInputs(count, width, d.eps * d.width)
        return self.call(op, [made, scale, own], self.type(self.rows, total))

    def with_input(self, x: Expr, inputs: Expr, number: int) -> Expr:
        """The stream after what a layer makes of what it has of each token."""
        d, names = self.decoder, self.weights.names
        base, width = names.layer.format(number), d.layer_inputs
        gate, out, norm = (base + name for name in names.layer_inputs[3:])
        inner = self.linear(x, [gate], width, d.width, activation=d.activation)
        op = Multiply(width, width * len(d.layers), width * number)
        inner = self.call(op, [inner, inputs], self.type(self.rows, width))
        return self.norm(self.linear(inner, [out], d.width, width), norm, x, factor=self.factor(base))

    def factor(self, base: str) -> Expr | None:
        """Number [1] that the stream is multiplied by behind a layer; None where it stays as it is."""
        if not self.decoder.scaled_layers:
            return None
        name = self.weights.need(base + self.weights.names.layer_factor, "")
        return constant(self.weights.checkpoint.array(name).reshape(1))

    def added(
        self,
        x: Expr,
        inner: Expr,
        name: str,
        k: int,
        norm: str,
        last: bool = False,
        factor: Expr | None = None,
    ) -> Expr:
        """``x`` plus a product of ``inner``.

        Parameters
        ----------
        norm : name of the norm that the product goes through before the addition, or the sum after it, when
            the model does one of these.
        last : the sum stays as it is.
        factor : of the sum, where there is a norm before the addition.
        """
        d = self.decoder
        if d.post_norms:
            return self.norm(self.linear(inner, [name], d.width, k), norm, residual=x, factor=factor)
        x = self.linear(inner, [name], d.width, k, residual=x)
        return self.norm(x, norm) if d.norms_after and not last else x

    def before(self, x: Expr, name: str) -> Expr:
        """Input of a block: the stream, normalised where the model does that first."""
        return x if self.decoder.norms_after or not self.decoder.pre_norms else self.norm(x, name)

    def feed_forward(
        self,
        x: Expr,
        base: str,
        last: bool = False,
        normed: Expr | None = None,
        width: int = 0,
        factor: Expr | None = None,
        cut: float | None = None,
    ) -> Expr:
        """The stream after the MLP of a layer whose names begin with ``base``; ``normed`` is what the MLP
        reads where that is not the stream, ``width`` the channels inside where these are not the decoder's,
        ``factor`` what the sum is multiplied by, ``cut``
        what channels of its gate have to exceed, of :class:`SparseGate`."""
        d, names = self.decoder, self.weights.names
        up, width = [base + name for name in names.up], width or d.inner
        if normed is None:
            normed = self.before(x, base + names.mlp_norm)
        activation = None if names.activation else d.activation
        if cut is None:
            inner = self.linear(normed, up, width, d.width, activation=activation, gated=d.gated)
        else:
            both = self.linear(normed, up, 2 * width, d.width)
            inner = self.call(SparseGate(width, cut), [both], self.type(self.rows, width))
        if names.activation:
            inner = self._activated(inner, base + names.activation, width)
        if names.down_norm:
            inner = self.norm_of(inner, base + names.down_norm, width, d.eps)
        norm = base + (names.mlp_norm if d.norms_after else names.mlp_post_norm)
        return self.added(x, inner, base + names.down, width, norm, last, factor)

    def _activated(self, inner: Expr, base: str, width: int) -> Expr:
        """Rows behind an activation whose numbers have names that begin with ``base``."""
        parts = ("alpha_p", "alpha_n", "beta", "eps")
        found = [self.weights.find(base + part, "") for part in parts]
        positive, negative, beta, eps = (
            default if name is None else float(self.weights.checkpoint.array(name).reshape(-1)[0])
            for name, default in zip(found, (None, None, 0.5, -1e-6), strict=True)
        )
        if positive is None or negative is None:
            raise ModelError(f"the checkpoint has no {base}alpha_p and {base}alpha_n")
        numbers = [np.logaddexp(0.0, positive), beta + np.logaddexp(0.0, negative), beta, eps]
        return self.call(Xielu(width), [inner, constant(np.array(numbers, np.float32))], inner.ty)

    def beside_mixture(self, x: Expr, base: str, factor: Expr | None) -> Expr:
        """The stream after an MLP and a mixture of experts beside it, each with norms of its own."""
        d, names = self.decoder, self.weights.names
        behind, before, behind_experts, scales, _ = (base + name for name in names.beside)
        inner = self.linear(
            self.norm(x, base + names.mlp_norm),
            [base + name for name in names.up],
            d.inner,
            d.width,
            activation=d.activation,
            gated=d.gated,
        )
        plain = self.norm(self.linear(inner, [base + names.down], d.width, d.inner), behind)
        scale = self.weights.checkpoint.array(self.weights.need(scales, "")) * np.float32(d.width**-0.5)
        judged = self.call(RowNorm(d.width, d.eps), [x, constant(scale)], self.type(self.rows, d.width))
        both = self.mixture(plain, base, self.norm(x, before), judged, behind_experts)
        return self.norm(both, base + names.mlp_post_norm, residual=x, factor=factor)

    def mixture(
        self, x: Expr, base: str, normed: Expr, judged_by: Expr | None = None, post_norm: str = ""
    ) -> Expr:
        """The stream after the mixture of experts of a layer whose names begin with ``base``.

        Parameters
        ----------
        normed : rows that the experts read.
        judged_by : rows that experts are picked by, where these are others.
        post_norm : name of the norm before the addition, where that is not the MLP's.
        """
        d, names = self.decoder, self.weights.names
        experts = d.experts
        assert experts is not None
        router = self.weights.checkpoint.array(self.weights.need(base + names.router))
        if router.shape != (experts.count, d.width):
            problem = f"expected [{experts.count}, {d.width}]"
            raise ModelError(f"{base}{names.router} is {list(router.shape)}, {problem}")
        bias = self.weights.bias([base + names.router], experts.count)
        op = Linear(experts.count, d.width, bias=bias is not None)
        logits = self.product(
            normed if judged_by is None else judged_by, router, op, bias=bias
        )  # rounding would pick others
        slots = self.rows * experts.top
        types = [relax.TensorType([slots], dtype) for dtype in ("int32", "float32", "int32", "int32")]
        judged = [logits]
        if names.correction:
            correction = self.weights.checkpoint.array(self.weights.need(base + names.correction, ""))
            judged.append(constant(correction.reshape(experts.count)))
        route = Route(
            experts.count,
            experts.top,
            experts.normalised,
            experts.sigmoid,
            len(judged) > 1,
            experts.groups,
            experts.kept,
            experts.scale,
            experts.sparse,
        )
        picked = self.builder.emit(relax.call_tir(self.function(route), judged, types))
        chosen, shares, *order = (self.builder.emit(relax.TupleGetItem(picked, i)) for i in range(4))

        def all_experts(
            x: Expr, matrices: Sequence[str], op: Linear, spread: int, picked: tuple[int, ...] = ()
        ) -> Expr:
            rows = op.n * (1 + op.gated)
            factors = base + names.beside[-1] if d.mixtures_beside and spread == 1 else ""
            parts, biases = expert_matrices(self.weights, base, matrices, rows, op.k, picked, factors)
            op = dataclasses.replace(op, storage=storage_of(parts[0]), bias=biases is not None)
            packed = [np.concatenate(all) for all in self._packed(op, parts)]
            if biases is not None:
                packed.append(np.concatenate([self.kernels.pack_bias(op, bias) for bias in biases]))
            self.read += round(experts.top * rows * op.k * op.storage.bytes_per_weight)
            scaled = experts.scaled_rows and matrices is not down
            arguments = [x, chosen, *order, *([shares] if scaled else []), *map(constant, packed)]
            product = ExpertLinear(op, experts.count, spread, scaled)
            return self.call(product, arguments, self.type(slots, op.n))

        activation, down = experts.activation or d.activation, [names.expert_down]
        up = Linear(experts.inner, d.width, activation=activation, gated=d.gated, limit=experts.limit)
        inner = all_experts(normed, names.expert_up, up, experts.top, names.expert_rows)
        out = all_experts(inner, down, Linear(d.width, experts.inner), 1)
        gated = []
        if experts.shared:
            path, width = base + names.shared_expert, experts.shared
            up_names = [path + name for name in names.shared_up]
            beside = self.linear(normed, up_names, width, d.width, activation=d.activation, gated=d.gated)
            residual = None if experts.shared_gated or d.post_norms else x
            whole = self.linear(beside, [path + names.shared_down], d.width, width, residual=residual)
            if experts.shared_gated:
                gate = self.weights.checkpoint.array(self.weights.need(base + names.shared_gate))
                gated = [whole, self.product(normed, gate, Linear(1, d.width))]
            elif not d.post_norms:
                x = whole
        residual = [] if d.post_norms else [x]
        if d.post_norms and experts.shared and not gated:  # the norm is of both
            residual = [whole]
        combine = Combine(d.width, experts.top, bool(gated), bool(residual), not experts.scaled_rows)
        told = [] if experts.scaled_rows else [shares]
        y = self.call(combine, [out, *told, *residual, *gated], self.type(self.rows, d.width))
        return self.norm(y, post_norm or base + names.mlp_post_norm, residual=x) if d.post_norms else y

    def _packed(self, op: Linear, weights: Sequence[Weight]) -> Iterator[tuple[np.ndarray, ...]]:
        """The arrays of several weights, each with its like."""
        return zip(*(self.kernels.pack(op, weight) for weight in weights), strict=True)

    def linear(
        self,
        x: Expr,
        names: list[str],
        n: int,
        k: int,
        activation: str | None = None,
        gated: bool = False,
        residual: Expr | None = None,
        weights: DecoderWeights | None = None,
        rows: tuple[int, ...] = (),
        total: int = 0,
    ) -> Expr:
        """Product with matrices of these names, below one another; ``weights``: of another half; ``rows``: of
        the matrices, which have ``total`` of them, in the order of the result."""
        stacked = n * (1 + gated)
        weights = weights or self.weights
        weight = weights.matrix(names, stacked, k, rows, total)
        bias = weights.bias(names, stacked, rows, total)
        op = Linear(n, k, storage_of(weight), bias is not None, activation, gated, residual is not None)
        return self.product(x, weight, op, bias=bias, residual=residual)

    def product(
        self,
        x: Expr,
        weight: Weight | None,
        op: Linear,
        rows: Expr | int | None = None,
        bias: np.ndarray | None = None,
        residual: Expr | None = None,
        packed: Sequence[Expr] | None = None,
    ) -> Expr:
        """Product with a weight, or with one that is ``packed`` already."""
        if packed is None:
            packed = [constant(array) for array in self.kernels.pack(op, weight)]
        self.read += round(op.n * (1 + op.gated) * op.k * op.storage.bytes_per_weight)
        arguments = [x, *packed]
        if bias is not None:
            arguments.append(constant(self.kernels.pack_bias(op, bias)))
        if residual is not None:
            arguments.append(residual)
        return self.call(op, arguments, self.type(self.rows if rows is None else rows, op.n))

    def norm_of(self, x: Expr, name: str, width: int, eps: float) -> Expr:
        """Rows of few channels, normalised by their mean square."""
        scale = self.weights.checkpoint.array(self.weights.need(name))
        if scale.shape != (width,):
            raise ModelError(f"{name} is {list(scale.shape)}, expected [{width}]")
        return self.call(RowNorm(width, eps), [x, constant(scale)], self.type(self.rows, width))

    def norm(
        self,
        x: Expr,
        name: str,
        residual: Expr | None = None,
        picked: Expr | None = None,
        rows: Expr | None = None,
        scale: float = 1.0,
        factor: Expr | None = None,
    ) -> Expr:
        """Rows normalised by the norm of this name; ``rows`` of them where they are ``picked``; the sum with
        the residual times ``factor``."""
        d = self.decoder
        op = RowNorm(
            d.width,
            d.eps,
            d.centered,
            d.centered,
            residual is not None,
            picked is not None,
            factor is not None,
        )
        arrays = [constant(array * np.float32(scale)) for array in self.weights.norm(name, d.width)]
        rest = [value for value in (residual, picked, factor) if value is not None]
        return self.call(op, [x, *arrays, *rest], self.type(self.rows if rows is None else rows, d.width))

    def type(self, rows: Expr | int, width: int) -> relax.TensorType:
        """Type of float rows."""
        return relax.TensorType([rows, width], "float32")

    def in_place(self, op: Any, arguments: list[Expr], overwritten: int, types: list[Any]) -> list[Expr]:
        """Call of a kernel that writes to its last ``overwritten`` arguments; its results, those included."""
        fresh = len(types) - overwritten
        places = [-1] * fresh + list(range(len(arguments) - overwritten, len(arguments)))
        made = self.builder.emit(relax.op.call_tir_inplace(self.function(op), arguments, places, types))
        return [self.builder.emit(relax.TupleGetItem(made, field)) for field in range(len(types))]

    def function(self, op: Any) -> GlobalVar:
        """The kernel of a contract, for one more call."""
        self._calls[op] = self._calls.get(op, 0) + 1
        if op not in self._functions:
            name = f"{type(op).__name__.lower()}_{len(self._functions)}"
            function = self.kernels.emit(op).without_attr("global_symbol")
            self._functions[op] = self.builder.add_func(function, name)
        return self._functions[op]

    def kernel_table(self) -> list[dict[str, Any]]:
        """Kernels as a manifest has them, with the work of a call for one row where that is known."""
        rows = []
        for op, function in self._functions.items():
            symbol, nbytes, flops = str(function.name_hint), 0, 0
            name = symbol
            if isinstance(op, Linear):
                weights = op.n * (1 + op.gated) * op.k
                nbytes, flops = round(weights * op.storage.bytes_per_weight), 2 * weights
                name = f"{symbol}_{op.k}x{op.n}{'_gated' if op.gated else ''}"
            row = {"kernel": name, "calls": self._calls[op], "flops": flops, "bytes": nbytes}
            row |= {"weight_bytes": nbytes, "space": "step", "record": "default", "symbols": [symbol]}
            rows.append(row)
        return rows

    def call(self, op: Any, arguments: list[Expr], ty: relax.TensorType) -> Expr:
        """Call of a contract's kernel."""
        return self.builder.emit(relax.call_tir(self.function(op), arguments, ty))


def symbol(name: str) -> Expr:
    """A variable for an extent."""
    return tirx.Var(name, "int64")
