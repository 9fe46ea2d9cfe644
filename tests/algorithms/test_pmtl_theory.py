"""The theorems' step sizes, as printed, and what they do on federations of quadratics.

Client k's loss is ½Σ_j h_j (w_j − c_kj)², so L and μ are the largest and the smallest h. Steps are
the algorithm's own and what is published passes the real gate.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from drawn_noise import seeded_noise
from theory import (
    contraction_strongly_convex,
    step_size_strongly_convex,
    step_size_theorem_3,
    step_size_theorem_4,
)

from pmtl.algorithms import PMTL
from pmtl.errors import PmtlError
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release


@dataclass
class Quadratics:
    """A federation of m quadratics that share the curvature h [P]; centres are [m, P]."""

    curvature: torch.Tensor
    centres: torch.Tensor
    lam: float

    def loss_gradients(self, w, clients=slice(None)):
        """∇loss_k(w_k)."""
        return self.curvature * (w - self.centres[clients])

    def gradients(self, w, shared):
        """∇f_k(w_k; w̃) for every client."""
        return self.loss_gradients(w) + self.lam * (w - shared)

    def excess(self, w, shared):
        """Σ_k f_k(w_k; w̃) − f_k(w_k*; w̄*)."""
        return self.total(w, shared) - self.total(*self.optimum())

    def total(self, w, shared):
        losses = (self.curvature * (w - self.centres) ** 2).sum() / 2
        return float(losses + self.lam / 2 * ((w - shared) ** 2).sum())

    def optimum(self):
        """h(w_k − c_k) + λ(w_k − w̄) = 0 for every k; their mean says that w̄ is the mean c."""
        mean = self.centres.mean(dim=0, keepdim=True)
        best = (self.curvature * self.centres + self.lam * mean) / (self.curvature + self.lam)
        return best, mean

    def run(self, lr, rounds, local_steps=1, cohort=None, sigma=0.0, seed=0, start=0.0):
        """Algorithm 1; yields (all w_k, w̃) before every local step and after the last one."""
        m, size = self.centres.shape
        cohort = cohort or m
        sampling = "full" if cohort == m else "fixed"
        plan = PrivacyPlan(m, cohort, sampling, float("inf"), sigma, rounds, 1e-3)
        gate = Release(plan, np.zeros(m, dtype=np.int64), seeded_noise(seed))
        sampler = plan.sampler(seed, np.arange(m, dtype=np.uint64))
        algorithm = PMTL(lam=self.lam)
        shared = torch.full((1, size), start, dtype=torch.float64)
        w = algorithm.start(shared).repeat(m, 1)
        for t in range(rounds):
            clients = sampler.draw(t)
            loss_gradient = partial(self.loss_gradients, clients=clients)
            before = w[clients]
            state = algorithm.begin(before, shared)
            for _ in range(local_steps):
                yield w.clone(), shared
                state = algorithm.step(state, shared, loss_gradient, lr)
                w[clients] = algorithm.keep(state)
            tally = gate.open(t, shared)
            gate.add(tally, clients, algorithm.upload(state, before, shared))
            shared = gate.publish(tally, shared)
        yield w.clone(), shared

    def squared_gradients(self, skip=0, **options):
        """(1/m)Σ_k ‖∇f_k(w_kᵗ; w̃ᵗ)‖² for every local iteration t."""
        steps = list(self.run(**options))[:-1]
        return np.array(
            [float((self.gradients(w, s) ** 2).sum() / len(w)) for w, s in steps[skip:]]
        )


def quadratics(lam, smoothness=1.0, convexity=1.0, m=8, size=30, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    centres = 2 + spread * torch.randn(m, size, generator=generator, dtype=torch.float64)
    curvature = torch.linspace(convexity, smoothness, size, dtype=torch.float64)
    return Quadratics(curvature, centres, lam)


def test_the_step_of_theorem_3_is_the_printed_one():
    for smoothness, lam, p in ((1.0, 0.5, 1.0), (4.0, 10.0, 0.25), (0.3, 0.0, 0.5)):
        printed = 1 / (p * smoothness + (p + 1 / p) * lam)
        assert step_size_theorem_3(smoothness, lam, p) == pytest.approx(printed, rel=1e-15)
    assert step_size_theorem_3(1.0, 1.0, 1.0) == pytest.approx(1 / 3)


@pytest.mark.parametrize("target", [0.5, 0.75, 1.0])
@pytest.mark.parametrize(
    ("smoothness", "convexity", "lam", "p"), [(1, 1, 0.1, 1), (5, 0.5, 0.2, 0.5)]
)
def test_the_step_of_theorem_4_meets_its_printed_condition(smoothness, convexity, lam, p, target):
    eta = step_size_theorem_4(smoothness, convexity, lam, p, target)
    c = eta * (smoothness * p**2 + lam * p**2 - 2 * lam) / p
    assert eta * p * (c - 2) * (convexity + lam) == pytest.approx(target)
    assert c > 2
    # So the step is always beyond the 2/(L+λ) above which gradient descent diverges.
    assert eta > 2 / (smoothness + lam)


def test_the_mended_step_and_its_range():
    assert step_size_strongly_convex(3.0, 0.5) == pytest.approx(1 / 3.5)
    assert step_size_strongly_convex(3.0, 0.5, 1.5) == pytest.approx(1.5 / 3.5)
    # 1 − c(2−c)μ/(L+λ)
    assert contraction_strongly_convex(3.0, 1.0, 1.0) == pytest.approx(1 - 1 / 4)
    assert contraction_strongly_convex(3.0, 1.0, 1.0, 0.5) == pytest.approx(1 - 0.75 / 4)
    for c in (0.0, 2.0, -1.0, float("nan")):
        with pytest.raises(PmtlError, match="0 < c < 2"):
            step_size_strongly_convex(1.0, 1.0, c)


@pytest.mark.parametrize("bad", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0), (1, 1, 1.5)])
def test_constants_that_mean_nothing_are_refused_in_a_sentence(bad):
    smoothness, lam, rate = bad
    for call in (
        lambda: step_size_theorem_3(smoothness, lam, rate),
        lambda: step_size_theorem_4(smoothness, 1.0, lam, rate),
    ):
        with pytest.raises(PmtlError, match="L > 0, λ ≥ 0 and 0 < p ≤ 1"):
            call()
    if 0 < rate <= 1:
        with pytest.raises(PmtlError, match="L > 0, λ ≥ 0"):
            step_size_strongly_convex(smoothness, lam)


def test_where_theorem_4_has_no_step_it_says_so():
    with pytest.raises(PmtlError, match="Use step_size_strongly_convex"):
        step_size_theorem_4(1.0, 1.0, 1.0, 1.0)
    with pytest.raises(PmtlError, match="target between 1/2 and 1"):
        step_size_theorem_4(1.0, 1.0, 0.1, 1.0, target=0.4)


class TestTheorem3WithEverybodyInEveryRound:
    """η = 1/(L + 2λ). With L = λ = 1 a local step leaves r = 1/3 of a gradient."""

    SIGMA, ROUNDS, BURN_IN = 0.1, 300, 20

    def floor(self, sigma, local_steps, seed):
        federation = quadratics(lam=1.0, size=300)
        lr = step_size_theorem_3(1.0, 1.0, 1.0)
        return federation.squared_gradients(
            skip=self.BURN_IN * local_steps,
            lr=lr,
            rounds=self.ROUNDS + self.BURN_IN,
            local_steps=local_steps,
            sigma=sigma,
            seed=seed,
        ).mean()

    def predicted(self, sigma, local_steps, size=300):
        """A round's noise adds −λξ to every gradient. Of the mean gradient, r^E survives the round
        and λ/(L+λ) of what was walked off comes back through the published mean moving."""
        survives = (1 / 3) ** local_steps
        back = survives + (1 - survives) / 2
        at_start = size * sigma**2 / (1 - back**2)
        return at_start * (1 - (1 / 9) ** local_steps) / (local_steps * (1 - 1 / 9))

    def test_the_noise_floor_grows_with_the_square_of_the_noise(self):
        """300 rounds of 300 coordinates, different draws: the ratio's deviation is about 1%."""
        ratio = self.floor(2 * self.SIGMA, 4, seed=1) / self.floor(self.SIGMA, 4, seed=2)
        assert ratio == pytest.approx(4, rel=0.04)

    def test_the_noise_floor_falls_with_the_number_of_local_steps(self):
        four, eight = self.floor(self.SIGMA, 4, seed=3), self.floor(self.SIGMA, 8, seed=4)
        assert four / eight == pytest.approx(2, rel=0.05)

    @pytest.mark.parametrize("local_steps", [1, 4])
    def test_the_noise_floor_is_the_one_that_linear_algebra_predicts(self, local_steps):
        measured = self.floor(self.SIGMA, local_steps, seed=5)
        assert measured == pytest.approx(self.predicted(self.SIGMA, local_steps), rel=0.04)

    @pytest.mark.parametrize("local_steps", [1, 4])
    def test_without_noise_the_average_squared_gradient_falls_like_one_over_t(self, local_steps):
        federation = quadratics(lam=1.0, smoothness=1.0, convexity=0.3)
        lr = step_size_theorem_3(1.0, 1.0, 1.0)
        m = len(federation.centres)
        start = torch.zeros_like(federation.centres)
        initial = federation.total(start, start[:1])  # f_k* is 0, at its centre
        factor = 4 * (1 + 1 + 1) + 2 / (local_steps * (1 + 1 + 2))
        averages = []
        for rounds in (100, 200, 400):
            steps = federation.squared_gradients(lr=lr, rounds=rounds, local_steps=local_steps)
            assert len(steps) == rounds * local_steps
            averages.append(steps.mean())
            assert steps.mean() <= factor * initial / (m * len(steps))
        assert averages[0] / averages[1] == pytest.approx(2, rel=0.01)
        assert averages[1] / averages[2] == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("c", [0.5, 1.0, 1.5])
