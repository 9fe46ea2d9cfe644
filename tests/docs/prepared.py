"""What a reader of a page has: files, names in Python, and options that save time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pmtl

QUICK = {"train": ["--rounds", "2", "--steps", "2"]}


def data_page() -> dict[str, Any]:
    """The files of docs/data.md: two tables, text, regions and a matrix."""
    random = np.random.default_rng(0)
    schools = [f"s{k % 30:02d}" for k in range(360)]
    age, score = random.integers(6, 18, 360), random.integers(0, 101, 360)
    frame = pd.DataFrame({"school": schools, "age": age, "score": score})
    frame.to_csv("tests.csv", index=False)
    Path("bounds.toml").write_text(
        "[columns.age]\nlow = 0\nhigh = 110\n\n[columns.score]\nlow = 0\nhigh = 100\n"
    )
    words = ["fix", "bug", "in", "parser", "add", "test", "for", "docs", "remove", "code"]
    lines = ["user\ttext\ttag"]
    for k in range(2000):
        text = " ".join(random.choice(words, 5))
        lines.append(f"u{k % 400}\t{text}\t{'fix' if 'bug' in text else 'other'}")
    with gzip.open("commits.tsv.gz", "wt") as file:
        file.write("\n".join(lines))
    hospitals = [f"h{k:03d}" for k in range(20)]
    visits = pd.DataFrame({"hospital": hospitals * 20, "age": random.normal(50, 15, 400)})
    visits["dose"] = random.normal(size=400)
    visits["outcome"] = np.where(visits.age > 50, "ill", "well")
    visits.to_csv("visits.csv", index=False)
    Path("regions.json").write_text(
        json.dumps({name: "north" if k % 2 else "south" for k, name in enumerate(hospitals)})
    )
    related = np.eye(20) - 0.04  # everybody is a little like everybody
    pd.DataFrame(related, hospitals, hospitals).to_csv("omega.csv")
    x = np.stack([age, random.normal(size=360)], axis=1)
    return {"pmtl": pmtl, "x": x, "y": score, "client": schools, "frame": frame}


def sharing_page() -> dict[str, Any]:
    """Small images, a network of one's own and a start for two networks."""
    from safetensors.torch import save_file
    from torch import nn

    from pmtl.models.library import FemnistCNN

    random = np.random.default_rng(0)
    client = np.repeat([f"w{k}" for k in range(6)], 6)
    pixels = random.integers(0, 256, (36, 784), dtype=np.uint8)
    np.savez("writers.npz", x=pixels, y=np.arange(36) % 4, client=client)
    Path("mypackage").mkdir()
    Path("mypackage/nets.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self, input_shape, outputs):\n        super().__init__()\n"
        "        self.encoder = nn.Linear(784, 8)\n        self.head = nn.Linear(8, outputs)\n\n"
        "    def forward(self, x):\n"
        "        return self.head(self.encoder(x.flatten(1)).relu())\n"
    )
    start = {
        **FemnistCNN((784,), 4).state_dict(),
        "encoder.weight": nn.Linear(784, 8).weight.detach(),
        "encoder.bias": nn.Linear(784, 8).bias.detach(),
    }
    save_file(
        {name: value for name, value in start.items() if "head" not in name}, "public.safetensors"
    )
    return {"pmtl": pmtl, "data": pmtl.load("writers.npz")}


#: A page, what makes its files and names, further names, and further options by command.
PREPARED: dict[
    str, tuple[Callable[[], dict[str, Any]] | None, dict[str, Any], dict[str, list[str]]]
] = {
    "data.md": (data_page, {}, QUICK),
    "personalize.md": (
        None,
        {},
        {"train": ["--rounds", "2"], "finetune": ["--lr", "0.05"]},
    ),
    "sharing.md": (
        sharing_page,
        {},
        {"train": ["--rounds", "1", "--steps", "1", "--epsilon", "8"]},
    ),
}
