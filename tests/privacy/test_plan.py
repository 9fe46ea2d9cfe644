"""A plan is checked when it is made, and says in a sentence what is wrong with it."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import accountant
from pmtl.privacy.plan import PrivacyPlan, default_delta
from pmtl.privacy.request import PrivacyRequest
from pmtl.privacy.schemes import default_sampling

GOOD = {
    "clients": 205,
    "cohort": 100,
    "sampling": "poisson",
    "clip_norm": 0.5,
    "noise_std": 0.05,
    "rounds": 100,
    "delta": 1e-3,
}


def plan(**changes):
    return PrivacyPlan(**(GOOD | changes))


def test_the_multiplier_is_on_the_sum_and_the_noise_on_the_average():
    assert plan().noise_multiplier == pytest.approx(0.05 * 100 / 0.5)
    assert plan().rate == 100 / 205
    assert plan().adjacency == "replace-one"
    assert plan().private


@pytest.mark.parametrize("changes", [{"noise_std": 0.0}, {"clip_norm": math.inf}])
def test_without_noise_or_without_a_clip_epsilon_is_infinite_and_never_zero(changes):
    naked = plan(**changes)
    assert naked.noise_multiplier == 0
    assert not naked.private
    assert naked.epsilon() == math.inf


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": 0}, "number of clients must be at least 1"),
        ({"clients": 2.5}, "clients must be a whole number"),
        ({"cohort": 300}, "A cohort of 300 cannot be drawn from 205 clients"),
        ({"cohort": 0}, "cohort must be at least 1"),
        ({"cohort": True}, "cohort must be a whole number"),
        ({"sampling": "full"}, "cohort of all 205 clients"),
        ({"sampling": "poison"}, "Did you mean 'poisson'"),
        ({"clip_norm": 0.0}, "clip norm must be greater than 0"),
        ({"clip_norm": -1.0}, "clip norm must be greater than 0"),
        ({"clip_norm": math.nan}, "clip norm must be greater than 0"),
        ({"clip_norm": "1"}, "clip norm must be a number"),
        ({"noise_std": -0.1}, "finite standard deviation"),
        ({"noise_std": math.nan}, "finite standard deviation"),
        ({"noise_std": math.inf}, "finite standard deviation"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"rounds": True}, "rounds must be a whole number"),
        ({"rounds": 10.0}, "rounds must be a whole number"),
        ({"delta": 0.0}, "strictly between 0 and 1"),
        ({"delta": 1.0}, "strictly between 0 and 1"),
        ({"delta": math.nan}, "strictly between 0 and 1"),
    ],
)
def test_a_bad_plan_is_refused_in_a_sentence(changes, sentence):
    with pytest.raises(PmtlError, match=sentence):
        plan(**changes)


@pytest.mark.parametrize("sampling", ["full", "poisson", "fixed"])
def test_everybody_may_be_drawn_in_any_way(sampling):
    everybody = plan(cohort=205, sampling=sampling)
    assert everybody.rate == 1
    assert everybody.epsilon() == plan(cohort=205, sampling="full").epsilon()


@pytest.mark.parametrize("clip", [0.5, math.inf])
def test_a_plan_survives_json(clip):
    original = plan(clip_norm=clip, clients=np.int64(205), noise_std=np.float64(0.05))
    assert PrivacyPlan.from_dict(json.loads(json.dumps(original.to_dict()))) == original


def test_a_plan_from_elsewhere_is_checked():
    values = plan().to_dict()
    with pytest.raises(PmtlError, match="adjacency 'add-or-remove'"):
        PrivacyPlan.from_dict(values | {"adjacency": "add-or-remove"})
    with pytest.raises(PmtlError, match="Did you mean 'noise_std'"):
        PrivacyPlan.from_dict(values | {"nois_std": 1.0})
    with pytest.raises(PmtlError, match="lacks rounds"):
        PrivacyPlan.from_dict({key: values[key] for key in values if key != "rounds"})


def test_defaults():
    assert default_delta(205) == 1 / 2050
    assert default_sampling(205, 205) == "full"
    assert default_sampling(205, 100) == "poisson"
    with pytest.raises(PmtlError, match="at least 1"):
        default_delta(0)


def test_a_request_for_noise_is_taken_as_it_is():
    made = PrivacyRequest(noise=0.3, clip=2.0, cohort=10, rounds=7).resolve(40)
    assert made == PrivacyPlan(40, 10, "poisson", 2.0, 0.3, 7, 1 / 400)
    assert PrivacyRequest(noise=0.3).resolve(40).sampling == "full"


@pytest.mark.parametrize("cohort", [None, 100])
def test_a_request_for_epsilon_gets_just_enough_noise(cohort):
    made = PrivacyRequest(epsilon=1.0, cohort=cohort).resolve(205)
    assert 0.995 <= made.epsilon() <= 1.0


def test_a_request_for_nothing_gets_the_default_epsilon():
    assert 1.99 <= PrivacyRequest().resolve(205).epsilon() <= 2.0


@pytest.mark.parametrize("clip", [1.0, math.inf])
def test_infinite_epsilon_means_no_noise_and_keeps_the_clip(clip):
    made = PrivacyRequest(epsilon=math.inf, clip=clip).resolve(205)
    assert made.noise_std == 0
    assert made.clip_norm == clip


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epsilon": 1.0, "noise": 0.1}, "each determines the other"),
        ({"epsilon": 0.0}, "Epsilon must be greater than 0"),
        ({"epsilon": -1.0}, "Epsilon must be greater than 0"),
        ({"epsilon": math.nan}, "epsilon must be a number"),
        ({"epsilon": 1.0, "clip": math.inf}, "Without clipping no noise is enough"),
        ({"cohort": 300}, "A cohort of 300 cannot be drawn from 205 clients"),
        ({"sampling": "bernoulli"}, "There is no sampling scheme 'bernoulli'"),
    ],
)
def test_a_bad_request_is_refused_in_a_sentence(values, sentence):
    with pytest.raises(PmtlError, match=sentence):
        PrivacyRequest(**values).resolve(205)


def test_sampler_and_accountant_read_the_same_plan():
    """Neither takes a rate, a size or a number of rounds of its own."""
    for sampling in ("poisson", "fixed"):
        made = plan(sampling=sampling, rounds=400)
        sampler = made.sampler(3, np.arange(205, dtype=np.uint64))
        assert sampler.plan is made
        drawn = np.mean([len(sampler.draw(t)) for t in range(made.rounds)])
        # Poisson: 5 standard errors of a mean of 400 binomials.
        assert drawn == pytest.approx(205 * accountant.report(made)["rate"], abs=1.8)
        with pytest.raises(PmtlError, match="pays for 400 rounds"):
            sampler.draw(made.rounds)


def test_a_machine_that_trains_needs_neither_torch_nor_an_accountant_for_its_plan():
    code = (
        "import sys\n"
        "for name in ('torch', 'scipy', 'dp_accounting', 'pydantic'): sys.modules[name] = None\n"
        "import numpy as np\n"
        "from pmtl.errors import PmtlError\n"
        "from pmtl.privacy.request import PrivacyRequest\n"
        "plan = PrivacyRequest(noise=0.1, cohort=5).resolve(20)\n"
        "plan.sampler(1, np.arange(20, dtype=np.uint64)).draw(0)\n"
        "try: plan.epsilon()\n"
        "except PmtlError as error: print(isinstance(error, ImportError), error.name, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True scipy Computing epsilon needs the package scipy")
