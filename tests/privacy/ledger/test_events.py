"""A release as data: checked when it is made, and refused rather than guessed when it is read."""

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.privacy.ledger.events import GaussianEvent, from_list
from pmtl.privacy.plan import PrivacyPlan

EVENT = GaussianEvent("poisson", clients=205, cohort=100, clip_norm=0.5, noise_std=0.05)


@st.composite
def events(draw):
    clients = draw(st.integers(1, 10**6))
    sampling = draw(st.sampled_from(["full", "poisson", "fixed"]))
    cohort = clients if sampling == "full" else draw(st.integers(1, clients))
    clip = draw(st.floats(0, exclude_min=True, allow_nan=False))
    noise = draw(st.floats(0, allow_nan=False, allow_infinity=False))
    assume(noise == 0 or math.isfinite(noise * (cohort / clip)))  # What overflows is refused.
    return GaussianEvent(sampling, clients, cohort, clip, noise, draw(st.sampled_from("ab")))


def test_an_event_is_one_round_of_its_plan():
    plan = PrivacyPlan(205, 100, "poisson", 0.5, 0.05, rounds=7, delta=1e-3)
    assert GaussianEvent.of(plan) == EVENT
    assert GaussianEvent.of(plan, kind="validation").kind == "validation"
    assert (EVENT.rate, EVENT.noise_multiplier) == (plan.rate, plan.noise_multiplier)


@given(events())
def test_json_and_back_to_the_last_bit(event):
    back = GaussianEvent.from_dict(json.loads(to_json(event.to_dict())))
    assert back == event
    assert hash(back) == hash(event)


def test_numpys_numbers_make_the_same_event():
    same = GaussianEvent("poisson", np.int64(205), np.int32(100), np.float64(0.5), np.float64(0.05))
    assert same == EVENT
    assert json.loads(json.dumps(same.to_dict())) == EVENT.to_dict()


def test_no_clipping_is_no_noise():
    event = GaussianEvent("full", 10, 10, math.inf, 1.0)
    assert event.noise_multiplier == 0
    assert event.to_dict()["clip_norm"] == "inf"
    assert GaussianEvent.from_dict(event.to_dict()) == event


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mechanism": "laplace"}, "laplace"),
        ({"mechanism": None}, "mechanism"),
        ({"adjacency": "add-or-remove-one"}, "add-or-remove-one"),
        ({"sampling": "shuffle"}, "shuffle"),
        ({"noise": 1.0}, "noise_std"),
        ({"noise_std": -1.0}, "noise"),
        ({"noise_std": math.nan}, "noise"),
        ({"noise_std": "0.05"}, "noise"),
        ({"clip_norm": 0.0}, "clip norm"),
        ({"cohort": 206}, "206"),
        ({"clients": 205.5}, "whole number"),
        ({"clients": True}, "whole number"),
        ({"kind": ""}, "kind"),
        ({"kind": 3}, "kind"),
    ],
)
def test_what_is_not_known_is_refused(change, words):
    with pytest.raises(PmtlError, match=words):
        GaussianEvent.from_dict(EVENT.to_dict() | change)


@pytest.mark.parametrize("field", list(EVENT.to_dict()))
def test_every_field_has_to_be_there(field):
    values = EVENT.to_dict()
    del values[field]
    with pytest.raises(PmtlError, match=field):
        GaussianEvent.from_dict(values)


def test_reading_an_event_imports_no_code(tmp_path, monkeypatch):
    (tmp_path / "here_mod.py").write_text("raise SystemExit('this code ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    values = EVENT.to_dict() | {"sampling": "here_mod:Net"}
    for written in (values, values | {"chance": None}):
        with pytest.raises(PmtlError, match="'here_mod:Net', which is not one of the library's, w"):
            GaussianEvent.from_dict(written)
    with pytest.raises(ValueError, match="releases"):
        from_list([values | {"count": 0}])
    with pytest.raises(PmtlError, match="without its chance"):
        from_list([values | {"count": 1}])
    read = GaussianEvent.from_dict(values | {"chance": 0.75})
    assert read.cost == ("fixed", 0.75)


def test_something_else_altogether_is_refused():
    with pytest.raises(PmtlError, match="table of fields"):
        GaussianEvent.from_dict(["poisson"])
