"""Models compiled without Dynamo."""

import pytest
import torch

import hetero_tvm
from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.torch import compile as compile_module

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # float32 sums of some dozen terms in another order


class Running(torch.nn.Module):
    """Adds up what it has seen, and scales it; takes a flag and returns a dictionary."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, *, scaled=True):
        self.seen.add_(x.sum(0))
        return {"sum": self.linear(x) + self.seen * (2 if scaled else 1)}


class Rows:
    """Rows seen so far and their count, in an object that is no module, as a cache of keys is."""

    def __init__(self):
        self.count = torch.tensor(0)
        self.rows = torch.zeros(4, 2)


class Appending(torch.nn.Module):
    """Appends a row to what it has seen."""

    def __init__(self):
        super().__init__()
        self.cache = [Rows()]

    def forward(self, x):
        seen = self.cache[0]
        seen.rows.index_copy_(0, torch.arange(1) + seen.count, x)
        seen.count.add_(1)
        return seen.rows * 2


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    torch.manual_seed(0)
    model = Running().eval()
    folder = tmp_path_factory.mktemp("module")
    compiled = compile_module(model, torch.ones(3, 4), kwargs={"scaled": True}, path=folder, check=False)
    return model, compiled, folder


@pytest.mark.thorough
def test_state_is_kept_from_call_to_call(running):
    model, compiled, folder = running
    assert compiled.path == folder / "model.so"
    for _ in range(3):
        x = torch.randn(3, 4)
        with torch.no_grad():
            expected = model(x, scaled=True)
        found = compiled(x, scaled=True)
        torch.testing.assert_close(found["sum"], expected["sum"], **TOLERANCE)
    torch.testing.assert_close(compiled.state["seen"], model.seen, **TOLERANCE)


def test_the_file_runs_without_pytorch_with_state_as_input_and_output(running):
    _, compiled, folder = running
    net = hetero_tvm.load(folder)
    assert [spec.name for spec in net.signature.inputs] == ["x", "seen"]
    assert [spec.name for spec in net.signature.outputs][-1] == "seen_out"
    after = net(torch.ones(3, 4).numpy(), torch.ones(4).numpy())[1]
    assert after.tolist() == [4.0] * 4


@pytest.mark.thorough
def test_counts_of_objects_begin_where_the_model_had_them(tmp_path):
    model = Appending()
    compiled = compile_module(model, torch.ones(1, 2), path=tmp_path, check=False)
    assert model.cache[0].count.item() == 0
    for _ in range(4):
        x = torch.randn(1, 2)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))


def test_wrong_arguments_are_all_listed(running):
    _, compiled, _ = running
    with pytest.raises(InputError, match="scaled is False"):
        compiled(torch.ones(3, 4), scaled=False)
    with pytest.raises(InputError, match=r"expected torch.float32\[3, 4\]"):
        compiled(torch.ones(3, 5), scaled=True)
    with pytest.raises(InputError, match="structure"):
        compiled(torch.ones(3, 4))


def test_what_is_no_model_is_refused():
    with pytest.raises(UsageError, match="torch.nn.Module"):
        compile_module(lambda x: x, (torch.ones(1),))
    with pytest.raises(UsageError, match="no such option"):
        compile_module(torch.nn.Identity(), (torch.ones(1),), speed=3)
