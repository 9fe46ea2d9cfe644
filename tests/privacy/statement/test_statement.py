"""The statement says what holds, for whom, and what does not; and never more than that."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import NormalDist

import pytest

from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.privacy.accounting import composition, distributed
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement.statement import Statement, make_statement
from pmtl.privacy.statement.text import hidden
from pmtl.privacy.statement.warnings import warn_if_noise_exceeds_signal, warn_of_delta


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


def test_relations_are_admitted_where_there_are_some():
    plan = PrivacyPlan(50, 50, "full", 1.0, 0.5, 5, 1e-3)
    told = make_statement(plan, shares=True, personal=True, relations="The clusters").not_covered
    assert any(item.startswith("The clusters, with which clients read") for item in told)
    assert "more noise than stated above" not in text()


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
    assert "protects the other clients, not the client itself" in text(personal=True)
    assert "protects the other clients, not the client itself" not in text(personal=False)


@pytest.mark.parametrize(("delta", "hollow"), [(1 / 50, True), (0.9, True), (1 / 51, False)])
def test_a_delta_that_allows_publishing_a_client_is_told(delta, hollow):
    assert ("BEWARE OF δ" in text(delta=delta)) == hollow
    plan = PrivacyPlan(50, 50, "full", 1.0, 0.5, 5, delta)
    assert (warn_of_delta(plan) is not None) == hollow


def test_the_drowning_warning_counts_the_noise_of_small_blocks():
    plan = PrivacyPlan(50, 50, "full", 1.0, 0.1, 5, 1e-3)
    assert warn_if_noise_exceeds_signal(plan, 200) is None
    assert warn_if_noise_exceeds_signal(plan, 200, smallest_block=1 / 50) is not None


class TestGuarantees:
    PLAN = PrivacyPlan(50, 50, "full", 1.0, 0.5, 5, 1e-3)

    def test_epsilon_is_told_at_several_deltas_with_what_it_leaves_an_attacker(self):
        statement = make_statement(self.PLAN, shares=True, personal=True)
        assert [point.delta for point in statement.guarantees] == [1e-3, 1e-5, 1e-6]
        epsilons = [point.epsilon for point in statement.guarantees]
        assert statement.epsilon == epsilons[0]
        assert epsilons == sorted(epsilons)
        assert statement.also["zero_out"] == pytest.approx(statement.guarantees[0].zero_out)
        mu = 2 * 5**0.5 / 25
        assert statement.attacker_right == pytest.approx(NormalDist().cdf(mu / 2), rel=1e-9)
        said = " ".join(str(statement).split())
        for point in statement.guarantees:
            assert f"{point.epsilon:.4g} {point.zero_out:.4g}" in said
        assert "this is right at most 53.57% of the time" in said
        assert statement.to_dict()["guarantees"][1]["delta"] == 1e-5

    def test_it_is_of_what_was_charged_and_not_of_what_was_planned(self):
        event = GaussianEvent.of(self.PLAN)
        planned = make_statement(self.PLAN, shares=True, personal=True)
        fewer = make_statement(self.PLAN, shares=True, personal=True, charged={event: 2})
        more = make_statement(self.PLAN, shares=True, personal=True, charged={event: 9})
        assert fewer.epsilon < planned.epsilon < more.epsilon
        assert (fewer.rounds, more.rounds) == (2, 9)
        assert more.charged == (event.to_dict() | {"count": 9},)

    def test_metrics_add_to_it(self):
        metrics = PrivacyPlan(50, 50, "full", 1.0, 0.2, 3, 1e-3)
        alone = make_statement(self.PLAN, shares=True, personal=True)
        both = make_statement(self.PLAN, shares=True, personal=True, metrics=metrics)
        events = {GaussianEvent.of(self.PLAN): 5, GaussianEvent.of(metrics, "validation"): 3}
        assert both.epsilon == composition.epsilon(events, 1e-3) > alone.epsilon
        assert "released 3 times" in " ".join(str(both).split())

    def test_without_privacy_there_is_no_table(self):
        said = text(noise_std=0.0)
        assert "NOT PRIVATE" in said
        assert "attacker" not in said


class TestLead:
    """The first number is the one to quote; the first chance is the one that follows from all
    (ε, δ) pairs together."""

    PLAN = PrivacyPlan(50, 50, "full", 1.0, 0.05, 5, 1e-3)

    def test_it_begins_with_the_number_to_quote(self):
        statement = make_statement(self.PLAN, shares=True, personal=True)
        lead = " ".join(str(statement).split("\n\n")[1].split())
        assert lead.startswith(f"ε = {statement.epsilon:.4g} at δ = 0.001 for each client with all")
        assert "this is the number to quote. Example: an attacker knows" in lead

    def test_with_a_ledger_all_runs_together_are_quoted(self):
        statement = make_statement(
            self.PLAN, shares=True, personal=True, population_epsilon=7.25, population_filter=8.5
        )
        lead = " ".join(str(statement).split("\n\n")[1].split())
        assert lead.startswith("ε = 7.25 at δ = 0.001 for all runs on these clients together")
        assert f"For this run alone, ε = {statement.epsilon:.4g}." in lead

    @pytest.mark.parametrize(
        ("mode", "sampling", "told"),
        [
            ("experiment", "poisson", True),
            ("experiment", "fixed", True),
            ("experiment", "full", False),
            ("production", "poisson", False),
        ],
    )
    def test_experiments_with_one_seed_are_told_that_their_cohorts_are_the_same(
        self, mode, sampling, told
    ):
        plan = PrivacyPlan(50, 50 if sampling == "full" else 10, sampling, 1.0, 0.5, 5, 1e-3)
        known = {"shares": True, "personal": True, "mode": mode}
        alone = make_statement(plan, **known)
        together = make_statement(plan, **known, population_epsilon=9.0, population_filter=9.5)
        assert "the same coins" not in str(alone)
        assert ("give each run a seed of its own" in " ".join(str(together).split())) is told

    def test_the_first_chance_is_the_bound_from_all_pairs(self):
        statement = make_statement(self.PLAN, shares=True, personal=True)
        mu = 2 * 5**0.5 / 2.5
        truth = NormalDist().cdf(mu / 2)
        assert statement.attacker_right == pytest.approx(truth, rel=1e-9)
        paragraphs = str(statement).split("\n\n")
        lead = " ".join(paragraphs[1].split())
        assert lead.index("both are equally likely") < lead.index("%")
        assert float(lead.partition("right at most ")[2].partition("%")[0]) == pytest.approx(
            100 * truth, abs=0.011
        )
        # What a single pair would allow is more, and is told only with what it is.
        alone = statement.guarantees[0].attacker_right
        assert alone > statement.attacker_right
        shown = f"{100 * alone:.1f}"
        assert shown not in lead
        said = " ".join(str(statement).split())
        assert said.count(f"{shown[:4]}") == 1
        assert "By itself, the first pair (ε, δ) would allow" in said

    def test_the_fields_for_programs_are_as_they_were(self):
        values = make_statement(self.PLAN, shares=True, personal=True).to_dict()
        assert {"attacker_right", "guarantees", "epsilon", "delta"} <= set(values)
        assert "attacker_right" in values["guarantees"][0]


@pytest.mark.parametrize(
    ("colluders", "words"),
    [
        (0, "the server alone it is the ε above"),
        (1, "the server with 1 colluding site, which knows its own share, it is the ε above"),
        (2, "the server with 2 colluding sites, which know their own shares, it is the ε above"),
    ],
)
def test_hidden_uploads_are_stated_for_any_number_of_colluding_sites(colluders, words):
    plan = PrivacyPlan(50, 50, "full", 1.0, 0.5, 5, 1e-3)
    assert words in hidden(distributed.report(plan, 4, colluders))


class TestFiles:
    """`privacy.json` is read back whole, or refused with a sentence."""

    PLAN = PrivacyPlan(50, 10, "poisson", 1.0, 0.5, 5, 1e-3)
    METRICS = PrivacyPlan(50, 50, "full", 1.0, 0.2, 3, 1e-3)

    def written(self, **changes):
        made = make_statement(
            self.PLAN, shares=True, personal=True, metrics=self.METRICS, sites=(3, 1)
        )
        return made, {**json.loads(to_json(made.to_dict())), **changes}

    def test_a_statement_reads_back(self):
        made, values = self.written()
        assert Statement.from_dict(values) == made
        none = make_statement(replace(self.PLAN, noise_std=0.0), shares=True, personal=True)
        values = json.loads(to_json(none.to_dict()))
        assert values["epsilon"] == values["also"]["authors"] == "inf"
        assert Statement.from_dict(values) == none

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"format": 3}, "has the format 3, and this version of pmtl reads formats up to 2"),
            ({"colour": "red"}, "no entry of the file privacy.json named 'colour'"),
            ({"epsilon": "2"}, "the entry 'epsilon' is not valid: '2'"),
            ({"hardened": "false"}, "the entry 'hardened' is not valid: 'false'"),
            ({"rounds": True}, "the entry 'rounds' is not valid: True"),
            ({"not_covered": "everything"}, "the entry 'not_covered' is not valid"),
            ({"also": []}, "the entry 'also' is not valid"),
            ({"guarantees": [{"delta": 1e-3}]}, "no entry 'epsilon' in a guarantee"),
            ({"guarantees": 3}, "privacy.json: It is not a privacy statement of this version"),
            ({"charged": [{"count": 0}]}, "privacy.json: It is not a privacy statement"),
            ({"plan": {"clients": 3}}, "privacy.json: A privacy plan lacks"),
        ],
    )
    def test_anything_else_is_refused(self, changes, words):
        _, values = self.written(**changes)
        with pytest.raises(PmtlError, match=words):
            Statement.from_dict(values, "the file privacy.json")
        missing = {name: value for name, value in self.written()[1].items() if name != "unit"}
        with pytest.raises(PmtlError, match="no entry 'unit' in the file"):
            Statement.from_dict(missing, "the file privacy.json")

    def test_earlier_files_have_no_number_and_may_say_more(self):
        made, values = self.written(colour="red")
        del values["format"]
        assert Statement.from_dict(values) == made
        del values["guarantees"]  # As pmtl 0.1 wrote it.
        with pytest.raises(PmtlError, match="not a privacy statement of this version of pmtl"):
            Statement.from_dict(values)
