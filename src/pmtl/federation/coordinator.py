"""The server's part of a federation: it runs one job with the sites that a transport reaches.

A round is: draw, ask all sites, add what came in time, charge, publish, checkpoint. Every site gets
the same message at the same time, whether its clients were drawn or not, and the divisor does not
depend on which sites answer. A site that misses a deadline is still asked in every round, but the
server waits for it again only after it has answered once.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pmtl._version import __version__
from pmtl.algorithms import Algorithm
from pmtl.errors import Interrupted, PmtlError
from pmtl.federation.agreement import Agreement, Columns, belongs_to
from pmtl.federation.messages import Invite, Joined, Message, Ready, Start
from pmtl.federation.rounds import Rounds, read_answers, sentence_of
from pmtl.federation.server_folder import ServerFolder, ServerRun
from pmtl.federation.transport import AT_THE_SERVER, JOIN_SECONDS, ROUND_SECONDS, Transport
from pmtl.jsontext import to_json
from pmtl.privacy.grid import Grid
from pmtl.privacy.ledger.events import TRAINING
from pmtl.privacy.noise import Source, seeded_source, system_source
from pmtl.runs.budget import Budget
from pmtl.runs.config import TrainConfig, parse_config
from pmtl.secure_aggregation.shares import default_colluders, scale
from pmtl.server import Server
from pmtl.sharing import PublicInputs
from pmtl.spec import from_values


@dataclass(frozen=True)
class Job:
    """What an operator asks for. The data are at the sites, the ledger at the server."""

    run: str  #: the identity of the run
    config: TrainConfig
    sites: tuple[str, ...] = ()  #: that take part; all that the transport knows unless given
    summed: bool = False  #: whether sites send the sum of their clients' uploads
    secure: bool = False  #: whether sites hide their uploads from the server
    colluders: int | None = None  #: sites that may collude with the server; a third unless given
    round_seconds: float = ROUND_SECONDS  #: how long sites may take for a round
    join_seconds: float = JOIN_SECONDS  #: how long they may take to join and to get ready

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The inverse of `asdict`, checked."""
        given = dict(values)
        if isinstance(given.get("config"), Mapping):
            given["config"] = parse_config(given["config"], "the job")
        return from_values(cls, given, "the job")