@pytest.mark.parametrize(
    ("smoothness", "convexity", "lam"), [(1.0, 1.0, 0.1), (4.0, 0.5, 1.0), (1.0, 1.0, 10.0)]
)
def test_the_excess_objective_contracts_as_fast_as_is_promised(smoothness, convexity, lam, c):
    """Full participation, no noise, one local step a round."""
    federation = quadratics(lam, smoothness, convexity)
    lr = step_size_strongly_convex(smoothness, lam, c)
    promised = contraction_strongly_convex(smoothness, convexity, lam, c)
    assert 0 < promised < 1
    steps = list(federation.run(lr=lr, rounds=40))
    excess = np.array([federation.excess(w, shared) for w, shared in steps])
    measurable = int((excess[:-1] > 1e-9 * excess[0]).sum())  # above rounding
    assert measurable > 3
    measured = excess[1 : measurable + 1] / excess[:measurable]
    assert measured.max() <= promised * (1 + 1e-6)


def test_the_printed_rate_with_lambda_in_it_would_promise_too_much():
    """Where all clients agree, the mean has the losses' curvature alone, whatever λ is."""
    federation = quadratics(lam=10.0, spread=0.0)
    lr = step_size_strongly_convex(1.0, 10.0)
    excess = [federation.excess(w, shared) for w, shared in federation.run(lr=lr, rounds=10)]
    measured = excess[-1] / excess[-2]
    assert measured == pytest.approx((1 - lr) ** 2)
    assert 1 - lr * (1.0 + 10.0) < measured <= contraction_strongly_convex(1.0, 1.0, 10.0)


