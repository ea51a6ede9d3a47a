"""Gradients of factors, spectra, products, quantisers and bags through ``torch.compile``, against eager."""

import pytest
import torch

import hetero_tvm.torch  # noqa: F401


def positive(x):
    return x @ x.T + 3 * torch.eye(x.shape[0])


def spectrum(x):
    window = torch.hann_window(16)
    return torch.stft(x, 16, 4, window=window, return_complex=True).abs().square().sum(-1)


ROWS, SQUARE = (4, 6), (3, 3)
INDICES, STARTS = torch.tensor([0, 3, 1, 2]), torch.tensor([0, 2, 2])
FUNCTIONS = {
    "cumprod": (lambda x: torch.cumprod(x, -1), ROWS),
}
THOROUGH = {
    "bags": (
        lambda x: torch.nn.functional.embedding_bag(torch.tensor([[0, 1], [2, 1]]), x, mode="sum"),
        ROWS,
    ),
    "inverse": (lambda x: torch.linalg.inv(positive(x)), SQUARE),
    "filter": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.exp(-torch.arange(9.0)), n=16), (4, 16)),
    "complex": (lambda x: (torch.complex(x, 2 * x) * torch.exp(1j * x)).abs(), ROWS),
    "slogdet": (lambda x: torch.linalg.slogdet(x)[1], SQUARE),
    "spectrum": (spectrum, (2, 64)),
    "cholesky": (lambda x: torch.linalg.cholesky(positive(x)), SQUARE),
    "solve": (lambda x: torch.linalg.solve(positive(x), x[:, 0]), SQUARE),
    "det": (lambda x: torch.linalg.det(x), (2, 3, 3)),
    "mean bags": (
        lambda x: torch.nn.functional.embedding_bag(torch.tensor([[0, 1], [2, 3]]), x, mode="mean"),
        ROWS,
    ),
    "shared heads": (
        lambda x: torch.nn.functional.scaled_dot_product_attention(
            x, x[:, :2].sin(), x[:, 2:].cos(), is_causal=True, enable_gqa=True
        ),
        (1, 4, 5, 8),
    ),
    "bilinear": (lambda x: torch.nn.functional.bilinear(x, x.flip(0), x[:, :, None] * x[:, None, :]), ROWS),
    "simulated quantisation": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7), ROWS),
    "weight norm": (lambda x: torch._weight_norm(x, x[:, :1].exp(), 0) @ x.T, ROWS),
    # Where they begin is an argument, which the check draws.
    "bags of any length": (
        lambda x: torch.nn.functional.embedding_bag(INDICES, x, STARTS, mode="mean"),
        ROWS,
    ),
}
CASES = [*FUNCTIONS.items(), *(pytest.param(*c, marks=pytest.mark.thorough) for c in THOROUGH.items())]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_gradients_are_those_of_pytorch(name, case, tmp_path):
    """To 1e-4 of the largest, which float32 gives a 3 x 3 matrix of a condition up to some hundreds."""
    function, shape = case
    torch._dynamo.reset()
    torch.manual_seed(0)
    events = []
    options = {"cache": str(tmp_path), "refused": "raise", "on_event": events.append}
    net = torch.compile(function, backend="hetero_tvm", options=options)
    for _ in range(2):
        x = torch.randn(shape)
        found, expected = [], []
        for run, results in ((net, found), (function, expected)):
            end = x.clone().requires_grad_()
            y = run(end)
            (y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).sum().backward()
            results += [y.detach(), end.grad]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))
    assert sum(event["event"] == "compiled" for event in events) == 2


