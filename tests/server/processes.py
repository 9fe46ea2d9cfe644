"""A server and its sites, each in a process of its own, with a pipe between them.

Only bytes pass a pipe (`Connection.send_bytes`), as over a network. A site's process is given the
rows of its one client; the server's is given names.
"""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What all processes know: the model, the start and how clients train.
ROUNDS, CLIP, SEED, STOP = 3, 0.5, 7, b""


def plan(clients: int) -> Any:
    from pmtl.privacy.plan import PrivacyPlan

    cohort = clients // 2 + 1
    return PrivacyPlan(clients, cohort, "poisson", CLIP, 0.05, ROUNDS, 1 / (10 * clients))


def model_for(data: Any, spec: str) -> Any:
    from pmtl.models import build_model

    return build_model(spec, data.input_shape, data.outputs, data.task, SEED)


def serve(
    names: tuple[str, ...],
    algorithm: str,
    start: NDArray[np.float32],
    key: str,
    sites: list[Connection],
    result: Connection,
) -> None:
    """The server's process."""
    import sys

    import torch

    from pmtl.algorithms import build_algorithm
    from pmtl.messages import from_bytes, to_bytes
    from pmtl.privacy.noise import seeded_source
    from pmtl.server import Server

    source = seeded_source(SEED, key)
    server = Server(
        names, build_algorithm(algorithm), plan(len(names)), SEED, source=source, hardened=True
    )
    state = server.start(torch.from_numpy(start))
    while state.round < ROUNDS:
        tally = server.open(state)
        for client in sorted(tally.cohort):
            sites[client].send_bytes(server.message(state, client).to_bytes())
        for client in sorted(tally.cohort):
            upload = from_bytes(sites[client].recv_bytes())
            server.receive(tally, client, state.round, upload)
        server.publish(tally, state)
    for site in sites:
        site.send_bytes(STOP)
    loaded = [name for name in sys.modules if name.startswith("pmtl.")]
    result.send_bytes("\n".join(loaded).encode())
    result.send_bytes(to_bytes({"shared": state.shared.numpy()}))


def train(
    x: NDArray[Any], y: NDArray[Any], name: str, algorithm: str, spec: str, server: Connection,
    result: Connection,
) -> None:  # fmt: skip
    """A site's process."""
    import sys

    import torch

    from pmtl.algorithms import build_algorithm
    from pmtl.client.batches import LocalTraining
    from pmtl.client.site import Site
    from pmtl.data import FederatedData
    from pmtl.messages import RoundMessage, to_bytes

    torch.set_num_threads(1)
    data = FederatedData.from_arrays(
        x=x, y=y, client=np.array([name] * len(y)), split=np.array(["train"] * len(y)),
        task="classification", outputs=10, validation=0,
    )  # fmt: skip
    local = LocalTraining(steps=3, batch=4)
    site = Site(data, model_for(data, spec), build_algorithm(algorithm), local, CLIP, SEED)
    while content := server.recv_bytes():
        server.send_bytes(to_bytes(site.answer(RoundMessage.from_bytes(content))))
    result.send_bytes("\n".join(n for n in sys.modules if n.startswith("pmtl.")).encode())
    result.send_bytes(to_bytes({"own": site.own.numpy()}))


def run(
    data: Any, algorithm: str, spec: str, key: str
) -> tuple[Any, list[Any], set[str], set[str]]:
    """Train with one server and as many sites as the data has clients; returns the billboard, what
    each site owns, and which modules of the package the server and the sites loaded."""
    from pmtl.messages import from_bytes

    # Forks of a process that has imported torch, and nothing of this package.
    context = get_context("forkserver")
    context.set_forkserver_preload(["numpy", "torch"])
    pipes = [context.Pipe() for _ in data.clients]
    results = [context.Pipe(duplex=False) for _ in range(data.m + 1)]
    start = model_for(data, spec).start().numpy()
    processes = [
        context.Process(
            target=serve,
            args=(data.clients, algorithm, start, key, [p[0] for p in pipes], results[0][1]),
        )
    ]
    for k, name in enumerate(data.clients):
        x, y = data.gather(data.rows("train").of(k))
        arguments = (x, y, name, algorithm, spec, pipes[k][1], results[k + 1][1])
        processes.append(context.Process(target=train, args=arguments))
    try:
        for process in processes:
            process.start()
        answers = []
        for receiver, _ in results:
            if not receiver.poll(120):
                raise TimeoutError("a process did not answer")
            answers.append((set(receiver.recv_bytes().decode().split()), receiver.recv_bytes()))
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    shared = from_bytes(answers[0][1])["shared"]
    owned = [from_bytes(content)["own"] for _, content in answers[1:]]
    return shared, owned, answers[0][0], set().union(*(names for names, _ in answers[1:]))
