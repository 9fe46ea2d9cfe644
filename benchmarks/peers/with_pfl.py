"""A turn of pfl-research: its own loop, backend, Gaussian mechanism and storage of user state.

`--ways N` is the number of processes; with more than one, `run.py` starts this file by torchrun.
FedAvg is pfl's own class. PMTL is written as pfl's documentation of user state proposes: a subclass
of it whose `train_one_user` loads and saves the client's weights in memory.
"""

from __future__ import annotations

import logging
from importlib.metadata import version

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.exception import UserNotFoundError
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly
from torch_model import few_threads, module, tensors
from turn import Turn
from workload import LAM, NOISE_MULTIPLIER, SEED, Workload


def with_loss(model: torch.nn.Module) -> torch.nn.Module:
    """The two methods that pfl asks of a module, and a count of the local steps."""

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        model.steps += 1
        return F.cross_entropy(model(x), y)

    @torch.no_grad()
    def metrics(x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(F.cross_entropy(model(x), y)) * len(y), len(y))}

    model.steps, model.loss, model.metrics = 0, loss, metrics
    return model


def pulled_step(model, optimizer, batch, kwargs, arguments, shared) -> None:
    """w ← w − η(∇loss + λ(w − w̃)), the local step of Algorithm 1."""
    model.loss(*batch, **kwargs).backward()
    weights = list(model.parameters())
    slopes = [weight.grad for weight in weights]
    with torch.no_grad():
        torch._foreach_add_(slopes, weights, alpha=LAM)
        torch._foreach_sub_(slopes, shared, alpha=LAM)
    optimizer.step()
    optimizer.zero_grad()


class PMTL(FederatedAveraging):
    """Clients go on from their own weights, keep them, and upload how far these moved."""

    def __init__(self, start) -> None:
        super().__init__()
        self._start = start
        self._storage = InMemoryUserStateStorage()

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        try:
            own = self._storage.load_state(user_dataset.user_id)["weights"]
        except UserNotFoundError:
            own = self._start
        model.set_parameters(own)
        shared = [initial_model_state[name] for name in model.variable_map]
        model.do_multiple_epochs_of(
            user_dataset, central_context.model_train_params, pulled_step, shared=shared
        )
        moved = model.get_model_difference(own)
        self._storage.save_state({"weights": model.get_parameters()}, user_dataset.user_id)
        return moved, Metrics()


class Cohorts:
    """Draws whole cohorts without replacement, one client after another, as pfl asks for them.

    Each of several processes has its own part of the clients: state that is kept in memory has to
    meet its client again.
    """

    def __init__(self, workload: Workload, processes: int) -> None:
        self._random = np.random.default_rng(SEED)
        self._parts = [np.arange(p, workload.clients, processes) for p in range(processes)]
        self._each = workload.cohort // processes
        self._left: list[int] = []
        self.drawn: list[list[int]] = []

    def __call__(self) -> int:
        if not self._left:
            parts = [self._random.choice(p, self._each, replace=False) for p in self._parts]
            self.drawn.append(np.stack(parts, axis=1).ravel().tolist())
            self._left = self.drawn[-1][::-1]
        return self._left.pop()


class Ticks(TrainingProcessCallback):
    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def on_train_begin(self, *, model) -> Metrics:
        self._turn.tick()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if self._turn.device == "cuda":
            torch.cuda.synchronize()
        self._turn.tick()
        return False, Metrics()


def main() -> None:
    logging.getLogger().setLevel(logging.WARNING)
    turn = Turn.asked()
    workload, made = turn.workload, turn.federation()
    few_threads(workload)
    inner = with_loss(module(workload).to(turn.device))
    inner.load_state_dict(tensors(workload, made.start))
    central = torch.optim.SGD(inner.parameters(), lr=1.0)
    model = PyTorchModel(inner, torch.optim.SGD, central)
    # Made once, so that pfl's cache of batches serves every round; on the device from the start.
    rows = [torch.from_numpy(part).to(turn.device) for part in (made.x, made.y)]
    users = {
        k: Dataset([part[k] for part in rows], user_id=str(k)) for k in range(workload.clients)
    }
    cohorts = Cohorts(workload, int(turn.ways))
    mechanism = (
        GaussianMechanism(workload.clip, NOISE_MULTIPLIER)
        if turn.noise
        else NormClippingOnly(2.0, workload.clip)
    )
    backend = SimulatedBackend(
        training_data=FederatedDataset(users.__getitem__, cohorts),
        val_data=None,
        postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)],
    )
    algorithm = PMTL(model.get_parameters()) if turn.personal else FederatedAveraging()
    algorithm.run(
        # pfl evaluates in its first iteration whatever is asked; that is the round not timed.
        NNAlgorithmParams(turn.rounds, 10**9, workload.cohort, 0),
        backend,
        model,
        NNTrainHyperParams(
            local_learning_rate=workload.lr, local_num_epochs=1, local_batch_size=workload.batch
        ),
        callbacks=[Ticks(turn)],
        send_metrics_to_platform=False,
    )
    steps = torch.tensor(inner.steps)
    first = True
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(steps)
        first = torch.distributed.get_rank() == 0
    if first:
        versions = {"pfl": version("pfl"), "torch": torch.__version__}
        shared = torch.nn.utils.parameters_to_vector(inner.parameters()).detach().cpu()
        turn.answer(versions, cohorts.drawn[: turn.rounds], int(steps), shared)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
