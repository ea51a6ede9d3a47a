"""PyTorch programs of a given size for :mod:`tests.campaign.build_memory`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.campaign.build_memory.onnx_files import INNER, ROWS, WIDTH

_HIDDEN = 1024


def _mlp(dtype: str) -> Callable[[int, Path], None]:
    def write(count: int, path: Path) -> None:
        import torch

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up = torch.nn.ModuleList(torch.nn.Linear(WIDTH, INNER) for _ in range(count))
                self.down = torch.nn.ModuleList(torch.nn.Linear(INNER, WIDTH) for _ in range(count))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for up, down in zip(self.up, self.down, strict=True):
                    x = x + down(torch.relu(up(x)))
                return torch.relu(x)

        kind = getattr(torch, dtype)
        _save(Model().eval().to(kind), torch.zeros(ROWS, WIDTH, dtype=kind), path)

    return write


def _table(count: int, path: Path) -> None:
    """One table of tokens with a small head."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(max(count, 1) * 2 * INNER, WIDTH)
            self.head = torch.nn.Linear(WIDTH, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(x).mean(1))

    _save(Model().eval(), torch.zeros(ROWS, 16, dtype=torch.int64), path)


def _recurrent(count: int, path: Path) -> None:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.LSTM(_HIDDEN, _HIDDEN, num_layers=max(count, 1), batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cell(x)[0]

    _save(Model().eval(), torch.zeros(ROWS, 8, _HIDDEN), path)


def _save(model: object, example: object, path: Path) -> None:
    import torch

    torch.export.save(torch.export.export(model, (example,)), path)


_LAYER = 2 * WIDTH * INNER

WRITERS: dict[str, tuple[int, int, Callable[[int, Path], None]]] = {
    "pt2": (4 * _LAYER, 4 * _LAYER, _mlp("float32")),
    "pt2_table": (4 * _LAYER, 4 * _LAYER, _table),
    "pt2_lstm": (4 * 8 * _HIDDEN**2, 4 * 8 * _HIDDEN**2, _recurrent),
    "pt2_half": (2 * _LAYER, 4 * _LAYER, _mlp("float16")),
    "pt2_bfloat16": (2 * _LAYER, 4 * _LAYER, _mlp("bfloat16")),
}
"""As in ``onnx_files``."""
