"""A decoder described: what the supported architectures have in common, and what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hetero_tvm.ops.decoding.contracts import Growth


@dataclass(frozen=True)
class Rope:
    """A table of rotations: angles are ``position * inverse``, cosines and sines are times ``factor``.

    Texts of more than ``most`` tokens have other angles, ``longer``; 0 where all have the same.
    """

    inverse: tuple[float, ...]
    factor: float = 1.0
    longer: tuple[float, ...] = ()
    most: int = 0

    def table(self, positions: int) -> np.ndarray:
        """Cosines and sines, float32 [positions, channels]: half of the channels each."""
        angles = np.arange(positions, dtype=np.float32)[:, None] * np.asarray(self.inverse, np.float32)
        return np.concatenate([np.cos(angles), np.sin(angles)], 1) * np.float32(self.factor)


@dataclass(frozen=True)
class Layer:
    """Properties that may differ from layer to layer.

    Parameters
    ----------
    window : keys that a token sees; 0 for all.
    chunk : positions of a chunk, where tokens see those of their own chunk alone; 0 for all.
    growth : of its scores by the position; None for none.
    bare_heads : its queries and keys are as they are, where those of other layers are normalised.
    rope : number of the table of rotations.
    mixed : whether its MLP is the mixture of experts.
    share : factor on its scores, beside that of all layers.
    bare : its attention reads the stream as it is, where others normalise it first.
    attends, recurs, feeds : whether it has attention, a state (see :class:`Recurrence`) and an MLP.
    dim, kv_heads, inner : channels of a head, key heads and channels inside of its MLP, where these are not
        the decoder's; else 0.  A decoder whose layers differ has the largest.
    keys_of : number of the layer whose keys and values it attends to; -1 for its own.
    shares_keys : its values are made by the matrix of keys.
    norms_first : its parts read normalised rows, where those of others are normalised behind.
    cut : deviations from the mean that a channel of the MLP's gate has to exceed, where most are 0
        (:class:`hetero_tvm.ops.decoding.streams.SparseGate`); None where all count.
    """

    window: int = 0
    rope: int = 0
    mixed: bool = False
    share: float = 1.0
    bare: bool = False
    attends: bool = True
    recurs: bool = False
    feeds: bool = True
    dim: int = 0
    kv_heads: int = 0
    inner: int = 0
    keys_of: int = -1
    shares_keys: bool = False
    norms_first: bool = False
    cut: float | None = None
    chunk: int = 0
    growth: Growth | None = None
    bare_heads: bool = False

    @property
    def appends(self) -> bool:
        """Whether keys and values of its own are kept."""
        return self.attends and self.keys_of < 0


@dataclass(frozen=True)
class Recurrence:
    """State that layers keep of a text in the place of keys and values.

    Parameters
    ----------
    kind : ``convolution`` (LFM2), ``mamba``, ``mamba2``, ``delta`` (the linear attention of Qwen3-Next) or
        ``channel_delta`` (that of Kimi Linear).
    inner, size : channels; rows that their convolution reads.
    heads, state, groups : heads that have a step, numbers of a channel's state, groups of heads with one B
        and one C (one query and one key); a Mamba has one head.
    steps : channels that the steps of a Mamba are made of.
    eps : of the norms of B, C and what steps are made of in a Mamba, which may have scales (Jamba) or none
        (Falcon-Mamba); of the gated norm of a Mamba 2.  0 for none.
    before : that norm comes before the gate.
    doubled : shares of new values in a delta rule are up to 2.
    """

    kind: str
    inner: int
    size: int
    heads: int = 1
    state: int = 0
    groups: int = 1
    steps: int = 0
    eps: float = 0.0
    before: bool = False
    doubled: bool = False

    @property
    def convolved(self) -> int:
        """Channels of the convolution."""
        return self.inner + (
            2 * self.groups * self.state if self.kind in ("mamba2", "delta", "channel_delta") else 0
        )

    @property
    def numbers(self) -> int:
        """Numbers of a layer's state of one text."""
        return (self.size - 1) * self.convolved + self.inner * self.state


