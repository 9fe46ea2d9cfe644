"""The page of mathematics of `pooling`, in plain NumPy: one client and one problem at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from scipy.optimize import minimize

ROUNDS, VOTES, ROWS_OF_THE_VOTE = 8, 3, 200
CAUTION, HANDICAP, SMALL = 2, 1, 1e-3
AROUND = [*product((0.1, 1.0, 10.0), (1.0, 10.0, 100.0)), (10.0, 1000.0), (1000.0, 1000.0)]
ALONE_NUMBERS = [(0.1, slopes) for slopes in (1.0, 3.0, 10.0, 30.0, 100.0)]
ALONE_CLASSES = [*product((0.1, 1.0), (1.0, 5.0, 30.0))]


def quiet(round, size):
    return np.zeros(size)


@dataclass
class Page:
    """A federation with numbers (one target) or classes; `rows` are (x, y) of each client, with a
    column of ones in x, and y as zeros and ones for classes."""

    rows: list
    reach: float
    sigma: float = 0.0
    noise: object = quiet  #: from a round and a size to standard normal numbers
    classes: bool = False
    clipped: int = 0  #: how many uploads were
    round: int = 0
    parts: list = field(default_factory=list)  #: how much of each cell clients take; alone is last
    trust: tuple = (1.0, 1.0)  #: how much of the vote's smooth part counts, and of the rest
    steps: list = field(default_factory=list)  #: C in every round, doubled with the path
    doubled: int = 0  #: how often the path was

    def release(self, uploads):
        """The mean of uploads of norm at most 1, with noise."""
        norms = [np.linalg.norm(upload) for upload in uploads]
        parts = [upload / max(1.0, norm) for upload, norm in zip(uploads, norms, strict=True)]
        self.clipped += sum(norm > 1 for norm in norms)
        noisy = np.mean(parts, axis=0) + self.sigma * self.noise(self.round, len(uploads[0]))
        self.round += 1
        return noisy

    def run(self):
        """The shared weights, and the personal weights of every client [d, outputs]."""
        rows, size, levels = self.rows, 1.0, [0.0] * len(self.rows)
        level = 0.0
        if not self.classes:
            spreads = [y.std(ddof=1) if len(y) > 1 else 0.0 for _, y in rows]
            powers = [math.floor(math.log2(s)) + 24 if s > 0 else None for s in spreads]
            size = 2.0 ** (fullest(self.release([mark(power) for power in powers])) - 24 + 1)
            places = [math.floor(y.mean() / size / 2) % 64 for _, y in rows]
            place = fullest(self.release([mark(place) for place in places]))
            level = 2 * ((place if place < 32 else place - 64) + 0.5)
            levels = [level + 128 * round((y.mean() / size - level) / 128) for _, y in rows]
            rows = [(x, y / size - own) for (x, y), own in zip(rows, levels, strict=True)]
        d, outputs = rows[0][0].shape[1], rows[0][1].shape[1]
        shared = np.zeros((d, outputs))
        step = self.first_step
        for number in range(ROUNDS):
            pair = (1.0, 3.0) if self.classes else (0.3, 3.0)
            moves = [self.solve(x, y, shared, pair) - shared for x, y in rows]
            flat = self.release([move.ravel() / step for move in moves])
            mean = flat.reshape(d, outputs)
            mean = mean - mean.mean(1, keepdims=True) if self.classes else mean
            onward = number < ROUNDS - 1 and self.goes_on(shared, mean)
            shared = shared + step * mean
            self.steps.append(step)
            if onward:
                self.doubled += 1
                shared, self.steps = 2 * shared, [2 * earlier for earlier in self.steps]
            length = math.sqrt(max(0.0, (mean**2).sum() - self.noise_of(mean)))
            step = 2 * step if onward else self.shorter(step) if length < 0.25 else step
        found = [self.losses(x, y, shared) for x, y in rows]
        losses = [loss for loss, _ in found]
        norm = 2.0 if not self.sigma else min(2, max(0.05, 0.005 * math.sqrt(VOTES) / self.sigma))
        ballots = [
            (loss - loss.mean()) / norm if len(y) > 1 else 0 * loss
            for loss, (_, y) in zip(losses, rows, strict=True)
        ]
        vote = norm * np.mean([self.release(ballots) for _ in range(VOTES)], axis=0)
        noise = self.sigma * norm / math.sqrt(VOTES)
        trusted, rows_of_the_vote = self.trusted(vote, noise), ROWS_OF_THE_VOTE
        if noise > 1 / ROWS_OF_THE_VOTE:
            rows_of_the_vote = 1 / noise
        personal = []
        for (x, y), (loss, alone), own in zip(rows, found, levels, strict=True):
            score = len(y) * loss + rows_of_the_vote * trusted
            prior = np.full(len(score), math.exp(-HANDICAP * (1 - self.trust[0])) / len(AROUND))
            prior[-1] = 1.0
            part = prior * np.exp(score.min() - score)
            part /= part.sum()
            part = np.where(part >= SMALL, part, 0)
            part = part / part.sum()
            self.parts.append(part)
            part = np.concatenate([part[:-1], part[-1] * alone])
            weights = size * sum(
                how_much * self.cell(x, y, shared, number) for number, how_much in enumerate(part)
            )
            weights[0] += size * own
            personal.append(weights)
        shared = size * shared
        shared[0] += size * level
        return shared, personal

    def trusted(self, vote, noise):
        """The vote, its smooth part and the rest each shrunk by its own noise."""
        shapes = smooth_shapes()
        smooth = shapes @ np.linalg.lstsq(shapes, vote)[0]  # the nearest smooth vote
        parts, free = (smooth, vote - vote.mean() - smooth), shapes.shape[1]
        sizes = free, len(vote) - 1 - free
        self.trust = tuple(
            max(0.0, 1 - CAUTION * size * noise**2 / max((part**2).sum(), 1e-300))
            for part, size in zip(parts, sizes, strict=True)
        )
        return self.trust[0] * parts[0] + self.trust[1] * parts[1]

    @property
    def alone(self):
        return ALONE_CLASSES if self.classes else ALONE_NUMBERS

    @property
    def first_step(self):
        return self.reach / ROUNDS / (math.sqrt(2) if self.classes else 1)

    def noise_of(self, mean):
        """The expected squared norm of the noise of a mean move; for classes, of its part that
        changes probabilities."""
        d, outputs = mean.shape
        return d * (outputs - 1 if self.classes else outputs) * self.sigma**2

    def goes_on(self, path, mean):
        """Whether moves add clearly, and nearly as much as before, to the path."""
        if not self.steps:
            return False
        norm = np.linalg.norm(path)
        noise = self.noise_of(mean) * sum(step**2 for step in self.steps)
        before = max(0.0, norm**2 - noise) / norm / sum(self.steps)
        along = (mean * path).sum() / norm
        return along > 2 * self.sigma and along > 0.7 * before

    def shorter(self, step):
        return max(self.first_step, step / 2)

    def cell(self, x, y, shared, number):
        if number >= len(AROUND):
            return self.solve(x, y, 0 * shared, self.alone[number - len(AROUND)])
        doubt = self.sigma**2 * sum(step**2 for step in self.steps) / 2
        return self.solve(x, y, shared, AROUND[number], doubt)

    def losses(self, x, y, shared):
        """The losses in nats on rows that were left out, for every cell and for training alone, and
        how much each penalty of training alone counts."""
        held_out = []
        folds = 5 if self.classes else len(y)
        for number in range(len(AROUND) + len(self.alone)):
            total = 0.0
            for fold in range(min(folds, len(y))):
                out = np.arange(len(y)) % folds == fold
                weights = self.cell(x[~out], y[~out], shared, number)
                total += self.loss(x[out], y[out], weights)
            held_out.append(total / len(y))
        losses = np.array(held_out)
        if not self.classes:
            alone = np.sort(losses[len(AROUND) :])
            losses = np.log(losses + 0.01 * alone[(len(alone) - 1) // 2]) / 2  # the lower median
        around, alone = np.split(losses, [len(AROUND)])
        likely = np.exp(-len(y) * alone)
        return np.append(around, -np.log(likely.mean()) / len(y)), likely / likely.sum()

    def loss(self, x, y, w):
        if not self.classes:
            return ((x @ w - y) ** 2).sum() / 2
        outputs = x @ w
        return (np.log(np.exp(outputs).sum(1)) - (outputs * y).sum(1)).sum()

    def solve(self, x, y, centre, pair, doubt=0.0):
        """The paper's equation 3; a penalty is no stronger than the precision of the centre."""
        penalty = np.array([pair[0]] + [pair[1]] * (x.shape[1] - 1))
        penalty = 1 / (1 / (penalty * (2 if self.classes else 1)) + doubt)
        if not self.classes:
            matrix = x.T @ x + np.diag(penalty)
            return centre + np.linalg.solve(matrix, x.T @ (y - x @ centre))

        def value(flat):
            w = flat.reshape(centre.shape)
            outputs = np.exp(x @ w)
            slope = x.T @ (outputs / outputs.sum(1, keepdims=True) - y)
            pull = penalty[:, None] * (w - centre)
            return self.loss(x, y, w) + (pull * (w - centre)).sum() / 2, (slope + pull).ravel()

        return minimize(value, centre.ravel(), jac=True, method="BFGS").x.reshape(centre.shape)


def smooth_shapes():
    """[cells, 5] what a smooth vote is made of: alone or not, and polynomials of the logarithms of
    the penalties, each with mean zero."""
    shared = [(math.log10(a), math.log10(b)) for a, b in AROUND]
    shapes = np.array([[0, a, b, a * a, b * b] for a, b in shared] + [[1, 0, 0, 0, 0]], dtype=float)
    return shapes - shapes.mean(0)


def mark(place):
    bins = np.zeros(64)
    if place is not None:
        bins[min(63, max(0, place))] = 1
    return bins


def fullest(bins):
    return int(np.argmax(bins + np.roll(bins, 1) / 2 + np.roll(bins, -1) / 2))
