"""Complex numbers inside of JAX's functions, and Fourier transforms, beside JAX."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402

from hetero_tvm.errors import ModelError, UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from tests.frontend.stablehlo.test_importer import exported, same_as_jax  # noqa: E402

WAVE = np.exp(1j * np.arange(8)).astype(np.complex64)


def parts(function):
    """A function of two parts that gives the parts of its result."""

    def real(x, y):
        found = function(x + 1j * y)
        return found.real, found.imag

    return real


M = [(6, 8), (6, 8)]
FUNCTIONS = {
    "arithmetic": (parts(lambda z: (z * z - 2j) / (z + (3 - 1j)) - z.conj() / 2), M),
    "functions": (parts(lambda z: jnp.exp(z) + jnp.sqrt(z) + jnp.log(z + 5) + abs(z)), M),
    "roots of the left": (parts(lambda z: jnp.sqrt(jnp.stack([z - 9, -(z.real**2) + 0j, 0 * z]))), M),
    "angles": (lambda x, y: (jnp.angle(x + 1j * y), abs((x + 1j * y) * 1e25)), M),
    "comparisons": (lambda x, y: (x + 1j == x + 1j * y, x + 1j * y != x + 1j * y), M),
    "moving": (
        parts(
            lambda z: jnp.concatenate([z.T.reshape(4, 12)[::-1, 2:9], jnp.pad(z, ((0, 0), (0, 0)))[:4, :7]])
        ),
        M,
    ),
    "chosen": (parts(lambda z: jnp.where(z.real > 0, z, WAVE)[jnp.array([4, 0])].sum(0)), M),
    "products": (parts(lambda z: z @ z.T + jnp.einsum("ij,kj->ik", z, WAVE[None] * z)), M),
    "transforms": (
        lambda x: (abs(jnp.fft.fft(x)), jnp.fft.ifft(x + 0j).real, jnp.fft.rfft(x).imag),
        [(3, 12)],
    ),
    "real ones": (
        lambda x: (jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.irfft(x + 1j, 5), jnp.fft.irfft(x, 6)),
        [(3, 8)],
    ),
    "of several axes": (
        lambda x: (jnp.fft.fft2(x).real, jnp.fft.irfft2(jnp.fft.rfft2(x)), abs(jnp.fft.fftn(x, axes=(0,)))),
        [(3, 5, 6)],
    ),
    "many values": (lambda x: (jnp.fft.fft(x).imag, jnp.fft.irfft(jnp.fft.rfft(x)[:, :361])), [(2, 1024)]),
    "primes": (lambda x: jnp.fft.fft(x).real, [(2, 263)]),
    "spectrograms": (lambda x: abs(jax.scipy.signal.stft(x, nperseg=16)[2]), [(64,)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_numbers_are_the_same_as_of_jax(name):
    same_as_jax(*FUNCTIONS[name])


def test_what_has_no_translation_is_refused_by_what_it_is():
    with pytest.raises(UnsupportedOperatorError, match=r"tanh.*no translation for complex numbers"):
        import_stablehlo(exported(lambda x: jnp.tanh(x + 1j).real, [(4,)]))
    with pytest.raises(UnsupportedOperatorError, match=r"reduce.*no translation for complex numbers"):
        import_stablehlo(exported(lambda x: jnp.prod(x + 1j).real, [(4,)]))
    with pytest.raises(UnsupportedOperatorError, match="a transform of 4099 values"):
        import_stablehlo(exported(lambda x: jnp.fft.fft(x).real, [(4099,)]))
    with pytest.raises(ModelError, match="as two results"):
        import_stablehlo(exported(jnp.fft.fft, [(4,)]))
