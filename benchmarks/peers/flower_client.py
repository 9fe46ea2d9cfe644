"""What a Flower client does. A module of its own, so that Ray's actors import it by name and read
the data once each, and nothing but messages travels between processes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_model import few_threads, module, tensors
from workload import EVERY, LAM, read

app = ClientApp()


@cache
def loaded(folder: str, name: str):
    """Model, data and the common start, once in every actor."""
    workload, made = EVERY[name], read(Path(folder))
    few_threads(workload)
    rows = torch.from_numpy(made.x), torch.from_numpy(made.y)
    return workload, module(workload), *rows, tensors(workload, made.start)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch by hand, without an optimiser object: the least that Flower can be asked for.

    With PMTL the client's own weights are in the state that Flower keeps for it, and the reply is
    w̃ plus how far they moved, since Flower's server subtracts w̃ before it clips.
    """
    config = message.content["config"]
    client = int(context.node_config["partition-id"])
    workload, model, x, y, start = loaded(config["folder"], config["workload"])
    shared = message.content["arrays"].to_torch_state_dict()
    personal = config["algorithm"] == "pmtl"
    before = shared
    if personal:
        own = context.state.array_records.get("own")
        before = start if own is None else own.to_torch_state_dict()
    model.load_state_dict(before)
    weights, centre = list(model.parameters()), list(shared.values())
    steps = 0
    for first in range(0, workload.rows, workload.batch):
        some = slice(first, first + workload.batch)
        loss = F.cross_entropy(model(x[client, some]), y[client, some])
        slopes = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            if personal:  # w ← w − η(∇loss + λ(w − w̃))
                torch._foreach_mul_(weights, 1 - workload.lr * LAM)
                torch._foreach_add_(weights, centre, alpha=workload.lr * LAM)
            torch._foreach_add_(weights, slopes, alpha=-workload.lr)
        steps += 1
    after = model.state_dict()
    if personal:
        context.state["own"] = ArrayRecord(after)
        after = {name: shared[name] + (after[name] - before[name]) for name in after}
    metrics = MetricRecord({"num-examples": workload.rows, "client": client, "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(after), "metrics": metrics})
    return Message(content=content, reply_to=message)