@dataclass(frozen=True)
class Experts:
    """MLPs of which a router picks a few for each row.

    Parameters
    ----------
    count, top, inner : number of them; of those that a row goes through; channels inside of each.
    normalised : the shares of a row have the sum 1; else they are parts of the softmax over all experts.
    shared : channels inside of one more that all rows go through; 0 for none.
    shared_gated : times a gate of its own.
    sigmoid, groups, kept, scale, sparse : of :class:`hetero_tvm.ops.decoding.experts.Route`.
    limit : bound of their gated halves, see :class:`hetero_tvm.ops.decoding.contracts.Linear`.
    activation : of theirs; empty where it is that of the other MLPs.
    scaled_rows : shares multiply the rows that experts read, and not what they give (Llama 4).
    """

    count: int
    top: int
    inner: int
    normalised: bool = True
    shared: int = 0
    shared_gated: bool = False
    sigmoid: bool = False
    groups: int = 1
    kept: int = 1
    scale: float = 1.0
    sparse: float = 0.0
    limit: float = 0.0
    activation: str = ""
    scaled_rows: bool = False


@dataclass(frozen=True)
class Latent:
    """Keys and values that are made of few channels (multi-head latent attention), and so queries may be.

    Parameters
    ----------
    queries, keys : channels that queries, and keys and values, are made of; queries 0: of the stream's.
    shared : channels of a key that are the same for all heads, which are the rotated ones.
    eps : of the norms of these channels.
    """

    queries: int
    keys: int
    shared: int
    eps: float = 1e-6


@dataclass(frozen=True)
class Relative:
    """Biases of scores by the distance of two tokens (T5): a table [buckets, heads].

    Parameters
    ----------
    buckets : number of them; half are for single distances, the rest grow by the logarithm.
    distance : from which on all share the last bucket.
    """

    buckets: int
    distance: int


@dataclass(frozen=True)
class Decoder:
    """A transformer that continues a text, or one of the halves of an encoder-decoder.

    Parameters
    ----------
    vocab, width, inner : tokens, channels of the stream, channels inside of the MLP.
    heads, kv_heads, dim : query heads, key heads, channels of each.
    context : largest number of tokens of a sequence.
    eps, centered : of the norms; layer norms are centered, RMS norms are not.
    norm_offset : added to the scales of the norms, of which there are none where norms are plain.
    ropes, rotated : tables of rotations; channels of a head that are rotated.
    learned, learned_offset : rows of a table of positions, 0 for none; what is added to a position.
    activation, gated : of the MLP; ``xielu`` has numbers of each layer, see ``Names.activation``.
    head_norms : queries and keys are normalised head by head; all heads together where norms are wide;
        scales come behind the rotation where norms are last.  ``norms_by_head``: each head has scales of its
        own; ``centered_head_norms``: they are layer norms; ``value_norms``: values are normalised too,
        without scales; ``plain_head_norms``: none have scales.
    latent : of its attention; None where keys and values are made of the stream.
    values : channels of a value; 0 where they are as many as a key's.
    pre_norms : attention and MLP read normalised rows.
    post_norms : what attention and MLP give is normalised before it is added.
    gated_heads : what attention gives is multiplied by the sigmoid of a gate (``Names.gate``).
    sinks : every head has a score of no key beside those of the keys.
    clip : bound of queries, keys and values; 0 for none.
    scale : of the scores.  ``softcap`` bounds them, ``logits_softcap`` the logits; 0 for none.
    embed_scale : of the embeddings.
    embed_width : channels of the embeddings, where matrices lead from and to them; 0: the stream's.
    norms_after : norms stand behind the additions, and there is no last one (BART).
    experts : of the mixed layers; None where there are none.  ``mixtures_beside``: these have an MLP as well,
        beside them.
    layer_inputs : channels that each layer has of a token beside the stream; 0 for none.
    scaled_layers : the stream is multiplied by a number behind each layer.
    streams : of which layers compute the first and correct the others by it (AltUp); 0 for one alone.
    scaled_streams : what the layer's channels beside them are joined to is scaled.
    low_rank : channels of a product beside attention (LAuReL); 0 for none.
    recurrence : of the layers with a state; None where there are none.
    parallel : attention and MLP read the same rows of the stream, by the norm of attention (Phi); each by a
        norm of its own with ``parallel_norm`` (GPT-NeoX).
    embed_norm : embeddings are normalised.
    sinusoids : ``marian`` or ``m2m_100`` where the positions are computed; else the checkpoint has them.
    relative : biases by distance; None for none.
    slopes : of ALiBi, by which scores fall with the distance, for each head; empty for none.
    cross : every layer attends to a source as well.
    final_scale : of the rows that the logits are made of.
    head_activation : of a matrix, before a norm, that these rows go through first; empty for none.
    mels : channels of audio that an encoder takes in the place of tokens; 0 for tokens.
    spare_tokens : rows behind those of tokens that the table of embeddings may have, and that no text reads.
    tied : whether the matrix of logits is the table of embeddings, whatever else the checkpoint has.
    stop : tokens that end a text.
    """

    architecture: str
    vocab: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    dim: int
    layers: tuple[Layer, ...]
    context: int
    eps: float
    centered: bool = False
    norm_offset: float = 0.0
    plain_norms: bool = False
    ropes: tuple[Rope, ...] = ()
    rotated: int = 0
    learned: int = 0
    learned_offset: int = 0
    activation: str = "silu"
    gated: bool = True
    head_norms: bool = False
    wide_head_norms: bool = False
    last_head_norms: bool = False
    norms_by_head: bool = False
    centered_head_norms: bool = False
    value_norms: bool = False
    plain_head_norms: bool = False
    latent: Latent | None = None
    values: int = 0
    pre_norms: bool = True
    post_norms: bool = False
    gated_heads: bool = False
    sinks: bool = False
    clip: float = 0.0
    scale: float = 1.0
    softcap: float = 0.0
    logits_softcap: float = 0.0
    embed_scale: float = 1.0
    embed_width: int = 0
    norms_after: bool = False
    experts: Experts | None = None
    mixtures_beside: bool = False
    layer_inputs: int = 0
    scaled_layers: bool = False
    streams: int = 0
    scaled_streams: bool = False
    low_rank: int = 0
    recurrence: Recurrence | None = None
    parallel: bool = False
    parallel_norm: bool = False
    embed_norm: bool = False
    sinusoids: str = ""
    relative: Relative | None = None
    slopes: tuple[float, ...] = ()
    cross: bool = False
    final_scale: float = 1.0
    head_activation: str = ""
    mels: int = 0
    spare_tokens: int = 0
    tied: bool = False
    stop: tuple[int, ...] = ()

    @property
    def attending(self) -> int:
        """Number of layers with keys and values."""
        return sum(layer.appends for layer in self.layers)

    @property
    def state(self) -> int:
        """Numbers of the states of one text."""
        each = self.recurrence.numbers if self.recurrence is not None else 0
        return each * sum(layer.recurs for layer in self.layers)


