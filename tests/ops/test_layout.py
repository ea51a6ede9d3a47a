import numpy as np
import pytest

from hetero_tvm.ops.layout import PLAIN, Layout


@pytest.mark.parametrize("text", ["NCHW", "NCHW16c", "NCHW8c+1,2,3,4", "NCHW+1,0,0,1"])
def test_text_round_trip(text):
    assert str(Layout.parse(text)) == text


@pytest.mark.parametrize("text", ["", "NHWC", "NCHW16", "NCHW8c+1,2,3", "NCHWc", "NCHW-8c"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="no image layout"):
        Layout.parse(text)


@pytest.mark.parametrize("text", ["NCHW", "NCHW4c", "NCHW4c+1,2,0,3", "NCHW+1,0,0,1"])
@pytest.mark.parametrize("image", [(1, 1, 1, 1), (2, 5, 3, 4), (1, 8, 2, 2)])
def test_every_value_has_one_place_and_all_others_are_zero(text, image):
    layout = Layout.parse(text)
    x = np.random.default_rng(0).standard_normal(image)
    packed = layout.pack(x)
    assert packed.shape == layout.shape(image)
    for at in np.ndindex(*image):
        assert layout.element(_Indexed(packed), *at) == x[at]
    assert np.count_nonzero(packed) == np.count_nonzero(x)
    np.testing.assert_array_equal(layout.unpack(packed, image[1]), x)


class _Indexed:
    """An array that tuples of indices read, as tensors of TVM are."""

    def __init__(self, array):
        self.array = array

    def __getitem__(self, index):
        return self.array[tuple(index)]


def test_extents():
    layout = Layout.parse("NCHW8c+1,2,3,4")
    assert layout.shape((2, 9, 5, 6)) == (2, 2, 9, 12, 8)
    assert (layout.blocks(9), layout.rows(5), layout.pitch(6)) == (2, 9, 12)
    assert layout.blocked and not Layout.parse(PLAIN).blocked


def test_a_halo_covers_what_is_not_larger():
    layout = Layout.parse("NCHW8c+1,2,3,4")
    assert layout.covers((1, 2, 3, 4)) and layout.covers((0, 0, 0, 0))
    assert not layout.covers((2, 0, 0, 0)) and not layout.covers((0, 0, 0, 5))
