"""Models outside of the zoo on the NPU: what is placed, and the numbers."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.targets.npu.regions.placement import place
from tests.end_to_end.architectures import ARCHITECTURES, torch
from tests.end_to_end.test_exported_models import export

functional = torch.nn.functional


class Squeeze(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = (torch.nn.Conv2d(*c, 1) for c in ((channels, 8), (8, channels)))

    def forward(self, x):
        inner = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.up(inner))


class MobileBlocks(torch.nn.Module):
    """Hard swish, squeeze and excitation, depthwise and grouped convolutions, means over changing counts."""

    def __init__(self):
        super().__init__()
        conv = torch.nn.Conv2d
        self.body = torch.nn.Sequential(
            conv(3, 16, 3, 2, 1),
            torch.nn.BatchNorm2d(16),
            torch.nn.Hardswish(),
            conv(16, 48, 1),
            conv(48, 48, 5, 1, 2, groups=48),
            torch.nn.BatchNorm2d(48),
            torch.nn.Hardswish(),
            Squeeze(48),
            conv(48, 32, 3, 1, 1, groups=4),
            torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False),
            torch.nn.ELU(),
        )
        self.head = torch.nn.Linear(32, 24)

    def forward(self, x):
        return functional.hardswish(self.head(self.body(x).mean((2, 3))))


class Decoder(torch.nn.Module):
    """Group norms, transposed convolutions, concatenation, enlarging by neighbours and between them."""

    def __init__(self):
        super().__init__()
        conv = torch.nn.Conv2d
        self.first = torch.nn.Sequential(conv(3, 16, 3, 1, 1), torch.nn.GroupNorm(4, 16), torch.nn.SiLU())
        self.down, self.up = conv(16, 24, 3, 2, 1), torch.nn.ConvTranspose2d(24, 16, 4, 2, 1)
        self.last = conv(32, 8, 3, 1, 1)

    def forward(self, x):
        wide = self.first(x)
        both = torch.cat([self.up(functional.gelu(self.down(wide))), wide], 1)
        last = self.last(both)
        wider = functional.interpolate(last, (21, 37), mode="bilinear")
        return functional.interpolate(last, scale_factor=2, mode="nearest"), wider


class Mixer(torch.nn.Module):
    """A gated unit, products of two activations, a convolution of rows, pieces, statistics."""

    def __init__(self):
        super().__init__()
        self.gate, self.three = torch.nn.Linear(64, 128), torch.nn.Linear(64, 96)
        self.rows, self.norm = torch.nn.Conv1d(64, 48, 3, 2, 1), torch.nn.InstanceNorm1d(48, affine=True)

    def forward(self, x):
        y = functional.glu(self.gate(x), -1)
        mixed = torch.softmax(y @ x.transpose(1, 2) / 8, -1) @ x
        a, b, c = self.three(mixed).chunk(3, -1)
        z = torch.cat([a * torch.sigmoid(b), c], -1)
        return z.std(-1), self.norm(self.rows(mixed.transpose(1, 2))), torch.where(z > 0, z, z * 0.1).mean(1)


class Enlarged(torch.nn.Module):
    """A chain of convolutions too large for L1, whose image comes from a product with channels first."""

    def __init__(self):
        super().__init__()
        conv = torch.nn.Conv2d
        self.first, self.second, self.last = conv(8, 12, 3, 1, 1), conv(12, 32, 3, 1, 1), conv(32, 1, 1)

    def forward(self, x):
        wide = functional.interpolate(self.first(x), scale_factor=2, mode="bilinear", align_corners=True)
        return self.last(functional.relu(self.second(wide)))


class Recurrent(torch.nn.Module):
    """Two layers of LSTM in both directions, and a GRU behind them, from states of their own."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(40, 24, 2, batch_first=True, bidirectional=True)
        self.gru = torch.nn.GRU(48, 32)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        z, last = self.gru(y.transpose(0, 1), torch.cat([h[:1], c[:1, :, :8]], 2).tanh())
        return z, last, c


NETS = {
    "mobile blocks": (MobileBlocks, (1, 3, 32, 32), "npu:edge"),
    "decoder": (Decoder, (1, 3, 16, 24), "npu:mobile"),
    "enlarged": (Enlarged, (1, 8, 32, 32), "npu:edge"),
    "recurrent": (Recurrent, (2, 3, 40), "npu:datacenter"),
    "mixer": (Mixer, (2, 20, 64), "npu:edge,bf16"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("module, shape, target", NETS.values(), ids=NETS.keys())
def test_numbers_and_placement(module, shape, target):
    torch.manual_seed(0)
    net, x = module().eval(), torch.randn(shape, generator=torch.Generator().manual_seed(1))
    model = import_model(torch.export.export(net, (x,), strict=False))
    with torch.no_grad():
        exact = net.double()(x.double())
    plan = optimize_model(model, target)
    placement = place(plan.module, plan.tasks, plan.target).placement
    assert placement.left == []
    results = build_model(plan, use_shipped=False).run({model.signature.inputs[0].name: x.numpy()})
    for ours, truth in zip(results, exact if isinstance(exact, tuple) else [exact], strict=True):
        truth = truth.numpy()
        # The target's own tolerance: float16 keeps 11 bits of every intermediate tensor, bfloat16 8.
        assert np.abs(ours - truth).max() <= plan.target.relative_tolerance * np.abs(truth).max()
        cosine = float((ours * truth).sum() / np.linalg.norm(ours) / np.linalg.norm(truth))
        assert cosine >= plan.target.least_cosine


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["swin", "whisper"])
def test_transformers_are_placed(name, tmp_path):
    """Shifted windows, relative positions, convolutions of rows: all of it."""
    module, inputs = ARCHITECTURES[name].build("sdpa")
    plan = optimize_model(import_model(export(module, inputs, "program", tmp_path)), "npu:edge")
    placement = place(plan.module, plan.tasks, plan.target).placement
    assert placement.left == []
