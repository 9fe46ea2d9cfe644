"""A public start for FEMNIST: networks trained on distorted characters of open fonts.

    python benchmarks/utility/public_start.py --glyphs glyphs.npz --out starts

writes `paper.safetensors` (the package's `femnist_cnn`) and `glyph.safetensors` (`networks.py`).
A minute and a half each on a graphics card. FEMNIST itself is not read.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from glyphs import Glyphs, Style
from networks import GlyphNet, PaperNet, folded_glyph, folded_paper
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 2048
#: The sample whose features get mean 0 and covariance 1.
SAMPLE = 32768


def train(
    network: nn.Module,
    glyphs: Glyphs,
    steps: int,
    style: Style,
    lr: float = 3e-3,
    smoothing: float = 0.1,
) -> None:
    """Train on random batches with AdamW; the step size rises for a tenth of them, then falls."""
    network.train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.02)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=steps, pct_start=0.1)
    device = glyphs.device
    for _ in range(steps):
        images, labels = glyphs.batch(ROWS, style)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            outputs = network(images)
        loss = F.cross_entropy(outputs.float(), labels, label_smoothing=smoothing)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        plan.step()
    network.eval()


def public_start(
    kind: str, glyphs: Glyphs, steps: int, style: Style, **shape: int
) -> dict[str, Tensor]:
    """The parameters of a trained network: `paper`, or a `GlyphNet` of this shape."""
    torch.manual_seed(0)
    if kind == "paper":
        paper = PaperNet(norm=True).to(glyphs.device)
        train(paper, glyphs, steps, style)
        state = folded_paper(paper)
    else:
        network = GlyphNet(norm=True, **shape).to(glyphs.device)
        train(network, glyphs, steps, style)
        sample = torch.cat([glyphs.batch(ROWS, style)[0] for _ in range(SAMPLE // ROWS)])
        state = folded_glyph(network, sample)
    return {name: value.float().contiguous().cpu() for name, value in state.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glyphs", required=True, help="glyphs.npz")
    parser.add_argument("--out", required=True, help="the folder for the starts")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    glyphs = Glyphs(options.glyphs, options.device)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for kind in ("paper", "glyph"):
        begun = time.perf_counter()
        state = public_start(kind, glyphs, options.steps, Style())
        save_file(state, out / f"{kind}.safetensors")
        print(f"{kind}: {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
