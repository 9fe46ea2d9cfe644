"""Directions of a network's features that public glyphs use most, each with variance 1.

    python benchmarks/public_start/basis.py --glyphs glyphs.npz --start paper.safetensors \\
        --out basis.safetensors

The paper's network has a head of 63,550 numbers. With 128 public directions in place of its 1,024
features, writers share 7,998 numbers: what is added to the public head is a change along these.
"""

from __future__ import annotations

import argparse

import torch
from glyphs import Glyphs, Style
from networks import PaperNet
from safetensors.torch import load_file, save_file
from torch import Tensor

DIRECTIONS = 128
ROWS, BATCHES = 512, 20
#: Of the largest variance; smaller variances are not made 1, so that their noise stays small.
DAMPING = 1e-3


def directions(values: Tensor, count: int) -> dict[str, Tensor]:
    """The mean of features [n, k] and their principal directions [k, count], divided by the
    standard deviation along each."""
    values = values.double()
    variances, found = torch.linalg.eigh(torch.cov(values.T))
    scaled = found / (variances + DAMPING * variances[-1]).sqrt()
    top = scaled.flip(1)[:, :count]
    return {"mean": values.mean(0).float(), "directions": top.float().contiguous()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glyphs", required=True, help="glyphs.npz")
    parser.add_argument("--start", required=True, help="paper.safetensors, of start.py")
    parser.add_argument("--out", required=True, help="the file for the directions")
    options = parser.parse_args()
    network = PaperNet().eval()
    network.load_state_dict(load_file(options.start))
    torch.manual_seed(3)
    glyphs = Glyphs(options.glyphs, "cpu")
    with torch.no_grad():
        batches = (glyphs.batch(ROWS, Style())[0] for _ in range(BATCHES))
        values = torch.cat([network.features(images) for images in batches])
    save_file(directions(values, DIRECTIONS), options.out)


if __name__ == "__main__":
    main()
