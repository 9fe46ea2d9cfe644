"""Parties that do not keep to the protocol, in real processes.

`hooks/sitecustomize.py` begins it. A site's process then draws its shares from seeded words in the
run `seen`, and ends itself in each phase of the run `kills`. The process of the server's job
records every message of sites, and attacks in the run `attacked`. They write into
`PMTL_TEST_FOLDER`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("PMTL_TEST_FOLDER", "."))
#: When site b ends itself: what it is asked for, in which round, before or after it has answered.
PHASES = (("key", 0, "before"), ("masked", 1, "before"), ("masked", 2, "after"))


def words_of(site: str) -> Any:
    """The words of a site's shares, by round."""
    from pmtl.privacy.noise import seeded_source

    return lambda round: seeded_source(5, f"{site} {round}")(round)


def change_site() -> None:
    from pmtl.federation.messages import Message
    from pmtl.federation.service import SiteService
    from pmtl.privacy.noise import system_source

    begin, handle, now = SiteService.__init__, SiteService.handle, [""]

    def __init__(self: Any, name: str, *more: Any) -> None:
        seeded = words_of(name)
        words = lambda round: (seeded if now[0] == "seen" else system_source)(round)  # noqa: E731
        begin(self, name, *more, source=words)

    def handling(self: Any, content: bytes) -> bytes:
        message = Message.from_bytes(content)
        now[0] = str(message.header.get("run"))
        asked = message.kind, message.header.get("round")
        for kind, round, when in PHASES if (now[0], self.name) == ("kills", "b") else ():
            mark = FOLDER / f"ended-{kind}-{round}"
            if asked == (kind, round) and not mark.exists():
                mark.touch()
                if when == "after":
                    handle(self, content)
                os.kill(os.getpid(), signal.SIGKILL)
        return handle(self, content)

    SiteService.__init__, SiteService.handle = __init__, handling


def change_server() -> None:
    import numpy as np

    from pmtl.federation.messages import Message
    from pmtl.federation.nvflare.cells import CellTransport

    honest = CellTransport.ask

    def ask(self: Any, messages: Any, deadline: float, wait_for: Any = None) -> dict[str, bytes]:
        read = {site: Message.from_bytes(content) for site, content in messages.items()}
        one = next(iter(read.values()))
        run = one.header.get("run")
        if run == "kills" and one.kind == "key":  # Wait until everybody is back.
            end = time.monotonic() + 60
            while len(self.present()) < len(self.sites) and time.monotonic() < end:
                time.sleep(0.2)
            wait_for = None
        answers = honest(self, messages, deadline, wait_for)
        if one.kind == "masked":
            record(run, one.header["attempt"], answers)
            if run == "attacked" and not (FOLDER / "attacks.json").exists():
                said = attacks(self, read)
                (FOLDER / "attacks.json").write_text(json.dumps(said))
        return answers

    def record(run: str, attempt: str, answers: Any) -> None:
        found = {site: Message.from_bytes(content) for site, content in answers.items()}
        sent = {site: m.arrays["masked"] for site, m in found.items() if m.kind == "masked"}
        (FOLDER / "seen" / run).mkdir(parents=True, exist_ok=True)
        number = len(list((FOLDER / "seen" / run).iterdir()))
        np.savez(FOLDER / "seen" / run / f"{number:04}-{attempt[:8]}.npz", **sent)

    def attacks(self: Any, given: Any) -> dict[str, str]:
        """Everything that a server may try with honest sites; what site a said to each."""
        header = {k: v for k, v in next(iter(given.values())).header.items() if k != "keys"}

        def send(messages: Any) -> dict[str, Any]:
            content = {site: message.to_bytes() for site, message in messages.items()}
            answers = honest(self, content, 30.0)
            return {site: Message.from_bytes(answer) for site, answer in answers.items()}

        def fresh() -> tuple[dict[str, Any], dict[str, Any]]:
            about = {**header, "attempt": secrets.token_hex(16)}
            answers = send({site: Message("key", about) for site in given})
            return about, {site: answer.header["signed"] for site, answer in answers.items()}

        def masked(about: Any, keys: Any, sites: Any = ("a",)) -> dict[str, Any]:
            listed = {**about, "keys": list(keys.values())}
            return send({site: Message("masked", listed, given[site].arrays) for site in sites})

        def sentence(answers: Any) -> str:
            return f"{answers['a'].kind}: {answers['a'].header.get('sentence')}"

        said = {}
        about, keys = fresh()
        own = secrets.token_bytes(32).hex()
        said["swapped key"] = sentence(masked(about, {**keys, "b": {**keys["b"], "key": own}}))
        said["own key as b"] = sentence(masked(about, {**keys, "b": certified(about, "b")}))
        invented = {**keys, "localhost": certified(about, "localhost")}
        said["own key as a new site"] = sentence(masked(about, invented))
        said["alone"] = sentence(masked(about, {"a": keys["a"]}))
        old = keys
        about, keys = fresh()
        said["old key"] = sentence(masked(about, {**keys, "c": old["c"]}))
        everybody = masked(about, keys, given)
        record("attacked", "uncharged", {s: m.to_bytes() for s, m in everybody.items()})
        said["same request again"] = sentence(masked(about, keys))
        said["key again"] = sentence(send({"a": Message("key", about)}))
        plain = {**given["a"].arrays, "drawn": np.ones(len(given["a"].arrays["reads"]), np.uint8)}
        asked = {**header, "attempt": "p", "summed": False}
        said["in plain"] = sentence(send({"a": Message("round", asked, plain)}))
        about, keys = fresh()
        mixed = {}
        for site, cohort in {"a": "ab", "b": "abc", "c": "bc"}.items():
            mixed |= masked(about, {other: keys[other] for other in cohort}, (site,))
        record("mixed", "cohorts", {site: m.to_bytes() for site, m in mixed.items()})
        return said

    def certified(about: Any, name: str) -> dict[str, str]:
        """A key that the server signs with its own certificate, in any name."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        from pmtl.secure_aggregation.identity import Attempt, Identity

        kit = FOLDER / "kits/server/startup"
        parts = [(kit / file).read_bytes() for file in ("server.crt", "server.key", "rootCA.pem")]
        identity = Identity(name, *parts)
        agreed = json.loads(
            (FOLDER / "kits/server/federation/runs/attacked/agreement.json").read_text()
        )
        from pmtl.federation.agreement import Agreement

        digest = Agreement.from_dict(agreed["agreement"]).digest()
        attempt = Attempt(
            identity.federation, about["run"], about["round"], about["attempt"], digest
        )
        return identity.sign(attempt, X25519PrivateKey.generate()).to_dict()

    CellTransport.ask = ask


def begin(command: list[str]) -> None:
    """Change this process, if it is a site's or that of a server's job."""
    if any("server.runner_process" in part for part in command):
        change_server()
    elif "pmtl.federation.nvflare.process" in command and not any(
        part.endswith("/server") for part in command
    ):
        change_site()
