"""Image files as bytes, channels first: what LEAF's CelebA names in place of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError


def read_images(root: Path, names: Sequence[str], size: int) -> NDArray[np.uint8]:
    """[n, 3, size, size]: the images under `root`, in colour, resized to a square."""
    pillow = _pillow()
    pixels = np.empty((len(names), 3, size, size), dtype=np.uint8)
    for position, name in enumerate(names):
        path = root / name
        try:
            with pillow.open(path) as image:
                square = image.convert("RGB").resize((size, size))
        except FileNotFoundError:
            raise PmtlError(
                f"The image {name!r} is not in {root}: set images= to the folder that holds it."
            ) from None
        except (OSError, ValueError, SyntaxError) as error:
            raise PmtlError(
                f"The image {path} cannot be read ({error}): replace the file or drop its row."
            ) from error
        pixels[position] = np.asarray(square).transpose(2, 0, 1)
    return pixels


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise PmtlError(
            "Reading images needs Pillow: install it with pip install 'pmtl[images]'."
        ) from None
    return Image
