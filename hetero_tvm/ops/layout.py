"""How an image tensor lies in memory: plain NCHW, or channels in blocks with zeros around the planes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
        """Blocks that hold ``channels``."""
        return -(-channels // self.block)

    def pitch(self, width: int) -> int:
        """Pixels from one row to the next."""
        return self.halo[1] + width + self.halo[3]

    def rows(self, height: int) -> int:
        """Rows of a plane, halo included."""
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
        """[N, C, H, W] -> this layout."""
        n, c, h, w = image.shape
        top, left, bottom, right = self.halo
        padded = np.pad(image, ((0, 0), (0, self.blocks(c) * self.block - c), (top, bottom), (left, right)))
        if not self.blocked:
            return padded
        split = padded.reshape(n, self.blocks(c), self.block, *padded.shape[2:])
        return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))

    def unpack(self, array: np.ndarray, channels: int) -> np.ndarray:
        """This layout -> [N, C, H, W]."""
        if self.blocked:
            n, blocks, h, w, lanes = array.shape
            array = array.transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, h, w)
        top, left, bottom, right = self.halo
        return array[:, :channels, top : array.shape[2] - bottom, left : array.shape[3] - right]

    def clean(self, array: np.ndarray, channels: int) -> np.ndarray:
        """``array`` of this layout with zeros in the halo and in lanes past ``channels``."""
        return self.pack(np.ascontiguousarray(self.unpack(array, channels)))

    def element(self, buffer, n, c, y, x):
        """The scalar of one pixel (indices without the halo), for tensor expressions."""
        y, x = y + self.halo[0], x + self.halo[1]
        return buffer[n, c // self.block, y, x, c % self.block] if self.blocked else buffer[n, c, y, x]
