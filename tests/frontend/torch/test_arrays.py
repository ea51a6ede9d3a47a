"""Exchange of values between PyTorch and NumPy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hetero_tvm.frontend.torch.arrays import array_of, tensor_of

EIGHT = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "bool", "complex64", *EIGHT])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2)])
def test_there_and_back(name, shape):
    tensor = (torch.arange(float(np.prod(shape))) - 2).reshape(shape).to(getattr(torch, name))
    array = array_of(torch, tensor)
    assert array.dtype.name == name and array.shape == shape
    back = tensor_of(torch, array)
    assert back.dtype is tensor.dtype and torch.equal(back.to(torch.complex64), tensor.to(torch.complex64))


def test_strides_and_signs():
    tensor = torch.arange(6.0).reshape(2, 3).to(torch.bfloat16)
    np.testing.assert_array_equal(array_of(torch, tensor.T).astype(np.float32), np.arange(6).reshape(2, 3).T)
    flipped = torch.imag(torch.tensor([1 + 2j]).conj())
    np.testing.assert_array_equal(array_of(torch, flipped), [-2.0])
    array = np.arange(6, dtype=np.float16).reshape(2, 3).T
    assert torch.equal(tensor_of(torch, array), torch.from_numpy(array.copy()))


def test_a_tensor_has_memory_of_its_own():
    array = np.zeros(3, np.float32)
    tensor_of(torch, array)[0] = 1
    assert not array.any()
