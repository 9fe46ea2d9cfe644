"""Break the privacy-relevant code on purpose, one line at a time, and see whether a test notices.

`make mutants` copies the sources and tests aside, applies one mutant after the other to the copy,
runs the test files that hold its promise, and prints a table: caught, survived, or stale (the line
that it changes is no longer there, so nothing was tried). `--json FILE` writes the same for
programs, `--only TEXT` tries those whose promise or file has that text in it. The tests have to
pass without a mutant first. The status is 1 if any mutant survived or is stale.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "README.md", "pyproject.toml", "CONTRIBUTING.md", "Makefile")
#: Seconds that the tests of one mutant may take; a hang counts as caught.
LIMIT = 600


@dataclass(frozen=True)
class Mutant:
    """One line of one file, changed; the promise that breaks; the tests that must notice."""

    file: str
    old: str
    new: str
    promise: str
    tests: str


RELEASE, GRID, SAMPLING = "privacy/release.py", "privacy/grid.py", "privacy/sampling.py"
GATE = "privacy/test_release.py privacy/test_failure_cases_gate.py"
NOISE = "privacy/test_failure_cases_noise.py privacy/test_noise.py"
GRIDS = "privacy/test_grid.py privacy/test_failure_cases_gate.py"
ACCOUNT = "privacy/test_accounting.py privacy/test_composition.py privacy/test_extremes.py"
LEDGER = "privacy/test_account.py privacy/test_ledger.py privacy/test_caps.py"
RUNS = "runs/test_production.py privacy/test_failure_cases_runs.py runs/test_resume.py"

MUTANTS = (
    # the gate
    Mutant(RELEASE, "limit = clip_norm * (1 - _MARGIN)", "limit = 2 * clip_norm",
           "clip to γ", GATE),
    Mutant(RELEASE, "limit = clip_norm * (1 - _MARGIN)", "limit = clip_norm * (1 + 1e-15)",
           "no norm is an ulp above γ", GATE),
    Mutant(RELEASE, "uploads = torch.where(finite, uploads, 0.0)", "uploads = uploads + 0.0",
           "NaN counts as zero", GATE),
    Mutant(RELEASE, "norm = rows.square().sum(dim=1, keepdim=True).sqrt()",
           "norm = rows.abs().amax(dim=1, keepdim=True)", "the L2 norm is clipped", GATE),
    Mutant(RELEASE, "                tally.seen.add(client)\n", "                pass\n",
           "a client counts once", GATE),
    Mutant(RELEASE, "divisors = plan.cohort * board.members / plan.clients",
           "divisors = board.members * 1.0", "the divisor is q", GATE),
    Mutant(RELEASE, "self.plan.noise_std * self.plan.cohort / divisors * noise",
           "self.plan.noise_std * noise", "the noise of a block is the plan's on its sum", NOISE
           + " privacy/test_release.py"),
    Mutant(RELEASE, "self.plan.noise_std * self.plan.cohort / divisors * noise",
           "self.plan.noise_std / self.plan.cohort * noise", "noise is on the average", NOISE),
    Mutant(RELEASE, "        self._published.add(tally.round)\n", "", "no round is noised twice",
           NOISE + " privacy/test_release.py"),
    Mutant(RELEASE, "if os.getpid() != self._owner:", "if False:", "a fork has no noise", NOISE),
    Mutant(RELEASE, "if round != tally.round or not 0 <= client < self.plan.clients:",
           "if not 0 <= client < self.plan.clients:", "late uploads are dropped", GATE),
    Mutant(RELEASE, "        if self._charge is not None:\n            self._charge(tally.round)",
           "        update = self._noisy(tally).to(shared.device)\n        if self._charge is not None:"
           "\n            self._charge(tally.round)", "charged before noise is drawn",
           "privacy/test_release.py " + RUNS),
    Mutant(RELEASE, "noise = self._noise(tally.round, tuple(tally.sum.shape)).to(device)",
           "noise = self._noise(tally.round, tuple(tally.sum.shape)[1:]).to(device)",
           "every block has noise of its own", NOISE + " simulation/test_rounds.py"),
    Mutant(RELEASE, "noise = self._noise(tally.round, tuple(tally.sum.shape)).to(device)",
           "noise = self._noise(0, tuple(tally.sum.shape)).to(device)",
           "every round has noise of its own", NOISE + " simulation/test_rounds.py"),
    Mutant(RELEASE, "clipped = self._noise.grid.snap(clipped)",
           "clipped = (clipped / self._noise.grid.step).round().to(torch.int64)",
           "lengths are checked in whole numbers", GRIDS + " algorithms/test_related.py"),
    Mutant(RELEASE, "return self._noise.grid.step * (tally.sum + noise).to(torch.float64) / divisors",
           "return self._noise.grid.step * (tally.sum + noise) / divisors",
           "a hardened release is a whole number of steps", GRIDS),
    # the grid
    Mutant(GRID, "return torch.where(squares <= 4**self.bits, steps, 0)", "return steps",
           "an upload that is too long counts as zero", GRIDS),
    Mutant(GRID, "torch.where(sound, lengths, 0.0).trunc()", "torch.where(sound, lengths, 0.0).ceil()",
           "cutting never lengthens", GRIDS),
    Mutant(GRID, "sound = lengths.square().sum(dim=1, keepdim=True) < 2 * 4**self.bits",
           "sound = torch.isfinite(lengths).all(dim=1, keepdim=True)", "whole numbers never overflow",
           GRIDS),
    Mutant(GRID, "return cls(plan.clip_norm * 2.0**-bits, bits, z * 2.0**bits)",
           "return cls(plan.clip_norm * 2.0**-bits, bits, z * 2.0 ** (bits - 1))",
           "the exact noise is the plan's", GRIDS),
    # noise
    Mutant("privacy/noise.py", "key=words(seed, \"noise\", what, round, np.arange(2))",
           "key=words(seed, \"noise\", what, 0, np.arange(2))", "rounds do not share noise", NOISE
           + " simulation/test_rounds.py"),
    Mutant("privacy/noise.py", "    what = name_key(release)\n", "    what = name_key(\"\")\n",
           "releases do not share noise", NOISE + " simulation/test_rounds.py"),
    Mutant("privacy/noise.py", "middle = (places.to(torch.float64) + 0.5) * 2.0**-64",
           "middle = (places.to(torch.float64) + 0.5) * 2.0**-63", "noise is normal", NOISE),
    Mutant("privacy/noise.py", "unsure = (off < error) | (off > 1 - error) | (lengths > _FAR)",
           "unsure = lengths > _FAR", "the borders of exact noise are settled", NOISE),
    Mutant("privacy/noise.py", "return lambda count: np.frombuffer(os.urandom(8 * count), dtype=np.uint64)",
           "return lambda count: np.full(count, np.frombuffer(os.urandom(8), dtype=np.uint64)[0])",
           "production's words are drawn one by one", NOISE + " simulation/test_curves.py"),
    # sampling
    Mutant(SAMPLING, "if plan.sampling == \"poisson\":", "if plan.sampling == \"poisson\" and self.seed is not None:",
           "production tosses coins and does not draw a fixed number", "privacy/test_sampling.py"),
    Mutant(SAMPLING, "limit = np.uint64(ceil(plan.rate * 2**53))", "limit = np.uint64(ceil(1.1 * plan.rate * 2**53))",
           "a coin lands with probability p", "privacy/test_sampling.py"),
    Mutant(SAMPLING, "return np.frombuffer(os.urandom(8 * self.plan.clients), dtype=np.uint64)",
           "return np.resize(np.frombuffer(os.urandom(32), dtype=np.uint64), self.plan.clients)",
           "each client has a coin of its own", "privacy/test_sampling.py"),
    Mutant(SAMPLING, "tickets[some] = streams.go_on(self._words[some], round)",
           "tickets[some] = streams.go_on(self._words[some], round // 2)",
           "each round has coins of its own", "privacy/test_sampling.py"),
    # accounting
    Mutant("privacy/accounting.py", "return gaussian.epsilon(sensitivity * math.sqrt(plan.rounds) / z, plan.delta)",
           "return gaussian.epsilon(math.sqrt(plan.rounds) / z, plan.delta)", "replacing moves twice γ", ACCOUNT),
    Mutant("privacy/gaussian.py", "near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2",
           "near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2 + 1e-6", "δ is exact", ACCOUNT),
    Mutant("privacy/gaussian.py", "    low = max(by_epsilon, by_delta) / SAFE\n", "    low = by_epsilon\n",
           "searches end", "privacy/test_extremes.py"),
    Mutant("privacy/gaussian.py", "return min(SAFE * float(found), SAFE * high) if how.converged else high",
           "return float(found)", "a root that is not found is the safe end", "privacy/test_extremes.py"),
    Mutant("privacy/colluders.py", "log_missed = float(binomial.logsf(most)) if most < rounds else -math.inf",
           "log_missed = -math.inf", "the tail is charged", ACCOUNT),
    Mutant("privacy/colluders.py", "return min(float(np.logaddexp(summed, log_missed)), 0.0)",
           "return min(float(summed), 0.0)", "the tail is charged", ACCOUNT),
    Mutant("privacy/colluders.py", "    log_weights[0] = binomial.logcdf(fewest)\n", "",
           "few participations are not lost", ACCOUNT),
    Mutant("privacy/composition.py", "return float(np.logaddexp(summed, log_missed)) - target",
           "return float(summed) - target", "the tail is charged when events are composed", ACCOUNT),
    Mutant("privacy/composition.py", "        missed += tail_mass\n", "", "the tail of every group counts", ACCOUNT),
    Mutant("privacy/composition.py", "lasts = np.append(firsts[1:], len(values)) - 1", "lasts = firsts",
           "merging rounds up", ACCOUNT),
    Mutant("privacy/composition.py", "return min(1.0, float(weights @ apart) + missed)", "return min(1.0, float(weights @ apart))",
           "the distance counts the tail", ACCOUNT),
    Mutant("privacy/composition.py", "return (2 / group.z) * (2 / group.z)", "return (1 / group.z) * (1 / group.z)",
           "composition is replace-one", ACCOUNT),
    Mutant("privacy/poisson.py", "relation.REPLACE_ONE if sensitivity == 2", "relation.ADD_OR_REMOVE_ONE if sensitivity == 2",
           "Poisson is replace-one", ACCOUNT),
    Mutant("privacy/poisson.py", "usable = delta - rounding(rounds)", "usable = delta", "rounding of the transform is paid",
           "privacy/test_accounting.py"),
    Mutant("privacy/fixed_size.py", "deltas = rate * np.exp(gaussian.log_delta(stretched, mu))",
           "deltas = rate * rate * np.exp(gaussian.log_delta(stretched, mu))", "outsiders' profile", ACCOUNT),
    Mutant("privacy/renyi.py", "rounding = 1e-15 * (10 + float(largest.max()))", "rounding = 0.0",
           "Rényi is never too little", "privacy/test_renyi.py"),
    Mutant("privacy/renyi.py", "top = shift * (2 * order - 1) + _REACH", "top = shift * order + _REACH",
           "all of the integral is summed", "privacy/test_renyi.py"),
    Mutant("privacy/selection.py", "extra = (1 + shape) * min(float(by_order.min()), ell)", "extra = min(float(by_order.min()), ell)",
           "the theorem's factor", "privacy/test_selection.py"),
    Mutant("privacy/selection.py", "extra = mean * np.exp(log_deltas)", "extra = np.exp(log_deltas)", "E K counts",
           "privacy/test_selection.py"),
    Mutant("privacy/validation.py", "clip_norm = math.sqrt(values) / 2", "clip_norm = 0.5", "several values cost √c",
           "privacy/test_validation.py simulation/test_curves.py"),
    Mutant("privacy/validation.py", "whole = mu * mu / (1 - share)", "whole = mu * mu", "metrics have their share",
           "privacy/test_validation.py"),
    Mutant("privacy/plan.py", "if self.noise_std > 0 and not math.isfinite(self.noise_multiplier):", "if False:",
           "ε is never 0 by overflow", "privacy/test_extremes.py"),
    Mutant("privacy/plan.py", "return 1 / (10 * _count(clients, \"clients\"))", "return 1 / _count(clients, \"clients\")",
           "δ is below 1/m", "privacy/test_plan.py"),
    # metrics
    Mutant("simulation/curves.py", "share = np.clip(own[name] / self._bounds[name], 0, 1) - 0.5",
           "share = own[name] / self._bounds[name] - 0.5", "values are bounded", "simulation/test_curves.py"),
    Mutant("simulation/curves.py", "noise_of(plan, source, hardened), charge", "noise_of(plan, source, False), charge",
           "a hardened run's metrics are hardened", "simulation/test_curves.py"),
    Mutant("simulation/curves.py", "tally = self._gate.open(round, nothing)",
           "tally = self._gate.open(round, nothing[:, :1])", "every value has noise of its own", "simulation/test_curves.py"),
    Mutant("simulation/rounds.py", "self.curves = Curves(plan, self.measured, bounds, source, self._hardened, charge)",
           "self.curves = Curves(plan, self.measured, bounds, source, False, charge)",
           "a hardened run's metrics are hardened", "simulation/test_curves.py"),
    Mutant("simulation/rounds.py", "source = self._source(\" metrics\")", "source = self._source(\"\")",
           "metrics do not share the models' noise", "simulation/test_curves.py"),
    # the loop
    Mutant("simulation/rounds.py", "return to_json([*parts, self.board.description(), self.data.fingerprint()])",
           "return to_json([*parts, self.data.fingerprint()])", "two clusterings do not share noise", "simulation/test_rounds.py"),
    Mutant("simulation/rounds.py", "self._each = isolated if self._secret else together", "self._each = together",
           "one client's failure is its own", RUNS),
    Mutant("simulation/rounds.py", "        store.scatter(failed, store.gather(failed))\n", "        return\n",
           "a client that fails has a row", "runs/test_production.py"),
    Mutant("simulation/rounds.py", "if self._next is not None and self._next[0] == round:", "if self._next is not None:",
           "a cohort that was drawn ahead is used for its round only", "simulation/test_rounds.py"),
    Mutant("simulation/rounds.py", "if seed is None and algorithm.shares and charge is None:", "if False:",
           "production is charged", "runs/test_production.py simulation/test_rounds.py"),
    Mutant("streams.py", "        for counter in counters:\n            state = _finalise",
           "        for counter in counters[:1]:\n            state = _finalise",
           "streams differ in every counter", "test_streams.py privacy/test_sampling.py"),
    # ledger and runs
    Mutant("privacy/account.py", "for delta, limit in self.caps().items():", "for delta, limit in list(self.caps().items())[:1]:",
           "a cap holds at every δ", LEDGER),
    Mutant("privacy/account.py", "            self._events[event] += 1\n", "            self._events[event] = 1\n",
           "every charge counts", LEDGER),
    Mutant("privacy/account.py", "if total <= limit and wanted <= known:", "if total <= limit:",
           "what is known of ε is for as much as was asked", LEDGER),
    Mutant("runs/budget.py", "if digest is None or round < known[0] or (round == known[0] and digest != known[1]):",
           "if digest is None or round < known[0]:", "a checkpoint of another history is refused", RUNS),
    Mutant("runs/budget.py", "if digest is None or round < known[0] or (round == known[0] and digest != known[1]):",
           "if False:", "a checkpoint that was rolled back is refused", RUNS),
    Mutant("runs/budget.py", "return self._reproducible and round in", "return round in", "a replayed round of production is charged", RUNS),
    Mutant("runs/session.py", "line = {\"round\": report.round} if self._secret else report.to_dict()",
           "line = report.to_dict()", "production's lines have no exact numbers", RUNS),
    Mutant("runs/session.py", "    if facts[\"mode\"] == \"experiment\":  # Who", "    if True:  # Who",
           "how many were sampled is not told", "runs/test_production.py"),
    Mutant("runs/session.py", "elif mode == \"production\" or not federation.team.leader:", "elif not federation.team.leader:",
           "production's words rest on the published model", "runs/test_told.py"),
    Mutant("runs/session.py", "                    budget.charge_rest(state.round)\n", "                    pass\n",
           "early stopping is charged as a whole", RUNS),
    Mutant("runs/training.py", "*(public_warnings(data) if secret else describe(data)[\"warnings\"])",
           "*describe(data)[\"warnings\"]", "production's warnings rest on public numbers", "runs/test_told.py runs/test_production.py"),
    # the statement
    Mutant("privacy/statement.py", "attacker_right=(1 + composition.distance(charged)) / 2 if guarantees else None",
           "attacker_right=guarantees[0].attacker_right if guarantees else None", "the statement leads with the bound of all pairs",
           "privacy/test_statement.py"),
    Mutant("privacy/statement.py", "return f\"{math.ceil(1e4 * chance) / 100:.2f}%\"", "return f\"{math.floor(1e4 * chance) / 100:.2f}%\"",
           "a bound is rounded up", "privacy/test_statement.py"),
    Mutant("privacy/statement.py", "report[\"epsilon\"] = guarantees[0].epsilon", "pass", "the statement is of what was charged",
           "privacy/test_statement.py"),
    Mutant("privacy/meaning.py", "return min(1.0, (1 + delta * odds_against) / (1 + odds_against))",
           "return min(1.0, 1 / (1 + odds_against))", "δ counts for the attacker", "privacy/test_meaning.py"),
    # the audit
    Mutant("audit/estimators.py", "limit = special.betaincinv(some + 1, trials - some, 1 - level)",
           "limit = special.betaincinv(some + 1, trials - some, 0.5)", "rates are upper limits", "audit/test_estimators.py"),
    Mutant("audit/estimators.py", "high, truth = scores[half:] >= threshold, bits[half:]",
           "high, truth = scores[:half] >= threshold, bits[:half]", "what was learned is measured on other trials", "audit/test_estimators.py"),
    Mutant("audit/estimators.py", "wrong = float(special.ndtr(special.ndtri(min(right / secrets, 1.0)) - mu))",
           "wrong = float(special.ndtr(special.ndtri(min(right / secrets, 1.0)) - mu / 2))",
           "a correct mechanism is not refuted", "audit/test_estimators.py"),
)  # fmt: skip


def try_out(mutant: Mutant, place: Path) -> tuple[str, float]:
    """What came of a mutant, and the seconds it took."""
    file = place / "src/pmtl" / mutant.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return "stale", 0.0
    start = time.monotonic()
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        outcome = "survived" if passes(mutant.tests.split(), place) else "caught"
    except subprocess.TimeoutExpired:
        outcome = "caught"
    finally:
        file.write_text(text, encoding="utf-8")
    return outcome, time.monotonic() - start


def passes(tests: list[str], place: Path) -> bool:
    """Whether the test files pass in the copy; an error while they are collected is a failure."""
    names = [f"tests/{name}" for name in tests]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *names],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place / "src")},
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode == 0


def main() -> int:
    """Try all mutants; 1 if any survived or is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--only", default="", help="part of a promise or of a file's name")
    given = parser.parse_args()
    chosen = [m for m in MUTANTS if given.only in m.promise or given.only in m.file]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place / name)
            else:
                shutil.copy(ROOT / name, place / name)
        for tests in sorted({mutant.tests for mutant in chosen}):
            if not passes(tests.split(), place):
                print(f"These fail without any mutant: {tests}")
                return 1
        for mutant in chosen:
            outcome, seconds = try_out(mutant, place)
            results.append({**asdict(mutant), "outcome": outcome, "seconds": round(seconds, 1)})
            line = f"| {outcome} | {mutant.file} | {mutant.promise} | {seconds:.0f} s |"
            print(line, flush=True)
    caught = sum(result["outcome"] == "caught" for result in results)
    print(f"{caught} of {len(results)} mutants were caught.")
    if given.json:
        Path(given.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