def test_the_printed_step_of_theorem_4_diverges_where_the_mended_one_converges():
    federation = quadratics(lam=0.1)
    ends = {}
    for name, lr in (
        ("printed", step_size_theorem_4(1.0, 1.0, 0.1, 1.0)),
        ("mended", step_size_strongly_convex(1.0, 0.1)),
    ):
        excess = [federation.excess(w, s) for w, s in federation.run(lr=lr, rounds=60)]
        ends[name] = excess[-1] / excess[0]
    assert ends["printed"] > 1e6
    assert ends["mended"] < 1e-6


def test_the_printed_step_of_theorem_3_diverges_when_few_take_part_and_lambda_is_small():
    federation = quadratics(lam=0.01, m=20)
    printed = step_size_theorem_3(1.0, 0.01, 0.1)
    assert printed > 2  # beyond what gradient descent on L = 1 can bear
    mended = step_size_strongly_convex(1.0, 0.01)
    ends = {}
    for lr in (printed, mended):
        gradients = federation.squared_gradients(lr=lr, rounds=400, cohort=2)
        ends[lr] = gradients[-1] / gradients[0]
    assert ends[printed] > 1e6
    assert ends[mended] < 1e-3


def test_with_a_part_of_the_clients_the_published_vector_runs_ahead_of_their_mean():
    """A property of Algorithm 1 as printed. Uploads are steps of personal models, divided by q;
    the mean of all personal models moves by the same sum divided by m. So w̃ − w̃⁰ is m/q times
    w̄ − w̄⁰, and where λ(m/q − 1) exceeds the losses' curvature the two drive each other away,
    however small the step."""
    federation = quadratics(lam=0.2, m=20)
    for w, shared in federation.run(lr=0.3, rounds=600, cohort=5):
        ahead = 4 * w.mean(dim=0)
        assert torch.allclose(shared[0], ahead, rtol=0, atol=1e-9)
    # Its resting point: L(w̄ − c̄) + λ(w̄ − 4w̄) = 0.
    resting = federation.centres.mean(dim=0) / (1 + 0.2 - 0.2 * 4)
    assert torch.allclose(w.mean(dim=0), resting, rtol=1e-3)
    strong = quadratics(lam=0.5, m=20)
    *_, (w, _) = strong.run(lr=0.01, rounds=4000, cohort=5)
    assert w.abs().max() > 100 * strong.centres.abs().max()
