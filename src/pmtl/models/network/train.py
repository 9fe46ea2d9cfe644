"""The paper's equation 3 for networks: training around a centre, for many clients at once.

    minimise over w   mean_rows loss(f(x; w), y) + ½ (κ/n) ‖w − c‖²

by Adam (Kingma & Ba 2015) with a step of `RATE` in units of the size that each parameter tensor has
in the common start. A step of Adam does not depend on the scale of the loss, so that training does
not diverge in any units. A path of penalties κ from strong to weak, each begun where the last one
ended, gives models from near the centre to far from it for little more than the cost of one.

Dropout is off: the penalty regularises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap

from pmtl.models.linear.solve import row_losses
from pmtl.models.losses import Task
from pmtl.models.network.rows import Network, NetworkRows

#: The step, in units of the start's weights; Adam's decays; what keeps a quotient finite.
RATE, DECAY, SQUARES_DECAY, TINY = 0.1, 0.9, 0.99, 1e-12
#: Steps for each penalty of a train_path, and how many times more for clients of several batches.
STEPS, MOST_TIMES = 15, 3
#: FOLDS-fold cross-validation: fold i holds out rows i, i + FOLDS, …. Clients with more than FEW
#: rows use one fold.
FOLDS, FEW = 5, 100

#: From the numbers that are trained to a vector of weights.
Join = Callable[[Tensor], Tensor]


def train_path(
    rows: NetworkRows,
    masks: Tensor,
    centre: Tensor,
    penalties: Sequence[float],
    steps: int | None = None,
    join: Join | None = None,
    scales: Tensor | None = None,
) -> list[Tensor]:
    """The weights [K, F, P] after training with each of the penalties, one after the other.

    Args:
        rows: the clients' rows.
        masks: [K, F, n] the rows that count, for F trainings of each client.
        centre: [K, F, P] c, where training begins, too.
        penalties: κ, from strong to weak.
        steps: for each of them; `STEPS` unless given.
        join: the map to weights, if other numbers than the weights are trained.
        scales: [P] the sizes of what is trained; by default the sizes of the network's weights.
    """
    network = rows.network
    y, pieces = rows.y.to(centre.dtype), -(-rows.x.shape[1] // network.batch)
    scales = RATE * (network.scales if scales is None else scales)
    pull = 1 / masks.sum(2, keepdim=True).clamp(min=1).to(centre.dtype)
    masks = masks.to(centre.dtype)
    gradient = _gradients(network, rows.task, join)
    w, mean, square = centre, torch.zeros_like(centre), torch.zeros_like(centre)
    found, t = [], 0
    times = min(MOST_TIMES, round(pieces**0.5))
    for penalty in penalties:
        for _ in range((STEPS if steps is None else steps) * times):
            part = slice(t % pieces, None, pieces)
            g = gradient(w, rows.x[:, part], y[:, part], masks[:, :, part])
            g = g + penalty * pull * (w - centre)
            t += 1
            mean = DECAY * mean + (1 - DECAY) * g
            square = SQUARES_DECAY * square + (1 - SQUARES_DECAY) * g.square()
            size = (square / (1 - SQUARES_DECAY**t)).sqrt() + TINY
            w = w - scales * (mean / (1 - DECAY**t)) / size
        finite = w.isfinite().all(-1, keepdim=True)
        found.append(torch.where(finite, w, centre))
    return found


def folds(rows: NetworkRows) -> Tensor:
    """[K, folds, n] the rows that are held out together."""
    n = rows.mask.shape[1]
    pieces = -(-n // rows.network.batch)
    place = torch.arange(n, device=rows.mask.device) // pieces % FOLDS
    count = 1 if rows.network.heavy else min(FOLDS, n)
    number = torch.arange(count, device=rows.mask.device)
    out = (place == number.unsqueeze(1)).unsqueeze(0) & (rows.mask > 0).unsqueeze(1)
    few = rows.mask.sum(1) <= FEW
    return out & (few[:, None, None] | (number == 0)[None, :, None])


def held_out_losses(
    rows: NetworkRows, centres: Sequence[Tensor], penalties: Sequence[float]
) -> Tensor:
    """[K, centres · (1 + penalties)] every client's mean loss on rows that were left out: for each
    centre [K, P] its own loss, and the losses of the path around it. A client with one row has the
    loss of the centres."""
    out = folds(rows)
    count = out.shape[1]
    masks = (rows.mask.unsqueeze(1) * ~out).repeat(1, len(centres), 1)
    begin = torch.cat([c.unsqueeze(1).expand(-1, count, -1) for c in centres], 1)
    tried = [begin, *train_path(rows, masks, begin, penalties)]
    counted = out.sum((1, 2)).clamp(min=1)
    sums = []
    for w in tried:
        outputs = _outputs(rows, w)
        losses = row_losses(rows.task, outputs, rows.y.unsqueeze(1))
        losses = torch.where(out.repeat(1, len(centres), 1), losses, 0.0).sum(2)
        sums.append(losses.view(len(losses), len(centres), count).sum(2))
    table = torch.stack(sums, 2).flatten(1) / counted.unsqueeze(1)
    return torch.nan_to_num(table, nan=1e6, posinf=1e6, neginf=1e6).clamp(max=1e6)


def held_out(rows: NetworkRows) -> Tensor:
    """[K, 1] how many rows of each client are held out in some fold."""
    return folds(rows).sum((1, 2)).to(rows.mask.dtype).unsqueeze(1)


def _outputs(rows: NetworkRows, w: Tensor) -> Tensor:
    """[K, F, n, outputs] in float64."""
    apply, batch = rows.network.model.apply, rows.network.batch
    rows.network.model.module.eval()
    if rows.network.loops:
        each = [
            [torch.cat([apply(one, some) for some in torch.split(x, batch)]) for one in mine]
            for mine, x in zip(w, rows.x, strict=True)
        ]
        found = torch.stack([torch.stack(mine) for mine in each])
    else:
        found = vmap(vmap(apply, in_dims=(0, None)))(w, rows.x)
    return found.reshape(*found.shape[:3], -1).double()


def _gradients(network: Network, task: Task, join: Join | None) -> Callable[..., Tensor]:
    """A function from weights [K, F, P] and rows to the gradients of the mean loss."""
    network.model.module.eval()

    def loss(numbers: Tensor, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        weights = numbers if join is None else join(numbers)
        outputs = network.model.apply(weights, x).reshape(y.shape)
        return (row_losses(task, outputs, y) * mask).sum() / mask.sum().clamp(min=1)

    if not network.loops:
        each: Callable[..., Tensor] = vmap(vmap(grad(loss), in_dims=(0, None, None, 0)))
        return each

    def one(numbers: Tensor, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        with torch.enable_grad():
            numbers = numbers.detach().requires_grad_()
            return torch.autograd.grad(loss(numbers, x, y, mask), numbers)[0]

    def one_by_one(w: Tensor, x: Tensor, y: Tensor, masks: Tensor) -> Tensor:
        found = [
            torch.stack([one(w[k, f], x[k], y[k], masks[k, f]) for f in range(w.shape[1])])
            for k in range(len(w))
        ]
        return torch.stack(found)

    return one_by_one
