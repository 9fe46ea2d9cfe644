"""Messages are plain data: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pmtl.errors import PmtlError
from pmtl.messages import RoundMessage, from_bytes, to_bytes


def test_a_message_comes_out_as_it_went_in():
    shared = np.array([1.5, -0.0, np.inf], dtype=np.float32)
    message = RoundMessage.from_bytes(RoundMessage(7, shared).to_bytes())
    assert message.round == 7
    assert message.shared.dtype == np.float32
    assert message.shared.tobytes() == shared.tobytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        pickle.dumps({"round": 1}),
        to_bytes({"shared": np.zeros(2)}),
        to_bytes({"round": np.array([1.0]), "shared": np.zeros(2)}),
        to_bytes({"round": np.array([1, 2]), "shared": np.zeros(2)}),
        to_bytes({"round": np.array([1]), "shared": np.zeros((1, 2))}),
        to_bytes({"round": np.array([1]), "shared": np.zeros(2, dtype=np.int64)}),
        to_bytes({"round": np.array([1]), "shared": np.zeros(2), "more": np.zeros(1)}),
    ],
)
def test_what_is_not_a_message_is_refused_in_a_sentence(content):
    with pytest.raises(PmtlError, match=r"refused|cannot be read"):
        RoundMessage.from_bytes(content)


def test_arrays_keep_their_kind_and_shape():
    arrays = {"upload": np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2]}
    assert np.array_equal(from_bytes(to_bytes(arrays))["upload"], arrays["upload"])
