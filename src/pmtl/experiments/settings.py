"""The settings of the experiments.

Cohort, σ and γ are the paper's (its appendix on hyper-parameters) unless a setting says otherwise.
Four things differ. Validation chooses λ, because the λ = 10 of the authors' code acts once a round.
Batches are smaller than 100, so that clients with a hundred rows take more than one step. There are
a few rounds of several epochs instead of a thousand rounds, which would cost too much ε with few
clients. And if cohorts are a part of all clients, PMTL's server takes q/m of a step: as printed, w̃
runs ahead of the mean (`algorithms/pmtl.py`); the authors' code uploads something else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pmtl.errors import PmtlError
from pmtl.simulation import LocalTraining
from pmtl.spec import unknown


@dataclass(frozen=True)
class Setting:
    """One data set, and how it is trained on."""

    name: str
    data: str  #: options that are appended to the given file's name, or the whole spec
    model: str
    local: LocalTraining
    tune: LocalTraining  #: of fine-tuning
    cohort: int = 100
    rounds: int = 64  #: the largest T
    sigmas: tuple[float, ...] = (0.02, 0.05, 0.1)
    clips: tuple[float, ...] = (0.2, 0.5, 1.0)
    lams: tuple[float, ...] = (0.1, 1.0)  #: of methods that pull towards the shared weights
    free_rounds: int | None = None  #: T without noise, if it differs
    free_lams: tuple[float, ...] = ()  #: `lams` without noise, if they differ
    at_the_mean: bool = False  #: whether PMTL's server takes q/m of a step
    tune_lams: tuple[float, ...] = (0.1, 1.0)  #: of the fine-tuning methods kl and ewc
    seeds: tuple[int, ...] = (0, 1, 2)
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 4.0)  #: of Fig. 3
    table_epsilons: tuple[float, ...] = (0.1, 0.8, 2.0)  #: of Tables 1 and 3
    hog: bool = False  #: whether images are replaced by their histograms of gradients
    fetched: str | None = None  #: its name in `pmtl data fetch`

    def spec(self, given: str | None) -> str:
        """The data's spec: the given file with this setting's options."""
        if self.data.startswith("synthetic"):
            return self.data if given is None else given
        if given is None:
            fetch = f"`pmtl data fetch {self.fetched}` gets it, and " if self.fetched else ""
            raise PmtlError(
                f"The experiments on {self.name} need its data: {fetch}--data FILE names it."
            )
        return given if ":" in given else f"{given}:{self.data}"

    def lams_of(self, method: str) -> tuple[float | None, ...]:
        """The λ that fine-tuning tries."""
        if method == "vanilla":
            return (None,)
        return self.lams if method == "mean" else self.tune_lams

    def shortest_training(self) -> tuple[LocalTraining, LocalTraining, int]:
        """The shortest fine-tuning (a fifth of `tune`), training alone for as many epochs or steps,
        and the largest multiple of it (as long as a run)."""
        kind = "steps" if self.tune.epochs is None else "epochs"
        each = max(1, getattr(self.tune, kind) // 5)
        longest = self.rounds * getattr(self.local, kind) // each
        return replace(self.tune, **{kind: each}), replace(self.local, **{kind: each}), longest


def measured_rounds(rounds: int) -> tuple[int, ...]:
    """The rounds after which models are measured: powers of two, and the last."""
    return (*(2**power for power in range(20) if 2**power < rounds), rounds)


_FEMNIST = Setting(
    name="femnist",
    data="min_rows=100,clients=205,validation=0.1",
    model="femnist_cnn",
    local=LocalTraining(epochs=4, batch=32, lr=0.1),
    tune=LocalTraining(epochs=10, batch=32, lr=0.03),
    rounds=32,
    lams=(0.01, 0.1),
    free_rounds=128,
    free_lams=(0.1, 0.3),
    at_the_mean=True,
    seeds=(0, 1),
    fetched="femnist",
)
# The paper's thousand rounds of one epoch, without noise. With noise: more rounds than above, the λ
# that the runs without noise choose, and the largest of the paper's σ, which costs least.
_FEMNIST_LONG = replace(
    _FEMNIST,
    name="femnist_long",
    local=LocalTraining(epochs=1, batch=32, lr=0.1),
    rounds=256,
    sigmas=(0.1,),
    lams=(0.01, 1.0),
    free_rounds=1000,
    free_lams=(0.3, 1.0),
    seeds=(0,),
)
_CELEBA = replace(
    _FEMNIST,
    name="celeba",
    data="clients=515,validation=0.1",
    model="celeba_cnn",
    seeds=(0, 1, 2),
    fetched="celeba",
)
_STACKOVERFLOW = Setting(
    name="stackoverflow",
    data="words=10000,tags=500,clients=400,validation=0.1",
    model="logistic",
    local=LocalTraining(epochs=5, batch=32, lr=10.0),
    tune=LocalTraining(epochs=25, batch=32, lr=10.0),
    rounds=32,
    sigmas=(0.01, 0.05, 0.1),
    clips=(0.1, 0.5, 1.0),
    lams=(0.0001, 0.001),
    at_the_mean=True,
    fetched="stackoverflow",
)
# A substitute for StackOverflow: any table of client, text and tag.
_TAGS = replace(
    _STACKOVERFLOW,
    name="tags",
    data="client=user,text=text,target=tag,drop=year,words=1000,largest=400,validation=0.1",
    tune=LocalTraining(epochs=15, batch=32, lr=10.0),
    seeds=(0, 1),
    fetched=None,
)
# Suits noise better: a linear layer on fixed features, and full participation.
_FEMNIST_HOG = replace(
    _STACKOVERFLOW,
    name="femnist_hog",
    data=_FEMNIST.data,
    hog=True,
    cohort=205,
    sigmas=(0.02, 0.05, 0.1),
    clips=(1.0, 2.0, 4.0),
    at_the_mean=False,
    fetched="femnist",
)
_SYNTHETIC = Setting(
    name="synthetic",
    data="synthetic",
    model="logistic",
    local=LocalTraining(steps=10, batch=10, lr=0.1),
    tune=LocalTraining(steps=50, batch=10, lr=0.1),
    cohort=500,
    rounds=32,
    sigmas=(0.005, 0.01, 0.02, 0.05),
)
_CLUSTERS = replace(
    _SYNTHETIC,
    name="clusters",
    data="synthetic:clusters=4,alpha=0.1,clients=800,samples=10",
    cohort=800,
    sigmas=(0.005, 0.01, 0.02, 0.05, 0.1),
    epsilons=(0.5, 1.0, 2.0, 4.0, 8.0),
)
_FEMNISTS = (_FEMNIST, _FEMNIST_LONG, _FEMNIST_HOG)
_ALL = (*_FEMNISTS, _CELEBA, _STACKOVERFLOW, _TAGS, _SYNTHETIC, _CLUSTERS)
SETTINGS = {setting.name: setting for setting in _ALL}


def setting_of(name: str, quick: bool) -> Setting:
    """The setting of this name; `quick` is a small version that takes minutes on two cores."""
    if name not in SETTINGS:
        raise unknown("data set of the experiments", name, SETTINGS)
    whole = SETTINGS[name]
    if not quick:
        return whole
    fewer = {"clients=205": "clients=40", "clients=515": "clients=40", "clients=400": "clients=40"}
    fewer |= {"largest=400": "largest=40", "words=10000": "words=1000", "words=1000,": "words=500,"}
    data = whole.data
    for many, few in fewer.items():
        data = data.replace(many, few)
    cohort = whole.cohort if whole.data.startswith("synthetic") else 20
    return replace(
        whole,
        data=data,
        rounds=8,
        cohort=cohort,
        # The same noise on the sum, and so about the same ε.
        sigmas=tuple(sigma * whole.cohort / cohort for sigma in whole.sigmas[::2]),
        clips=whole.clips[1:2],
        lams=whole.lams[:1],
        free_rounds=None,
        free_lams=whole.free_lams[:1],
        tune_lams=whole.tune_lams[:1],
        seeds=whole.seeds[:2],
        epsilons=whole.epsilons[1::3],
        local=replace(whole.local, epochs=1) if whole.local.epochs else whole.local,
        tune=replace(whole.tune, epochs=1) if whole.tune.epochs else whole.tune,
    )
