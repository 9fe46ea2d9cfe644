"""The statement says what holds, for whom, and what does not; and never more than that."""

from __future__ import annotations

import pytest

from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement import make_statement, warn_if_drowned, warn_of_delta


def text(sampling="full", shares=True, personal=True, **changes):
    cohort = changes.pop("cohort", 50 if sampling == "full" else 10)
    values = {"clip_norm": 1.0, "noise_std": 0.5, "rounds": 5, "delta": 1e-3, **changes}
    plan = PrivacyPlan(50, cohort, sampling, **values)
    return " ".join(str(make_statement(plan, shares=shares, personal=personal)).split())


def test_an_epsilon_of_zero_is_not_taken_for_nothing_shared():
    """Much noise makes ε 0 at this δ, and yet uploads left their clients."""
    said = text(noise_std=1e4)
    assert "ε = 0 and δ = 0.001" in said
    assert "trained alone" not in said
    assert "trained alone" in text(shares=False)


def test_what_is_public_is_admitted_even_where_nothing_is_shared():
    for shares in (True, False):
        assert "the classes and their names" in text(shares=shares)


def test_coins_must_stay_secret_and_the_statement_says_so():
    assert "coins stay secret" in text("poisson")
    assert "coins" not in text("full")


def test_a_fixed_draw_reports_both_numbers():
    statement = make_statement(
        PrivacyPlan(50, 10, "fixed", 1.0, 0.5, 5, 1e-3), shares=True, personal=True
    )
    said = " ".join(str(statement).split())
    assert f"ε = {statement.epsilon:.4g}" in said
    assert (
        f"for outsiders, who see only the models, ε would be {statement.also['outsiders']:.4g}"
        in said
    )
    assert statement.also["outsiders"] < statement.epsilon


def test_a_model_that_is_published_is_not_called_the_clients_own():
    assert "it protects the others, not the client itself" in text(personal=True)
    assert "it protects the others, not the client itself" not in text(personal=False)


@pytest.mark.parametrize(("delta", "hollow"), [(1 / 50, True), (0.9, True), (1 / 51, False)])
def test_a_delta_that_allows_publishing_a_client_is_told(delta, hollow):
    assert ("BEWARE OF δ" in text(delta=delta)) == hollow
    plan = PrivacyPlan(50, 50, "full", 1.0, 0.5, 5, delta)
    assert (warn_of_delta(plan) is not None) == hollow


def test_the_drowning_warning_counts_the_noise_of_small_blocks():
    plan = PrivacyPlan(50, 50, "full", 1.0, 0.1, 5, 1e-3)
    assert warn_if_drowned(plan, 200) is None
    assert warn_if_drowned(plan, 200, smallest_block=1 / 50) is not None