@dataclass(frozen=True)
class Names:
    """Names of a checkpoint's tensors; ``{}`` stands for the number of a layer, ``.weight`` and ``.bias``
    follow.

    Parameters
    ----------
    prefixes : what may stand before every name, in the order in which it is tried.
    qkv, up : matrices that are stacked: queries, keys, values; gate and up.
    qkv_rows : rows of the stacked ``qkv`` in the order of queries, keys, values, whose rotated channels are
        halves of a head; empty where the checkpoint has this order.
    out_norm, down_norm : of what attention gives and of what is inside of the MLP, before the matrices
        behind these; empty for none.
    transposed : matrices are [in, out].
    embed : the table; ``shared`` is looked for where there is none of this name.
    segments : table of the parts of a text, whose first row is added to all positions; empty for none.
    project_in, project_out : matrices from the embeddings' channels and to them.
    router, expert : matrix that picks experts; what stands before the names of an expert's matrices, which
        are one array for all experts where it has no ``{}``.
    expert_up, expert_down : matrices of one.
    correction : what is added to what experts are judged by, with its suffix; empty for none.
    latent : of latent attention: matrix to few channels, their norm, matrix from them, for queries and then
        for keys and values; queries have one matrix, ``qkv``, where they are made of the stream.
    expert_rows : rows of the stacked ``expert_up`` in the order of gate and up; empty where they have it.
    expert_transposed : matrices of experts are [in, out].
    sinks : scores of no key.
    shared_expert, shared_up, shared_down, shared_gate : of the one that all rows go through.
    latent_rows : rows of the matrices of queries, of the shared channels, and of keys and values.
    cross_norm, cross_q, cross_kv, cross_out : of the attention to a source.
    relative : table of biases by distance.
    head_bias : added to the logits.
    head_dense, head_norm : of the rows that logits are made of, where these go through them.
    activation : what stands before the names of an activation's numbers.
    convolutions : of audio.
    recurrence : what stands before the names of a layer's state; ``recurrent_in`` matrices that are stacked
        to that of queries, keys, values and the gate of the norm (``recurrent_rows`` of them), and
        ``recurrent_few`` to that of shares and steps (``recurrent_few_rows``), where it is linear attention.
    gate : matrix of the gates of heads; empty where ``gate_rows`` of that of queries are it.
    layer_inputs : of what each layer has beside the stream: table, matrix and norm for all layers; of a
        layer, gate, matrix behind it and norm.
    layer_factor : number that the stream is multiplied by behind a layer.
    streams : matrices to the other streams and from them; of a layer, norm and matrix of the router, matrices
        of predictions and corrections, scales.
    low_rank : of the product beside attention: its matrices and the norm behind them.
    beside : of mixtures beside an MLP: norm of what the MLP gives, norms before and behind the experts,
        scales of what judges them, factors of the experts.
    recurrent_filters : short convolutions that are apart; ``recurrent_norm``, ``recurrent_out``: of its gated
        norm and the matrix behind it.
    aliases : parts of names, and what other checkpoints of the family have in their place.
    factors : end of a matrix's name -> runs of its rows and what they are multiplied by.
    """

    prefixes: tuple[str, ...] = ("model.",)
    embed: str = "embed_tokens"
    positions: str = ""
    segments: str = ""
    layer: str = "layers.{}."
    attention_norm: str = "input_layernorm"
    attention_post_norm: str = ""
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qkv_rows: tuple[int, ...] = ()
    head_norms: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    out: str = "self_attn.o_proj"
    out_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_post_norm: str = ""
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    down_norm: str = ""
    norm: str = "norm"
    heads: tuple[str, ...] = field(default=("lm_head",))
    transposed: bool = False
    shared: str = "shared"
    embed_norm: str = ""
    project_in: str = "project_in"
    project_out: str = "project_out"
    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}."
    expert_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    correction: str = ""
    expert_rows: tuple[int, ...] = ()
    expert_transposed: bool = False
    sinks: str = "self_attn.sinks"
    shared_expert: str = "mlp.shared_expert."
    shared_up: tuple[str, ...] = ("gate_proj", "up_proj")
    shared_down: str = "down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    latent: tuple[str, ...] = (
        "self_attn.q_a_proj",
        "self_attn.q_a_layernorm",
        "self_attn.q_b_proj",
        "self_attn.kv_a_proj_with_mqa",
        "self_attn.kv_a_layernorm",
        "self_attn.kv_b_proj",
    )
    latent_rows: tuple[tuple[int, ...], ...] = ()
    cross_norm: str = ""
    cross_q: str = ""
    cross_kv: tuple[str, ...] = ()
    cross_out: str = ""
    relative: str = ""
    head_bias: str = ""
    head_dense: str = ""
    head_norm: str = ""
    activation: str = ""
    convolutions: tuple[str, ...] = ()
    recurrence: str = ""
    recurrent_in: tuple[str, ...] = ()
    recurrent_rows: tuple[int, ...] = ()
    recurrent_few: tuple[str, ...] = ()
    recurrent_few_rows: tuple[int, ...] = ()
    gate: str = ""
    gate_rows: tuple[int, ...] = ()
    layer_inputs: tuple[str, ...] = ()
    layer_factor: str = ""
    streams: tuple[str, ...] = ()
    low_rank: tuple[str, ...] = ()
    recurrent_filters: tuple[str, ...] = ()
    recurrent_norm: str = "norm"
    recurrent_out: str = "out_proj"
    aliases: tuple[tuple[str, str], ...] = ()
    beside: tuple[str, ...] = ()
    factors: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)


FAIRSEQ_NAMES = Names(
    positions="embed_positions",
    attention_norm="self_attn_layer_norm",
    out="self_attn.out_proj",
    mlp_norm="final_layer_norm",
    up=("fc1",),
    down="fc2",
    norm="layer_norm",
)
"""Names of the models that came from fairseq: OPT, XGLM, BioGPT, BART and its kind."""
