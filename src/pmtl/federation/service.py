"""A site's part of a federation: it answers the server's messages (`messages.py`).

Rows, personal models and reasons of failures stay here. Only the clients' names, the format of rows
and clipped uploads leave the site.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.errors import PublicError
from pmtl.federation import messages
from pmtl.federation.agreement import Agreement, Columns
from pmtl.federation.limits import SiteSettings, read_settings
from pmtl.federation.messages import Message
from pmtl.federation.result import RunResult
from pmtl.federation.site_folder import RunStateFiles, SiteFolder
from pmtl.federation.training import SiteRows, Training
from pmtl.federation.transport import Handler
from pmtl.jsontext import to_json
from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import Source, system_source
from pmtl.runs.config import parse_config
from pmtl.runs.preparation import wants_scaling
from pmtl.sharing import PublicInputs

if TYPE_CHECKING:
    from pmtl.secure_aggregation.identity import Identity
    from pmtl.secure_aggregation.protocol import SiteMasking

LOG = logging.getLogger("pmtl.federation")
SETTINGS = Path("local") / "pmtl-site.toml"
PUBLIC = "public."  #: the prefix of a public start's arrays


def open_site(kit: Path, name: str) -> Handler:
    """The handler of a site whose settings lie in its start-up kit; `name` is the one in its
    certificate."""
    from pmtl.secure_aggregation.identity import Identity

    kit = kit.resolve()
    settings = read_settings(kit / SETTINGS)
    return SiteService(name, settings, partial(Identity.read, name, kit / "startup")).handle


@dataclass
class OpenRun:
    """A run that this site takes part in."""

    agreement: Agreement
    training: Training
    files: RunStateFiles
    result: RunResult
    counted: int  #: the last round in which an upload of this site was counted
    answered: int  #: the last round that was answered
    attempt: str  #: the attempt of that answer


class SiteService:
    """Answers messages for the site `name`."""

    def __init__(
        self,
        name: str,
        settings: SiteSettings,
        identity: Callable[[], Identity] | None = None,
        source: Source = system_source,
    ) -> None:
        """`name` is the name in the site's certificate, and `settings` its own file. `identity`
        reads the certificate, for secure aggregation; `source` is where shares of noise get their
        random words from, for tests."""
        self.name, self.settings = name, settings
        self._identity, self._source = identity, source
        self._masking: SiteMasking | None = None
        self.folder = SiteFolder(settings.folder)
        self._rows = SiteRows(name, settings)
        self._open: OpenRun | None = None
        self._kinds: dict[str, Callable[[Message], Message]] = {
            "invite": self._invite,
            "start": self._start,
            "round": self._round,
            "key": self._key,
            "masked": self._masked,
            "finish": self._finish,
        }

    def handle(self, content: bytes) -> bytes:
        """The answer to a message. An error becomes a refusal; what is private in it goes to this
        site's own log."""
        try:
            message = Message.from_bytes(content)
            if message.kind not in self._kinds:
                raise PublicError("This site does not know such a message.")
            answer = self._kinds[message.kind](message)
        except PublicError as error:
            LOG.warning("Refused: %s", error)
            answer = messages.Refused(str(error)).message()
        except (Exception, SystemExit) as error:  # Its text may contain rows.
            LOG.exception("A message of the server failed: %s", error)
            answer = messages.Refused("This site could not answer. Its own log says why.").message()
        return answer.to_bytes()

    def _invite(self, message: Message) -> Message:
        """Say who this site's clients are and how its rows look."""
        limits, version = self.settings.limits, message.header.get("version")
        if version != limits.version:  # Another version may have other messages.
            has = f"The server has version {version} of pmtl"
            raise PublicError(f"{has}, and this site allows {limits.version}.")
        asked = message.read(messages.Invite)
        config = parse_config(asked.config, "the run's settings")
        limits.check_mode(config.mode)  # Before a digest of the rows is sent.
        data = self._rows.load(config)
        fingerprint = None
        if config.mode == "experiment" and not (limits.secure or asked.secure):
            fingerprint = data.fingerprint()
        return messages.Joined(
            self._rows.names(data), asdict(Columns.of(data)), fingerprint
        ).message()

    def _start(self, message: Message) -> Message:
        """Check the run against this site's limits, and prepare it."""
        asked = message.read(messages.Start)
        agreement = Agreement.from_dict(asked.agreement)
        state = self.folder.state(agreement.run)
        agreed = {"agreement": agreement.to_dict(), "whole": asked.whole}
        took_part = self.folder.knows(agreement.run)
        if state.exists and state.agreed() != json.loads(to_json(agreed)):
            if took_part:
                raise PublicError("This site knows a run of this name with another agreement.")
            # The earlier start failed before anything left this site.
            RunResult.remove_unfinished(self.folder.result(agreement.run))
            state.remove()
            self._open = None
        elif not state.exists and self.folder.result(agreement.run).exists():
            return messages.Ready().message()
        spent = self.folder.spent(agreement.run)
        self.settings.limits.check(agreement, asked.version, spent)
        self._rows.check(agreement)
        if not state.exists:
            if took_part:
                raise PublicError("This site took part in a run of this name before.")
            if agreement.colluders is not None:
                self._site_masking()  # Refuses a site without a certificate.
                if not asked.whole:
                    raise PublicError("Secure aggregation needs a hardened gate.")
            public = {
                name.removeprefix(PUBLIC): torch.from_numpy(np.array(array))
                for name, array in message.arrays.items()
                if name.startswith(PUBLIC)
            }
            state.create(agreed, public)
        self._run(agreement.run)
        return messages.Ready().message()

    def _round(self, message: Message) -> Message:
        """Train the clients that were drawn, and answer with their uploads."""
        asked = message.read(messages.AskUploads)
        run = self._run(asked.run)
        if run.agreement.colluders is not None:
            raise PublicError("This run hides uploads from the server: they do not leave in plain.")
        self._check_round(run, asked)
        drawn = message.array("drawn", "u", 1)
        if drawn.shape != (run.training.data.m,):
            raise PublicError("The server's message does not fit this site's clients.")
        chosen = np.flatnonzero(drawn).astype(np.int64)
        uploads = self._trained(run, asked, message, chosen)
        sent = self._as_sent(run, chosen, uploads, asked.summed)
        return messages.Uploads(asked.round, asked.attempt).message({"uploads": sent})

    def _key(self, message: Message) -> Message:
        """Make a key for an attempt of a round with secure aggregation."""
        asked = message.read(messages.AskKey)
        run = self._run(asked.run)
        self._check_round(run, asked)
        digest = run.agreement.digest()
        signed = self._site_masking().key(asked.run, asked.round, asked.attempt, digest)
        return messages.Key(asked.round, asked.attempt, signed.to_dict()).message()

    def _masked(self, message: Message) -> Message:
        """Train all clients, and answer with their sum, a share of the noise, and masks."""
        asked = message.read(messages.AskMasked)
        run = self._run(asked.run)
        colluders, plan = run.agreement.colluders, run.agreement.plan
        if colluders is None:
            raise PublicError("This run was agreed without secure aggregation.")
        self._check_round(run, asked)
        cohort = self._site_masking().check(
            run=asked.run,
            round=asked.round,
            attempt=asked.attempt,
            keys=asked.keys,
            sites=run.agreement.sites,
            grid=Grid.of(plan),
            colluders=colluders,
        )
        # The site counts its answers itself and keeps to the plan, even if the server charges less.
        if run.files.count_release() > plan.rounds:
            raise PublicError(
                f"This site has answered {plan.rounds} times, all that the plan pays for."
            )
        everybody = np.arange(run.training.data.m, dtype=np.int64)
        total = self._trained(run, asked, message, everybody).sum(dim=0)
        masked = self._site_masking().masked(cohort, total)
        return messages.Masked(asked.round, asked.attempt).message({"masked": masked})

    def _site_masking(self) -> SiteMasking:
        from pmtl.secure_aggregation.protocol import SiteMasking

        if self._masking is None:
            if self._identity is None:
                raise PublicError("This site has no certificate for secure aggregation.")
            self._masking = SiteMasking(self._identity(), self._source)
        return self._masking

    def _check_round(self, run: OpenRun, asked: messages.AskKey) -> None:
        """Refuse a round that was counted, or an attempt that was answered."""
        round = asked.round
        again = round == run.answered and asked.attempt == run.attempt
        old = round <= max(run.counted, asked.counted) or round < run.answered
        if round >= run.agreement.plan.rounds:
            raise PublicError(f"Round {round} is not part of the plan.")
        if old or again:
            raise PublicError(f"Round {round} was answered already.")

    def _trained(
        self, run: OpenRun, asked: messages.AskKey, message: Message, clients: NDArray[np.int64]
    ) -> Tensor:
        """The uploads of a round; what it would change is pending, and on disk."""
        self._charge(run.agreement)
        self._decide(run, asked.counted)
        shared = torch.from_numpy(message.reads(run.training.data.m))
        uploads = run.training.train(asked.round, clients, shared)
        assert run.training.pending is not None
        run.files.save_pending(run.training.pending, asked.attempt)
        run.answered, run.attempt = asked.round, asked.attempt
        return uploads

    def _charge(self, agreement: Agreement) -> None:
        """Record that this site takes part in a run, before anything leaves it."""
        if not self.folder.knows(agreement.run):
            limits, spent = self.settings.limits, self.folder.spent(agreement.run)
            limits.check(agreement, limits.version, spent)  # Other runs may have begun meanwhile.
            self.folder.charge(agreement.run, agreement.plan.epsilon())

    def _as_sent(
        self, run: OpenRun, drawn: NDArray[np.int64], uploads: Tensor, summed: bool
    ) -> NDArray[Any]:
        """Uploads as they leave: the sum, or one row for each client that was drawn. Where coins
        are secret the answer has a row for every client, so that its size tells nothing."""
        if summed:
            return uploads.sum(dim=0).numpy()
        sent = uploads
        if run.agreement.plan.scheme.coins_are_secret:
            sent = uploads.new_zeros(run.training.data.m, uploads.shape[1])
            sent[torch.from_numpy(drawn)] = uploads
        # A step is at most 2^24, so 32 bits hold it.
        return sent.numpy() if sent.is_floating_point() else sent.to(torch.int32).numpy()

    def _finish(self, message: Message) -> Message:
        """Make the personal models from what was published, and write them."""
        asked = message.read(messages.Finish)
        if not self.folder.state(asked.run).exists and self.folder.result(asked.run).exists():
            return messages.Done().message()
        run = self._run(asked.run)
        self._decide(run, asked.counted)
        shared = torch.from_numpy(message.reads(run.training.data.m))
        run.training.finish(shared)
        vectors = torch.from_numpy(message.array("shared", "f", 2))
        blocks = message.array("reads", "iu", 1).astype(np.int64)
        rounds = run.agreement.plan.rounds  # A site never answers more rounds than these.
        if run.agreement.colluders is not None:
            rounds = min(rounds, max(run.files.releases(), asked.rounds))
        run.result.write(run.training, shared, vectors, blocks, rounds)
        run.files.remove()
        self._open = None
        return messages.Done().message()

    def _decide(self, run: OpenRun, counted: int) -> None:
        if run.training.decide(counted):
            run.files.save_owned(run.training, counted)
        else:
            run.files.drop_pending()
        run.counted = max(run.counted, counted)

    def _run(self, name: str) -> OpenRun:
        """The run of this name, opened from disk if it is not open."""
        if self._open is None or self._open.agreement.run != name:
            state = self.folder.state(name)
            if not state.exists:
                raise PublicError("This site does not take part in this run.")
            self._open = self._opened(state)
        return self._open

    def _opened(self, state: RunStateFiles) -> OpenRun:
        agreed = state.agreed()
        agreement = Agreement.from_dict(agreed["agreement"])
        public = PublicInputs.from_tensors(state.public())
        model = agreement.model(public)
        algorithm = agreement.algorithm(model, public)
        data = self._rows.check(agreement)
        if wants_scaling(algorithm, data, model, agreement.config.init is not None):
            data = data.scaled()
        result = RunResult(self.folder.result(agreement.run), agreement, data, model, public)
        result.create(algorithm)
        seed = agreement.config.seed
        training = Training(
            agreement,
            replace(data, clients=self._rows.names(data)),
            model,
            algorithm,
            secrets.randbits(63) if seed is None else seed,
            bool(agreed["whole"]),
            result.note,
        )
        counted, answered, attempt = state.load(training)
        return OpenRun(agreement, training, state, result, counted, answered, attempt)
