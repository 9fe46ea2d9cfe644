"""Noise is standard normal, fresh, and in production not to be had again."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from scipy import stats

from pmtl.privacy import noise
from pmtl.privacy.noise import seeded_noise, system_noise


@pytest.mark.parametrize("draw", [seeded_noise(1), system_noise], ids=["seeded", "system"])
def test_it_is_standard_normal(draw):
    """400,000 numbers: the variance within 1%, and the whole distribution by Kolmogorov–Smirnov
    (which would be off by chance once in a million runs)."""
    values = draw(0, (4, 100_000)).numpy().reshape(-1)
    assert values.dtype == np.float64
    assert abs(values.var() - 1) < 0.012
    assert stats.kstest(values, "norm").pvalue > 1e-6
    assert abs(stats.spearmanr(values[::2], values[1::2]).statistic) < 0.012


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 5), (2, 0)])
def test_it_has_the_shape_asked_for(shape):
    assert system_noise(0, shape).shape == shape
    assert seeded_noise(0)(0, shape).shape == shape


def test_an_experiment_can_draw_it_again_and_production_cannot():
    assert torch.equal(seeded_noise(4)(2, (1, 50)), seeded_noise(4)(2, (1, 50)))
    assert not torch.equal(seeded_noise(4)(2, (1, 50)), seeded_noise(4)(3, (1, 50)))
    assert not torch.isin(system_noise(2, (1, 50)), system_noise(2, (1, 50))).any()


def test_production_noise_is_the_operating_systems_and_nothing_elses(monkeypatch):
    """Seeding everything that can be seeded changes nothing; a system that gives constant bytes
    gives constant noise."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    first = system_noise(0, (1, 20))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert not torch.equal(first, system_noise(0, (1, 20)))
    monkeypatch.setattr(noise.os, "urandom", lambda size: b"\x80" * size)
    constant = system_noise(0, (1, 20))
    assert torch.equal(constant[:, ::2], constant[:, :1].expand(1, 10))


def test_a_forked_process_draws_other_noise():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, system_noise(0, (1, 4)).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reader, 32))
    os.close(reader)
    os.close(writer)
    assert not np.isin(theirs, system_noise(0, (1, 4)).numpy()).any()


def test_large_draws_cross_the_chunks_without_a_seam(monkeypatch):
    monkeypatch.setattr(noise, "_CHUNK", 64)
    values = system_noise(0, (1, 1001))
    assert torch.isfinite(values).all()
    assert len(values.unique()) == 1001