@pytest.mark.thorough
def test_a_frozen_batch_norm_is_trained_through(tmp_path):
    """Gradients through statistics that stay (``eval``): of the batch there are none, which are empty."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval()
    layers[1].running_mean.normal_()
    net = torch.compile(layers, backend="hetero_tvm", options={"cache": str(tmp_path), "refused": "raise"})
    x, gradients = torch.randn(5, 3), []
    for run in (net, layers):
        layers.zero_grad()
        run(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layers.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@torch._dynamo.config.patch(allow_rnn=True)
@pytest.mark.thorough
def test_a_recurrence_is_trained(tmp_path):
    """An LSTM in one graph (Dynamo leaves it to PyTorch by default): oneDNN's operator is not traced."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    lstm, x = torch.nn.LSTM(4, 3), torch.randn(2, 1, 4)
    net = torch.compile(lstm, backend="hetero_tvm", options={"cache": str(tmp_path), "refused": "raise"})
    gradients = []
    for run in (net, lstm):
        lstm.zero_grad()
        run(x)[0].square().sum().backward()
        gradients.append([weight.grad.clone() for weight in lstm.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


class Largest(torch.nn.Module):
    """Softmax of groups, whose largest numbers are subtracted: graph attention."""

    def forward(self, x, groups):
        x = torch.nn.functional.leaky_relu(x * x.sum(1, keepdim=True), 0.2)
        places = groups[:, None].expand_as(x)
        largest = torch.full((4, x.shape[1]), -1e9).scatter_reduce(0, places, x, "amax")
        parts = (x - largest[groups]).exp()
        return parts / torch.zeros(4, x.shape[1]).index_add(0, groups, parts)[groups]


@pytest.mark.thorough
def test_numbers_that_gradients_of_extrema_compare_are_kept(tmp_path):
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, groups = torch.randn(12, 3).requires_grad_(), torch.arange(12) % 4
    weights = torch.randn(12, 3)
    options = {"cache": str(tmp_path), "refused": "raise"}
    net = torch.compile(Largest(), backend="hetero_tvm", options=options)
    found, expected = (
        torch.autograd.grad((run(x, groups) * weights).sum(), x)[0] for run in (net, Largest())
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class Scaled(torch.nn.Module):
    """A layer with a number that a schedule changes, which Dynamo leaves open and then has to fix."""

    def __init__(self):
        super().__init__()
        self.layer, self.rate = torch.nn.Linear(3, 4), 0.0

    def forward(self, x):
        return torch.nn.functional.dropout(self.layer(x), self.rate, training=self.rate > 0.6)


@pytest.mark.thorough
def test_a_number_that_changes_is_fixed_by_dynamo(tmp_path):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(2, 3)
    net = torch.compile(model, backend="hetero_tvm", options={"cache": str(tmp_path), "refused": "raise"})
    for model.rate in (0.0, 0.5, 0.3):
        torch.testing.assert_close(net(x), model(x))


@pytest.mark.thorough
def test_checkpointed_attention_and_dropout_are_trained(tmp_path):
    """What may draw numbers is kept: the gradient is that of the mask that the forward graph has drawn."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 24)

    def attended(x):
        q, k, v = net(x).unsqueeze(1).chunk(3, -1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)

    def dropped(x):
        return torch.nn.functional.dropout(torch.tanh(x), 0.5)

    def run(x, part):
        return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)

    x = torch.randn(2, 5, 8, requires_grad=True)
    for part in (attended, dropped):
        events = []
        options = {"cache": str(tmp_path), "on_event": events.append}
        y = torch.compile(run, backend="hetero_tvm", options=options)(x, part)
        (found,) = torch.autograd.grad(y.sum(), x)
        if part is attended:
            assert not any(event["event"] == "refused" for event in events), events
            (expected,) = torch.autograd.grad(part(x).sum(), x)
        else:
            expected = (y != 0) * 2 * (1 - x.tanh().square())
        torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_group_norm_in_channels_last_is_trained(tmp_path):
    """Its gradient is right beside tensors of both orders; the graph of PyTorch that judges it was not."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.GroupNorm(2, 8),
        torch.nn.SiLU(),
        torch.nn.AdaptiveAvgPool2d(1),
    ]
    net = torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)
    options = {"cache": str(tmp_path), "refused": "raise"}
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    found, expected = (
        torch.autograd.grad(f(x).square().sum(), list(net.parameters()))
        for f in (torch.compile(net, backend="hetero_tvm", options=options), net)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("determinant", [torch.linalg.det, lambda x: torch.linalg.slogdet(x)[1]])
def test_the_determinant_of_a_matrix_by_columns(determinant, tmp_path):
    """PyTorch's gradient takes the factors as those of the matrix or of its transpose, by how it lies."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    options = {"cache": str(tmp_path), "refused": "raise"}
    x = torch.randn(4, 4).mT.requires_grad_()  # so lie what torch.linalg.qr makes, and other parameters
    (found,), (expected,) = (
        torch.autograd.grad(f(x), x)
        for f in (torch.compile(determinant, backend="hetero_tvm", options=options), determinant)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::hetero_tvm.torch.refusing.FallbackWarning")
def test_attention_in_half_precision(tmp_path):
    """Its sums of exponentials are float32, as its backward takes them."""
    attend = torch.nn.functional.scaled_dot_product_attention
    compiled = torch.compile(attend, backend="hetero_tvm", options={"cache": str(tmp_path)})
    gradients = []
    for function in (attend, compiled):
        torch.manual_seed(0)
        operands = [torch.randn(2, 2, 6, 8).bfloat16().requires_grad_() for _ in range(3)]
        function(*operands).float().square().sum().backward()
        gradients.append([one.grad for one in operands])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.03, atol=0.03)
