"""FEMNIST and the commit tags, from a folder beside the repository that is no part of it."""

from __future__ import annotations

import gzip
import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from federation import Absent, Federation, named
from scipy import sparse

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
WRITERS, IMAGES = 205, 100
USERS, WORDS = 400, 1_000


def find(*parts: str) -> Path:
    """A file of the folder, which PMTL_SHARED_DATA names where it lies elsewhere."""
    place = Path(os.environ.get("PMTL_SHARED_DATA", BESIDE)).joinpath(*parts)
    if not place.exists():
        raise Absent(
            f"{'/'.join(parts)} is not here: put it into ../shared/data beside the repository, or "
            "name the folder in PMTL_SHARED_DATA."
        )
    return place


def _images() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The images, classes, writers and test rows of the first 205 writers with 100 images."""
    with np.load(find("femnist", "femnist.npz")) as file:
        x, y, client, split = (file[name] for name in ("x", "y", "client", "split"))
    writers, counts = np.unique(client, return_counts=True)
    kept = np.isin(client, writers[counts >= IMAGES][:WRITERS])
    return x[kept], y[kept], client[kept], split[kept] == "test"


def femnist_pixels() -> Federation:
    x, y, client, test = _images()
    pixels = np.asarray(x.reshape(len(x), -1) / np.float32(255), dtype=np.float32)
    columns = [f"pixel{column}" for column in range(pixels.shape[1])]
    about = "handwritten characters by writer, 62 classes, pixels, LEAF's test rows"
    return named("femnist_pixels", pixels, y, client, "classification", columns, about, test)


def femnist_hog() -> Federation:
    import torch

    from pmtl.models.hog import HogLinear

    x, y, client, test = _images()
    pixels = torch.from_numpy(x.reshape(len(x), -1)).float() / 255
    model = HogLinear((784,), 62)
    with torch.no_grad():
        parts = [model.features(part).numpy() for part in torch.split(pixels, 2048)]
    features = np.concatenate(parts).astype(np.float64)
    columns = [f"hog{column}" for column in range(features.shape[1])]
    about = (
        "handwritten characters by writer, 62 classes, histograms of gradients, LEAF's test rows"
    )
    return named("femnist_hog", features, y, client, "classification", columns, about, test)


def commit_tags() -> Federation:
    """The 400 users with the most rows; columns are 1 where a row has one of the 1,000 words that
    most of them use."""
    with gzip.open(find("commit_tags", "commit_tags.tsv.gz"), "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file][1:]
    users = np.array([line[0] for line in lines])
    known, counts = np.unique(users, return_counts=True)
    largest = set(known[np.argsort(-counts, kind="stable")[:USERS]])
    lines = [line for line in lines if line[0] in largest]
    texts = [sorted(set(re.findall(r"\w+", line[3].lower()))) for line in lines]
    spoken_by = defaultdict(set)
    for line, text in zip(lines, texts, strict=True):
        for word in text:
            spoken_by[word].add(line[0])
    words = sorted(spoken_by, key=lambda word: (-len(spoken_by[word]), word))[:WORDS]
    place = {word: column for column, word in enumerate(words)}
    pairs = [(row, place[w]) for row, text in enumerate(texts) for w in text if w in place]
    rows, columns = np.array(pairs).T
    x = sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(lines), len(words)))
    tags, y = np.unique([line[2] for line in lines], return_inverse=True)
    client = [line[0] for line in lines]
    about = f"tag of a commit from its words, by author, {len(tags)} classes"
    return named("commit_tags", x, y.reshape(-1), client, "classification", words, about)
