"""The game of secure aggregation finds the mistakes that it is made for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pmtl.audit import server as game
from pmtl.audit.setup import AuditSetup
from pmtl.secure_aggregation import shares

SETUP = AuditSetup(epsilon=2.0, clients=20, trials=3000, seed=1)


def test_secure_aggregation_is_consistent_with_its_claim():
    result = game.server(SETUP)
    assert result.passed
    assert result.lower_bound > 0.5, "an attack that sees nothing proves nothing"


def shares_for_all_sites(monkeypatch):
    """Noise that forgets the colluding sites."""
    made = shares.scale
    monkeypatch.setattr(shares, "scale", lambda grid, sites, c: made(grid, sites, 0) / 2)


def no_masks(monkeypatch):
    monkeypatch.setattr(
        game, "mask", lambda site, secret, keys, attempt, size: np.zeros(size, dtype=np.uint64)
    )


def masks_that_do_not_know_their_cohort(monkeypatch):
    from pmtl.secure_aggregation import masks

    monkeypatch.setattr(masks, "cohort_digest", lambda keys: "")


def test_shares_that_forget_the_colluding_site_are_found(monkeypatch):
    shares_for_all_sites(monkeypatch)
    assert not game.server(replace(SETUP, trials=1600)).passed


def test_one_site_alone_tells_nothing_as_long_as_it_is_masked(monkeypatch):
    bits = np.arange(1000) % 2 == 1

    def right():
        scores = game.play(SETUP.plan(1), game.Attack.one_site, bits, 1)
        return (np.argsort(np.argsort(scores)) >= 500)[bits].mean()

    assert abs(right() - 0.5) < 4 * 0.5 / np.sqrt(500)
    no_masks(monkeypatch)
    assert right() > 0.7


@pytest.mark.thorough
def test_a_mask_of_another_cohort_hides_nothing_less(monkeypatch):
    """Two masks of three are not enough, even if they were bound to nothing."""
    masks_that_do_not_know_their_cohort(monkeypatch)
    assert game.server(SETUP).passed
