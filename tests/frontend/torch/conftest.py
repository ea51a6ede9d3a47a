"""The shared program, exported once."""

import pytest


@pytest.fixture(scope="session")
def open_program():
    """Batch and sequence left open, the latter between 4 and 60."""
    from tests.frontend.torch.programs import IDS, net, torch

    dims = {0: torch.export.Dim("a"), 1: torch.export.Dim("b", min=4, max=60)}
    return torch.export.export(net(), (IDS, torch.ones(2, 5)), dynamic_shapes={"ids": dims, "mask": dims})


@pytest.fixture(scope="session")
def saved(open_program, tmp_path_factory):
    """The program as a file."""
    from tests.frontend.torch.programs import torch

    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(open_program, str(path))
    return path
