"""The key of an experiment's noise has all in it that decides what is published."""

from __future__ import annotations

import pytest

from pmtl.errors import PmtlError
from pmtl.privacy.noise import CPU, real
from pmtl.simulation.noise_key import NoiseKey


def noise(key, release=""):
    return tuple(real(key.source(release)(0), (4,), CPU).tolist())


def test_runs_with_other_metrics_and_other_kinds_of_release_have_other_noise():
    none, few, many = (NoiseKey(0) for _ in range(3))
    few.add_metrics({"rounds": 1}, 2)
    many.add_metrics({"rounds": 3}, 2)
    found = [noise(none), noise(few), noise(many), noise(none, " metrics")]
    assert len(set(found)) == 4
    assert noise(NoiseKey(0)) == found[0] != noise(NoiseKey(1))


def test_metrics_are_decided_upon_before_noise_is_drawn():
    key = NoiseKey(0)
    noise(key)
    with pytest.raises(PmtlError, match="before the first round"):
        key.add_metrics({"rounds": 1})
