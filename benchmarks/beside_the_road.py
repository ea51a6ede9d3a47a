"""Models beside the zoo's, without any search, beside ONNX Runtime and OpenVINO.

    python benchmarks/beside_the_road.py [--folder FOLDER] [--build] [--keep] [--json FILE] [NAME ...]

Networks from transformers' and PyTorch's configurations with seeded weights, exported to ONNX: audio, images,
volumes and sequences whose operators the zoo does not have.  ``--build`` stops before anything is timed and
``--keep`` takes what the folder holds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def _block(kind: str, a: int, b: int) -> nn.Sequential:
    """Two convolutions with batch norm, of images (``2d``) or volumes (``3d``)."""
    conv, norm = getattr(nn, f"Conv{kind}"), getattr(nn, f"BatchNorm{kind}")
    layers: list[nn.Module] = []
    for before in (a, b):
        layers += [conv(before, b, 3, padding=1), norm(b), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger et al., 2015: contraction, expansion by transposed convolutions, joined levels."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(_block("2d", a, b) for a, b in zip((3, *widths), widths, strict=False))
        pairs = list(zip(widths[1:], widths, strict=False))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.joined = nn.ModuleList(_block("2d", 2 * b, b) for _, b in pairs)
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else nn.functional.max_pool2d(x, 2))
            levels.append(x)
        for up, block, level in zip(self.up, self.joined, levels[-2::-1], strict=True):
            x = block(torch.cat([level, up(x)], 1))
        return self.last(x)


class TCN(nn.Module):
    """Bai et al., 2018: causal dilated convolutions with residuals."""

    def __init__(self, width: int = 64, levels: int = 6):
        super().__init__()
        self.first = nn.Conv1d(16, width, 1)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**n) for _ in range(2)) for n in range(levels)
        )
        self.last = nn.Conv1d(width, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for number, pair in enumerate(self.layers):
            y = x
            for conv in pair:
                y = torch.relu(conv(nn.functional.pad(y, (2 * 2**number, 0))))
            x = torch.relu(x + y)
        return self.last(x)


class WaveNet(nn.Module):
    """van den Oord et al., 2016: gated dilated convolutions, skips summed up."""

    def __init__(self, width: int = 64, skips: int = 128, layers: int = 10):
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**n) for n in range(layers))
        self.residual = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv1d(width, skips, 1) for _ in range(layers))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(skips, skips, 1), nn.ReLU(), nn.Conv1d(skips, 256, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, total = self.first(x), 0
        for number, conv in enumerate(self.dilated):
            filtered, gate = conv(nn.functional.pad(x, (2**number, 0))).chunk(2, 1)
            y = torch.tanh(filtered) * torch.sigmoid(gate)
            total = total + self.skip[number](y)
            x = x + self.residual[number](y)
        return self.last(total)


class Volumes(nn.Module):
    """A small C3D (Tran et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _block("3d", 3, 16),
            nn.MaxPool3d((1, 2, 2)),
            _block("3d", 16, 32),
            nn.MaxPool3d(2),
            _block("3d", 32, 64),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(64, 100),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class _Output(nn.Module):
    """The first result of a model of transformers."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)[0]


def _whisper() -> nn.Module:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, num_mel_bins=80
    )
    config._attn_implementation = "eager"
    return _Output(WhisperEncoder(config))


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return _Output(ConvNextForImageClassification(ConvNextConfig(num_labels=1000)))


Make = Callable[[], nn.Module]
MODELS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "whisper-tiny-encoder": (_whisper, (1, 80, 3000)),
    "convnext-tiny": (_convnext, (1, 3, 224, 224)),
    "unet": (UNet, (1, 3, 256, 256)),
    "tcn": (TCN, (1, 16, 2000)),
    "wavenet": (WaveNet, (1, 1, 4000)),
    "volumes": (Volumes, (1, 3, 16, 56, 56)),
}
"""Name -> module, shape of its input."""

OF_ZOO = ("mobilenetv2", "resnet50", "minilm-l6", "vit-b16")


def export(name: str, path: Path) -> None:
    """Write the ONNX file of a model."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    module = make().eval()
    for parameter in module.modules():
        if isinstance(parameter, nn.BatchNorm2d | nn.BatchNorm3d):  # fresh ones are identities
            parameter.running_mean.normal_(0, 0.2)
            parameter.running_var.uniform_(0.5, 1.5)
    with torch.inference_mode():
        program = torch.onnx.export(module, (torch.randn(shape),), dynamo=True, verbose=False)
    program.save(str(path))


def run(*arguments: str) -> dict[str, Any]:
    """JSON document that a command prints."""
    command = [sys.executable, "-m", *arguments, "--json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed")
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*MODELS, *OF_ZOO])
    parser.add_argument("--folder", metavar="FOLDER")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--vs", default="onnxruntime,openvino")
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if unknown := sorted({*options.names} - {*MODELS, *OF_ZOO}):
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join((*MODELS, *OF_ZOO))}")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.folder or scratch)
        for name in options.names:
            place = folder / name
            source = f"zoo:{name}" if name in OF_ZOO else str(place / "model.onnx")
            place.mkdir(parents=True, exist_ok=True)
            if name in MODELS and not (options.keep and Path(source).exists()):
                export(name, Path(source))
            if not (options.keep and (place / "library").exists()):
                shared = ("--logs", str(place / "logs"), "--no-shipped-records", "--target", options.target)
                run("hetero_tvm.build", source, *shared, "--out", str(place / "library"))
            if options.build:
                continue
            result = run(
                "hetero_tvm.bench", str(place / "library"), "--model", source,
                "--vs", options.vs, "--rounds", options.rounds,
            )  # fmt: skip
            rows.append({"model": name, "target": options.target, **result})
            ours, *peers = result["runtimes"]
            best = min((p for p in peers if p["status"] == "ok"), key=lambda p: p["p10_ms"])
            texts = [f"{p['name']} {p['p10_ms']:.2f}" for p in peers if p["status"] == "ok"]
            print(
                f"{name:22} {ours['p10_ms']:8.2f} ms   {', '.join(texts)}   "
                f"ours / best {ours['p10_ms'] / best['p10_ms']:.3f}   {best['max_rel_difference']:.0e}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
