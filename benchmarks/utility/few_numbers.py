"""The commit tags with few shared numbers: what of 476,476 weights can be shared at ε = 2?

    python benchmarks/utility/few_numbers.py       # benchmarks/results/commit-tags.json

A sketch in NumPy beside the package, with its own releases: each is the mean over all users of a
vector that is clipped to norm 1, with Gaussian noise, and T releases of equal price cost what the
accountant says for T rounds. One release of frequencies: of every tag, of the `WORDS` words that
most users use, and of their pairs with `TAGS` tags; which tags these are is decided by an earlier
release of the tags' frequencies. The logarithms of what stands out of the known noise, as in naive
Bayes, are what a user's own regression starts from. A vote (3 releases) chooses its weight and the
penalty.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from federation import draw_rows
from many_classes import Clients, _log_loss, fit_one, scaled
from numpy.typing import NDArray
from shared import commit_tags

from pmtl.privacy.accounting.gaussian import mu_for

RESULTS = Path(__file__).parents[1] / "results" / "commit-tags.json"
#: ε, and the tags and words whose pairs are shared; 0 tags share the tags' frequencies only.
TRIED = ((2.0, (20, 200)), (2.0, (0, 0)))
#: Penalties of training alone, and (penalty, weight of what is shared) around it.
ALONE, AROUND = (0.3, 0.1, 0.03), ((0.1, 0.5), (0.1, 1.0))
VOTES = 3
#: A frequency counts if it is so many deviations of its noise; the vote's clip in nats.
CLEAR, VOTE_NORM = 3.0, 0.3

Array = NDArray[np.float64]


class Gate:
    """Noisy means of clipped vectors."""

    def __init__(self, m: int, epsilon: float, releases: int, seed: int) -> None:
        mu = mu_for(epsilon, 1 / (10 * m)) if math.isfinite(epsilon) else math.inf
        self.noise = 2 * math.sqrt(releases) / (m * mu)
        self._random = np.random.default_rng([seed, 31])

    def mean(self, uploads: Array) -> Array:
        norms = np.linalg.norm(uploads, axis=1, keepdims=True)
        clipped = uploads * np.minimum(1, 1 / np.maximum(norms, 1e-12))
        return np.asarray(clipped.mean(0) + self.noise * self._random.normal(size=uploads.shape[1]))


def frequencies(federation: Any, rows: NDArray[np.int64], tags: Any, words: int) -> Array:
    """[m, …] of each user: the part of its rows that have a word, and a word and a tag, scaled to a
    norm near 1."""
    parts = []
    for k in range(federation.m):
        mine = rows[federation.client[rows] == k]
        x = federation.x[mine][:, :words].toarray() > 0
        hot = federation.y[mine][:, None] == tags[None]
        pairs = hot.T.astype(float) @ x / max(1, len(mine))
        parts.append(np.concatenate([x.mean(0) / 3, pairs.ravel()]))
    return np.stack(parts)


def tag_frequencies(federation: Any, rows: NDArray[np.int64]) -> Array:
    table = np.zeros((federation.m, federation.outputs))
    np.add.at(table, (federation.client[rows], federation.y[rows]), 1)
    return np.asarray(table / np.maximum(1, table.sum(1, keepdims=True)))


def shared_model(
    federation: Any, rows: NDArray[np.int64], gate: Gate, size: tuple[int, int], scale: float
) -> tuple[Array, Array]:
    """Weights [columns, outputs] and intercepts, from one or two releases."""
    count, words = size
    floor = max(CLEAR * gate.noise, 1e-5)
    chance = gate.mean(tag_frequencies(federation, rows))
    intercepts = np.log(np.maximum(chance, floor))
    weights = np.zeros((federation.x.shape[1], federation.outputs))
    if count:
        tags = np.argsort(-chance)[:count]
        told = gate.mean(frequencies(federation, rows, tags, words))
        word = np.maximum(3 * told[:words], 3 * floor)
        pairs = told[words:].reshape(count, words)
        expected = np.maximum(chance[tags], floor)[:, None] * word[None]
        known = np.maximum(pairs, expected) > floor  # otherwise nothing is told
        ratio = np.log(np.maximum(pairs, floor) / np.maximum(expected, floor))
        weights[:words, tags] = np.where(known, ratio, 0.0).T * scale
    return weights, intercepts


def right(answers: Array, y: NDArray[np.int64], client: NDArray[np.int64], m: int) -> Array:
    """[m] the part of right answers of each user."""
    hits = np.bincount(client, answers.argmax(1) == y, m)
    return np.asarray(hits / np.maximum(1, np.bincount(client, minlength=m)))


def main() -> None:
    federation = commit_tags()
    m, y, client = federation.m, federation.y, federation.client
    test = federation.test_rows(0)
    z = scaled(federation, ~test)
    scale = float(federation.x[0].max() / z[0].max())  # from words to scaled columns
    train, asked = np.flatnonzero(~test), np.flatnonzero(test)
    out = draw_rows(client[train], m, 2000, 0.25, 2)
    fit, held = train[~out], train[out]
    clients = Clients(z, y, client, m, federation.outputs)
    counts = np.maximum(1, np.bincount(client[held], minlength=m))
    known: dict[Any, tuple[Array, Array]] = {}

    def of(penalty: float, weight: float, model: Any, key: Any) -> tuple[Array, Array]:
        """Each user's held-out loss, and its part of right answers to test rows."""
        key = (penalty, weight) if weight == 0 else (penalty, weight, *key)
        if key not in known:
            start = None if weight == 0 else (weight * model[0], weight * model[1])
            loss = _log_loss(clients.answers(fit, held, penalty, start), y[held])
            losses = np.bincount(client[held], loss, m) / counts
            answers = clients.answers(train, asked, penalty, start)
            known[key] = losses, right(answers, y[asked], client[asked], m)
        return known[key]

    alone = [of(penalty, 0.0, None, ()) for penalty in ALONE]
    own = np.stack([one[0] for one in alone]).argmin(0)
    score = np.stack([one[1] for one in alone])[own, np.arange(m)]
    report: dict[str, Any] = {"users": m, "words": z.shape[1], "tags": federation.outputs}
    report |= {"alone": float(score.mean()), "lines": []}
    print("alone", score.mean(), flush=True)
    for epsilon, size in TRIED:
        gate = Gate(m, epsilon, VOTES + (2 if size[0] else 1), 0)
        model = shared_model(federation, train, gate, size, scale)
        grid = [*((penalty, 0.0) for penalty in ALONE), *AROUND]
        tried = [of(*cell, model, (epsilon, *size)) for cell in grid]
        losses = np.stack([one[0] for one in tried], 1)
        votes = (losses - losses.mean(1, keepdims=True)) / VOTE_NORM
        vote = np.mean([gate.mean(votes) for _ in range(VOTES)], 0) * VOTE_NORM
        mine = (losses * counts[:, None] + 100 * vote).argmin(1)
        scores = np.stack([one[1] for one in tried], 1)
        reached, voted = scores[np.arange(m), mine], scores[:, int(vote.argmin())]
        gain = reached - score
        line = {
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "tags": size[0],
            "words": size[1],
            "numbers": federation.outputs + size[1] * (size[0] + 1),
            "score": float(reached.mean()),
            "gain": float(gain.mean()),
            "error": float(gain.std(ddof=1) / math.sqrt(m)),
            "voted": grid[int(vote.argmin())],
            "one for all": float(voted.mean()),
        }
        report["lines"].append(line)
        print(line, flush=True)
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if "--ceiling" in sys.argv:
        model = fit_one(z[train], y[train], federation.outputs, 0.1)
        pooled = right(clients.answers(train, asked, 3.0, model), y[asked], client[asked], m)
        report["ceiling"] = float(pooled.mean())
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
