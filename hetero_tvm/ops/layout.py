"""Memory layouts of image tensors: plain NCHW, or channels in blocks with zeros around the planes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Expr, TETensor

PLAIN = "NCHW"

_FORM = re.compile(r"NCHW(?:(\d+)c)?(?:\+(\d+),(\d+),(\d+),(\d+))?")


@dataclass(frozen=True)
class Layout:
    """Layout of an image [N, C, H, W].

    ``block == 1`` is plain NCHW.  Otherwise the tensor is ``[N, ceil(C / block), top + H + bottom,
    left + W + right, block]`` (NCHW[x]c): the values of one pixel in ``block`` consecutive channels are
    one vector.  Lanes past C are zero.  The *halo* around each plane is zero as well, so that a
    convolution reads its padding as if it were data.

    Contracts write a layout as text: ``NCHW``, ``NCHW16c``, ``NCHW16c+1,1,1,1`` (top, left, bottom,
    right, as the padding of a convolution).
    """

    block: int = 1
    halo: tuple[int, int, int, int] = (0, 0, 0, 0)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read a layout as contracts write it; raises :class:`ValueError` for other text."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no image layout: expected NCHW, NCHW16c or NCHW16c+1,1,1,1")
        block, *halo = found.groups()
        return cls(int(block or 1), tuple(int(side or 0) for side in halo))

    def __str__(self) -> str:
        block = f"{self.block}c" if self.blocked else ""
        return f"NCHW{block}" + ("+" + ",".join(map(str, self.halo)) if any(self.halo) else "")

    @property
    def blocked(self) -> bool:
        return self.block > 1

    def blocks(self, channels: int) -> int:
        """Number of blocks that hold ``channels``."""
        return -(-channels // self.block)

    def pitch(self, width: int) -> int:
        """Distance from one row to the next, in pixels."""
        return self.halo[1] + width + self.halo[3]

    def rows(self, height: int) -> int:
        """Number of rows of a plane, halo included."""
        return self.halo[0] + height + self.halo[2]

    def shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Shape of the tensor that holds ``image`` = (N, C, H, W)."""
        n, c, h, w = image
        plane = (n, self.blocks(c), self.rows(h), self.pitch(w))
        return (*plane, self.block) if self.blocked else plane

    def covers(self, padding: Sequence[int]) -> bool:
        """Whether the halo holds at least ``padding`` zeros on each side."""
        return all(have >= want for have, want in zip(self.halo, padding, strict=True))

    def pack(self, image: np.ndarray) -> np.ndarray:
        """Convert [N, C, H, W] to this layout."""
        n, c, h, w = image.shape
        top, left, bottom, right = self.halo
        padded = np.pad(image, ((0, 0), (0, self.blocks(c) * self.block - c), (top, bottom), (left, right)))
        if not self.blocked:
            return padded
        split = padded.reshape(n, self.blocks(c), self.block, *padded.shape[2:])
        return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))

    def with_zeros(self, array: np.ndarray, channels: int) -> np.ndarray:
        """``array`` with zeros in the halo and in the lanes past the last channel."""
        return self.pack(self.unpack(array, channels))

    def unpack(self, array: np.ndarray, channels: int) -> np.ndarray:
        """Convert this layout to [N, C, H, W]."""
        if self.blocked:
            n, blocks, h, w, lanes = array.shape
            array = array.transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, h, w)
        top, left, bottom, right = self.halo
        return array[:, :channels, top : array.shape[2] - bottom, left : array.shape[3] - right]

    def element(self, tensor: TETensor, n: Expr, c: Expr, y: Expr, x: Expr) -> Expr:
        """Tensor expression of one value of one pixel (indices without the halo)."""
        y, x = y + self.halo[0], x + self.halo[1]
        return tensor[n, c // self.block, y, x, c % self.block] if self.blocked else tensor[n, c, y, x]