@dataclass
class Coordinator:
    """Runs one job, or continues one that was stopped."""

    job: Job
    transport: Transport
    folder: ServerFolder
    stop: threading.Event  #: set to stop after the current round
    tell: Callable[[str], None]  #: called with sentences about the progress, all public
    source: Source | None = None  #: where noise gets its random words from, for tests

    def __post_init__(self) -> None:
        self.sites = self.job.sites or self.transport.sites
        if unknown := sorted(set(self.sites) - set(self.transport.sites)):
            raise PmtlError(f"The federation has no site {unknown[0]!r}.")

    def run(self) -> None:
        """Run the job to its end."""
        run = self.folder.run(self.job.run)
        public = PublicInputs.read(self.job.config.init, self.job.config.share)
        if new := not run.exists:
            agreement, prints = self._invite(public)
            public = public.fitted(agreement.model(public))
            key = to_json([agreement.to_dict(), prints, public.digest(), __version__])
            run.create(agreement, public, key)
        with ExitStack() as stack:
            stack.enter_context(run.lock())
            undo = stack.enter_context(ExitStack())
            if new:  # A run that does not start leaves nothing, and its name stays free.
                undo.callback(run.remove)
            agreement, public, key = run.read()
            model = agreement.model(public)
            algorithm = agreement.algorithm(model, public)
            budget = self._budget(agreement, algorithm, stack)
            server = self._server(agreement, algorithm, budget, key)
            self._start(agreement, server, public)
            undo.pop_all()
            members = {
                site: np.flatnonzero([belongs_to(client, site) for client in agreement.clients])
                for site in self.sites
            }
            state, counted = run.load(server.start(model.start()), members, budget)
            rounds = Rounds(
                agreement=agreement,
                server=server,
                transport=self.transport,
                members=members,
                job=self.job,
                tell=self.tell,
                state=state,
                counted=counted,
            )
            self._rounds(run, rounds, budget)
            rounds.finish()
            run.finish(agreement, server, state, budget)
        self.tell(f"The run {agreement.run} is finished.")

    def _invite(self, public: PublicInputs) -> tuple[Agreement, dict[str, str | None]]:
        """Ask all sites for their clients, and make the plan. This costs no privacy. Returns what
        was agreed on, and the fingerprint of every site's data."""
        config = replace(self.job.config, data="(at the sites)", init=None, device="cpu")
        config = replace(config, ledger=AT_THE_SERVER if config.mode == "production" else None)
        invite = Invite(asdict(config), __version__, self.job.secure).message()
        answers = self._ask_all(Joined.kind, invite)
        joined = {site: _joined(answer, site) for site, answer in answers.items()}
        columns = {site: Columns.from_dict(each.columns) for site, each in joined.items()}
        first = self.sites[0]
        for site in self.sites[1:]:
            if difference := columns[first].difference(columns[site]):
                raise PmtlError(
                    f"The rows of the sites {first!r} and {site!r} look different ({difference}). "
                    "Give all sites the same schema."
                )
        clients = [name for site in self.sites for name in joined[site].clients]
        begin = secrets.randbits(63) if config.seed is None else config.seed
        colluders = self.job.colluders if self.job.secure else None
        if self.job.secure and colluders is None:
            colluders = default_colluders(len(self.sites))
        agreement = Agreement.make(
            run=self.job.run,
            config=config,
            columns=columns[first],
            clients=tuple(sorted(clients)),
            initialisation=begin,
            public=public,
            colluders=colluders,
        )
        if agreement.secure is not None:
            scale(Grid.of(agreement.plan), *agreement.secure)  # Refuses what is not covered.
        prints = {site: joined[site].fingerprint for site in self.sites}
        return agreement, prints

    def _budget(
        self, agreement: Agreement, algorithm: Algorithm, stack: ExitStack
    ) -> Budget | None:
        if not algorithm.shares:
            return None
        ledger = stack.enter_context(self.folder.ledger(agreement.clients))
        # Sites draw new noise in every attempt, so that no attempt repeats another one.
        repeats = agreement.config.mode == "experiment" and agreement.colluders is None
        budget = Budget(ledger, agreement.run, agreement.plan, None, repeats)
        budget.refuse_unaffordable()
        return budget

    def _server(
        self, agreement: Agreement, algorithm: Algorithm, budget: Budget | None, key: str
    ) -> Server:
        seed = agreement.config.seed
        source = system_source if seed is None else seeded_source(seed, key)
        return Server(
            agreement.clients,
            algorithm,
            agreement.plan,
            seed,
            source=self.source or source,
            hardened=agreement.hardened,
            charge=None if budget is None else partial(budget.charge, kind=TRAINING),
        )

    def _start(self, agreement: Agreement, server: Server, public: PublicInputs) -> None:
        whole = agreement.hardened and server.billboard.mixture is None
        summed = self.job.summed or agreement.colluders is not None
        if summed and (not whole or server.billboard.size > 1):
            raise PmtlError(
                "Sites can send sums only to a hardened gate, and if all clients read one shared "
                "model: leave out summed and secure aggregation."
            )
        if agreement.colluders is not None and not server.algorithm.shares:
            raise PmtlError(
                "Nothing leaves a client with this algorithm: there is nothing to hide."
            )
        if agreement.colluders is not None and agreement.plan.cohort < agreement.plan.clients:
            raise PmtlError("With secure aggregation all clients take part: leave cohort out.")
        start = Start(agreement.to_dict(), __version__, whole)
        arrays = {f"public.{name}": value.numpy() for name, value in public.tensors().items()}
        for site, answer in self._ask_all(Ready.kind, start.message(arrays)).items():
            if not answer.is_valid(Ready):
                raise PmtlError(f"The run cannot start. {site}: {sentence_of(answer)}")
        self.tell(
            f"{len(self.sites)} sites with {len(agreement.clients)} clients take part in run "
            f"{agreement.run}: {agreement.config.algorithm}, {agreement.plan.rounds} releases."
        )

    def _rounds(self, run: ServerRun, rounds: Rounds, budget: Budget | None) -> None:
        state, last = rounds.state, rounds.server.plan.rounds
        while state.round < last:
            if self.stop.is_set():
                raise Interrupted(
                    f"Stopped after round {state.round} of {last}; continue the run with --resume."
                )
            if budget is not None and (reason := budget.refuses(state.round)):
                run.stopped(reason)
                self.tell(f"Stopped early. {reason}")
                return
            if rounds.advance():  # Else the attempt was abandoned; it stays charged.
                run.save(state, rounds.counted, budget)
                self.tell(f"Round {state.round} of {last} is published.")

    def _ask_all(self, kind: str, message: Message) -> dict[str, Message]:
        """Send one message to all sites, all of which must answer with this kind."""
        messages = dict.fromkeys(self.sites, message.to_bytes())
        read = read_answers(self.transport.ask(messages, self.job.join_seconds))
        reasons = [
            f"{site}: {sentence_of(read[site])}" if site in read else f"{site} does not answer"
            for site in self.sites
            if site not in read or read[site].kind != kind
        ]
        if reasons:
            raise PmtlError(f"The run cannot start. {'; '.join(reasons)}")
        return read


def _joined(answer: Message, site: str) -> Joined:
    """What a site said of itself; the names of its clients must be in its own namespace."""
    try:
        joined = answer.read(Joined)
        Columns.from_dict(joined.columns)
    except PmtlError as error:
        raise PmtlError(
            f"Site {site!r} does not say how its rows look and who its clients are. {error}"
        ) from error
    names = joined.clients
    own = names and all(belongs_to(name, site) for name in names)
    if not own or len(set(names)) != len(names):
        raise PmtlError(f"Site {site!r} names clients that are not its own, or none.")
    return joined
