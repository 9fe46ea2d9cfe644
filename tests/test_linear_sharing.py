"""What of a linear model is shared: sizes that are known, and what may never happen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmtl.linear_sharing import LinearSizes

SIZES = st.builds(
    LinearSizes,
    columns=st.integers(2, 3000),
    outputs=st.integers(1, 500),
    classes=st.booleans(),
    public_head=st.booleans(),
)


@pytest.mark.parametrize(
    ("sizes", "strength", "share", "numbers"),
    [
        (LinearSizes(6, 1, False), 20.0, "all", 6),
        (LinearSizes(6, 1, False), 5.0, "intercepts", 1),
        (LinearSizes(1001, 476, True), 200.0, "frequent", 476 + 2500),
        (LinearSizes(1001, 476, True), 99.0, "intercepts", 476),
        (LinearSizes(1025, 62, True, public_head=True), 167.5, "answers", 63 * 62),
        (LinearSizes(20, 62, True, public_head=True), 60.0, "all", 20 * 62),
        (LinearSizes(1025, 62, True, public_head=True), 60.0, "intercepts", 62),
        (LinearSizes(1025, 62, True), math.inf, "all", 1025 * 62),
        # On either side of the limits: 2.5 · √16, 2.5 · √(16 · 3/4), 1.2 · √(5 · 4 · 3/4), 100.
        (LinearSizes(4, 4, False), 10.01, "all", 16),
        (LinearSizes(4, 4, False), 9.99, "intercepts", 4),
        (LinearSizes(4, 4, True), 8.67, "all", 16),
        (LinearSizes(4, 4, True), 8.65, "intercepts", 4),
        (LinearSizes(50, 4, True, public_head=True), 4.65, "answers", 20),
        (LinearSizes(50, 4, True, public_head=True), 4.64, "intercepts", 4),
        (LinearSizes(5, 4, True, public_head=True), 4.65, "all", 20),
        (LinearSizes(1001, 476, True), 100.0, "frequent", 476 + 625),
    ],
)
def test_what_is_shared_and_how_many_numbers(sizes, strength, share, numbers):
    assert sizes.what_to_share(strength) == share
    assert sizes.numbers(share, strength) == numbers


@given(sizes=SIZES, strength=st.floats(0.1, 1e6), more=st.floats(1, 100))
def test_more_strength_shares_no_less(sizes, strength, more):
    first, second = (sizes.numbers(sizes.what_to_share(s), s) for s in (strength, strength * more))
    assert first <= second <= sizes.columns * sizes.outputs


@given(sizes=SIZES, strength=st.floats(0.1, 1e6))
def test_only_a_public_head_shares_its_answers_and_never_for_less_than_all(sizes, strength):
    share = sizes.what_to_share(strength)
    assert share != "answers" or (sizes.public_head and sizes.outputs + 1 < sizes.columns)
    assert share != "frequent" or not sizes.public_head
