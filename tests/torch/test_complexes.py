"""Graphs with complex arguments and results through ``torch.compile``."""

import pytest
import torch

import hetero_tvm.torch  # noqa: F401
from tests.selection import thorough


def compared(function, *given, tmp_path):
    torch._dynamo.reset()
    events = []
    options = {"cache": str(tmp_path), "on_event": events.append, "refused": "raise"}
    net = torch.compile(function, backend="hetero_tvm", options=options)
    with torch.no_grad():
        for arguments in (given, [value * 1.5 for value in given]):
            found, wanted = net(*arguments), function(*arguments)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert {event["event"] for event in events} <= {"compiled", "cached"}


Z, X = torch.randn(4, 16, dtype=torch.cfloat), torch.randn(4, 16)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        *thorough([(lambda z: (z / (z + 2)).abs(), (Z,))]),
        *thorough([(lambda z: (torch.fft.ifft(z) * 2, z, z.real + 1), (Z,))]),
        *thorough([(lambda x: torch.fft.rfft(x), (X,))]),
        (lambda x, z: (z @ x.T.to(z.dtype), x + 1), (X, Z)),
        *thorough([(lambda z: z * 2, (Z.conj(),)), (lambda z: z.conj(), (Z,))]),
        *thorough(
            [
                (lambda z: torch.istft(z.mT, 6, 2, window=torch.hann_window(6)), (Z[:, :4],)),
                (lambda z: torch.istft(input=z.mT, n_fft=6, window=torch.hann_window(6)), (Z[:, :4],)),
            ]
        ),
        *thorough([(lambda z: z.index_copy(1, torch.arange(3), z[:, 5:8]), (Z,))]),
    ],
    ids=["taken", "both", "given", "mixed", "conjugate", "conjugated", "signal", "named", "copied"],
)
def test_complex_ends(function, given, tmp_path):
    compared(function, *given, tmp_path=tmp_path)


@pytest.mark.thorough
def test_parameters_of_complex_numbers(tmp_path):
    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(9, 5, dtype=torch.cfloat))

        def forward(self, x):
            return torch.fft.rfft(x) @ self.weight

    compared(Mixing(), X, tmp_path=tmp_path)
