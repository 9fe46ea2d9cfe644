"""Image files as bytes, channels first: LEAF's CelebA has file names in place of pixels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError, needing

#: The formats that are decoded. Pillow has more; one of them starts another program.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")


def read_images(root: Path, names: Sequence[str], size: int) -> NDArray[np.uint8]:
    """[n, 3, size, size]: the images under `root`, in colour, resized to a square."""
    with needing("Reading images needs Pillow: install it with pip install 'pmtl[images]'."):
        from PIL import Image as pillow
    pixels = np.empty((len(names), 3, size, size), dtype=np.uint8)
    for position, name in enumerate(names):
        path = root / name
        if ".." in path.parts[len(root.parts) :] or not path.is_relative_to(root):
            raise PmtlError(f"The image {name!r} is outside of {root}, and is not read.")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", pillow.DecompressionBombWarning)
                with pillow.open(path, formats=FORMATS) as image:
                    square = image.convert("RGB").resize((size, size))
        except FileNotFoundError:
            raise PmtlError(
                f"The image {name!r} is not in {root}: set images= to the folder that holds it."
            ) from None
        except Exception as error:  # Decoders raise many kinds of errors.
            raise PmtlError(
                f"The image {path} cannot be read ({error}): replace the file or drop its row."
            ) from error
        pixels[position] = np.asarray(square).transpose(2, 0, 1)
    return pixels
