"""One round of a federation, at the server: ask all sites, add up, publish.

Without secure aggregation the server adds the sites' clipped uploads and draws the noise. With it,
sites add masks and shares of the noise (`secure_aggregation/`), and a round is charged before it
begins: it may be abandoned, and stays charged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pmtl.errors import PmtlError
from pmtl.federation.agreement import Agreement
from pmtl.federation.messages import (
    AskKey,
    AskMasked,
    AskUploads,
    Done,
    Finish,
    Key,
    Masked,
    Message,
    Refused,
    Uploads,
)
from pmtl.federation.transport import Transport
from pmtl.server import Server
from pmtl.server.server import ServerState

if TYPE_CHECKING:
    from pmtl.federation.coordinator import Job

Members = Mapping[str, NDArray[np.int64]]

#: How many standard deviations of noise a sum may have; more come from a faulty site.
_DEVIATIONS = 40


@dataclass
class Rounds:
    """The rounds of one run."""

    agreement: Agreement
    server: Server
    transport: Transport
    members: Members  #: the numbers of each site's clients
    job: Job
    tell: Callable[[str], None]  #: called with sentences about the progress, all public
    state: ServerState  #: after the last round
    counted: dict[str, int]  #: the last round in which each site was counted
    _late: set[str] = field(default_factory=set, init=False)  #: sites that missed a deadline
    _failed: set[str] = field(default_factory=set, init=False)  #: that gave a key, and then failed

    def advance(self) -> bool:
        """Make one round, and move the state on. Returns False if the round was abandoned, which
        publishes nothing."""
        colluders = self.agreement.colluders
        answered = self._plain() if colluders is None else self._secure(colluders)
        self.counted |= dict.fromkeys(answered or (), self.state.round - 1)
        return answered is not None

    def finish(self) -> None:
        """Send the end to all sites. A site that does not answer makes its models when the run is
        resumed."""
        messages, rounds = {}, self.state.round
        for site in self.members:
            header = Finish(self.job.run, self.counted[site], rounds)
            messages[site] = header.message(self._shown_to(site)).to_bytes()
        seconds = max(self.job.round_seconds, self.job.join_seconds)  # Sites write all models now.
        answers = read_answers(self.transport.ask(messages, seconds))
        for site in sorted(messages):
            if site not in answers or not answers[site].is_valid(Done):
                sentence = "did not confirm the end: resume the run when it is back."
                self.tell(f"Site {site!r} {sentence}")

    def _plain(self) -> set[str]:
        server, state, summed = self.server, self.state, self.job.summed
        tally = server.open(state)
        attempt = secrets.token_hex(8)
        messages = {}
        for site, clients in self.members.items():
            mask = np.isin(clients, list(tally.cohort)).astype(np.uint8)
            header = AskUploads(**self._place(site, attempt), summed=summed)
            messages[site] = header.message({**self._shown_to(site), "drawn": mask})
        answered = self._collect(messages, Uploads, attempt)
        if not server.algorithm.shares:  # Nothing leaves a client, so nothing is published.
            state.round += 1
            return set(answered)
        for site, uploads in answered.items():
            clients = self.members[site]
            drawn = np.isin(clients, list(tally.cohort))
            secret = server.plan.scheme.coins_are_secret and not summed
            padded = secret and uploads.shape[:1] == clients.shape
            rows = uploads[drawn] if padded else uploads
            server.receive_site(tally, clients[drawn], rows, summed)
        server.publish(tally, state)
        return set(answered)

    def _secure(self, colluders: int) -> set[str] | None:
        from pmtl.privacy.grid import Grid
        from pmtl.secure_aggregation import shares
        from pmtl.secure_aggregation.protocol import unmasked

        server, state, attempt = self.server, self.state, secrets.token_hex(16)
        places = {site: self._place(site, attempt) for site in self.members}
        least = shares.least_sites(colluders)
        # A site that gave a key and then failed is left out of the next attempt, if others suffice.
        left_out, self._failed = self._failed, set()
        if len(places) - len(left_out) < least:
            left_out = set()
        asked = {
            site: AskKey(**place).message()
            for site, place in places.items()
            if site not in left_out
        }
        given = self._collect(asked, Key, attempt)
        keys = {site: signed for site, signed in given.items() if _is_key(signed, site)}
        if len(keys) < least and left_out:
            return None  # With all sites, once more. Nothing was sent, and nothing charged.
        if len(keys) < least:
            raise PmtlError(
                f"Only {len(keys)} of {len(places)} sites answered, and secure aggregation where "
                f"{colluders} may collude needs {least}: continue the run when more are back."
            )
        tally = server.open(state)
        server.gate.charge(state.round)  # From here on, something may be learned.
        listed = tuple(keys[site] for site in sorted(keys))
        messages = {
            site: AskMasked(**places[site], keys=listed).message(self._shown_to(site))
            for site in keys
        }
        answered = self._collect(messages, Masked, attempt)
        if set(answered) != set(keys):
            self._failed = set(keys) - set(answered)
            missing = ", ".join(sorted(self._failed))
            self.tell(
                f"Round {state.round + 1} was abandoned, because {missing} did not answer. It "
                "stays charged; a new attempt begins with the sites that are there."
            )
            return None
        total = unmasked(answered, tally.sum.shape[1])
        if total is None:
            self.tell(f"Round {state.round + 1} was abandoned: a site sent invalid numbers.")
            return None
        grid = Grid.of(server.plan)
        noise = shares.scale(grid, len(keys), colluders) * len(keys) ** 0.5
        try:
            server.gate.add_noisy_sum(tally, total, _DEVIATIONS * noise)
        except PmtlError as error:
            self.tell(f"Round {state.round + 1} was abandoned. {error}")
            return None
        server.publish(tally, state, noisy=True)
        return set(answered)

    def _place(self, site: str, attempt: str) -> dict[str, Any]:
        """What every request of an attempt says."""
        place = {"run": self.agreement.run, "round": self.state.round, "attempt": attempt}
        return place | {"counted": self.counted[site]}

    def _shown_to(self, site: str) -> dict[str, NDArray[Any]]:
        """What the clients of a site read: the vectors, and which of them each client reads."""
        billboard, shared, clients = self.server.billboard, self.state.shared, self.members[site]
        if billboard.mixture is None:
            used, reads = np.unique(billboard.blocks[clients], return_inverse=True)
            shown = shared[torch.from_numpy(used)]
        else:
            shown = billboard.read(shared, clients, one_by_one=True)
            reads = np.arange(len(clients))
        return {"shared": shown.cpu().numpy(), "reads": reads.astype(np.int64)}

    def _collect(
        self, messages: Mapping[str, Message], wanted: type[Uploads], attempt: str
    ) -> dict[str, Any]:
        """What the sites answered to this attempt in time: their keys, or the array that is called
        as the kind of the `wanted` answers."""
        round = self.state.round
        content = {site: message.to_bytes() for site, message in messages.items()}
        waited = frozenset(messages) - self._late
        answers = self.transport.ask(content, self.job.round_seconds, waited or None)
        found: dict[str, Any] = {}
        for site, given in answers.items():
            try:
                answer = Message.from_bytes(given)
            except PmtlError:
                answer = Refused("It sent something that is not a message.").message()
            value = _value(answer, wanted, round, attempt)
            if site in messages and value is not None:
                found[site] = value
            else:
                self.tell(f"Site {site!r}, round {round + 1}: {sentence_of(answer)}")
        for site in sorted(set(messages) - set(found) - self._late):
            end = "; it counts as zero." if wanted is Uploads else "."
            self.tell(f"Site {site!r} did not answer round {round + 1}{end}")
        for site in sorted(self._late & set(found)):
            self.tell(f"Site {site!r} is back.")
        self._late = (self._late - set(messages)) | (set(messages) - set(found))
        return found


def _value(answer: Message, wanted: type[Uploads], round: int, attempt: str) -> Any:
    """The key or the array of an answer; None if it is not of this kind and for this attempt."""
    try:
        header = answer.read(wanted)
    except PmtlError:
        return None
    if (header.round, header.attempt) != (round, attempt):
        return None
    return header.signed if isinstance(header, Key) else answer.arrays.get(wanted.kind)


def _is_key(values: Any, site: str) -> bool:
    """Whether this is a key in the site's own name. Other sites check its certificate."""
    from pmtl.secure_aggregation.identity import SignedKey

    try:
        return SignedKey.from_dict(values).site == site
    except PmtlError:
        return False


def read_answers(answers: Mapping[str, bytes]) -> dict[str, Message]:
    """The answers that are messages."""
    read = {}
    for site, content in answers.items():
        with suppress(PmtlError):
            read[site] = Message.from_bytes(content)
    return read


def sentence_of(answer: Message) -> str:
    """The sentence of a site that refused, or sent another answer than expected."""
    try:
        said = answer.read(Refused).sentence[:500]
    except PmtlError:
        return "It sent an answer that was not asked for."
    return "".join(c if c.isprintable() else "?" for c in said)
