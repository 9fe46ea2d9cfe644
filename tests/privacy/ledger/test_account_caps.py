"""A cap at several δ holds at each of them."""

import pytest

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import composition
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger

CLIENTS = [f"site-{k}" for k in range(10)]
FULL = GaussianEvent("full", 10, 10, 1.0, 0.4)


@pytest.mark.parametrize("tight", [1e-3, 1e-9])
@pytest.mark.parametrize("first", [True, False], ids=["tight first", "tight last"])
def test_each_of_several_caps_is_kept(tmp_path, tight, first):
    """At one δ there is room for hundreds of releases, at the other for three."""
    limit = composition.epsilon({FULL: 3}, tight) * (1 + 1e-9)
    caps = [(limit, tight), (1000.0, 1e-6)]
    with Ledger.create(tmp_path / "ledger.db", CLIENTS) as ledger:
        for epsilon, delta in caps if first else reversed(caps):
            ledger.cap(epsilon, delta)
        ledger.declare("run", {FULL: 100})
        assert ledger.allows("run", {FULL: 3}) is None
        assert ledger.allows("run", {FULL: 4}) is not None
        for round in range(3):
            assert ledger.allows("run", {FULL: 1}) is None
            ledger.charge("run", round, FULL)
        assert f"{tight:.3g}" in ledger.allows("run", {FULL: 1})
        with pytest.raises(PmtlError, match="cap"):
            ledger.charge("run", 3, FULL)
