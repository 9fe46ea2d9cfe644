"""A public basis from a file."""

from __future__ import annotations

import pytest
import torch

from pmtl.errors import PmtlError
from pmtl.models import PublicFile, build_model
from pmtl.sharing import build_share
from pmtl.sharing.kinds import basis_rows

P = 15  #: weights of the model


def model():
    return build_model("logistic", (4,), 3, "classification", 0)


def rows(**tensors):
    return basis_rows(PublicFile("b.safetensors", "00", tensors), model())


def test_an_orthonormal_basis_is_used_as_it_is():
    wanted = torch.linalg.qr(torch.randn(P, 4, dtype=torch.float64))[0].T.float().contiguous()
    assert torch.allclose(rows(basis=wanted), wanted, atol=1e-6)


def test_directions_become_orthonormal_and_keep_their_span():
    torch.manual_seed(0)
    given = torch.randn(4, P) * torch.tensor([1e-8, 1.0, 1e3, 1e12])[:, None]
    made = rows(basis=given).double()
    assert torch.allclose(made @ made.T, torch.eye(4, dtype=torch.float64), atol=1e-6)
    unit = given.double() / given.double().norm(dim=1, keepdim=True)
    assert torch.allclose(unit @ made.T @ made, unit, atol=1e-5)


def test_named_directions_move_only_what_they_name():
    torch.manual_seed(0)
    made = rows(**{"linear.bias": torch.randn(2, 3)})
    share = build_share("basis:file=b", model(), made)
    assert share.size == 2
    moved = share.join(torch.ones(2), torch.zeros(0))
    assert not moved[:12].any()
    assert moved[12:].any()
    gradient = torch.randn(P)
    assert torch.allclose(share.pull_back(gradient)[0], made @ gradient)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "no tensors"),
        ({"basis": torch.randn(2, P + 1)}, r"shape \(2, 16\), but \[k, 15\] is needed"),
        ({"basis": torch.randn(P)}, r"but \[k, 15\] is needed"),
        ({"linear.bias": torch.randn(2, 4)}, r"but \[k, 3\] is needed"),
        (
            {"linear.bias": torch.randn(2, 3), "linear.weight": torch.randn(3, 3, 4)},
            r"\[k, 3, 4\] is needed, with the same k",
        ),
        ({"head": torch.randn(2, 3)}, "no trained parameter 'head'"),
        ({"basis": torch.ones(2, P)}, "does not have full rank"),
        ({"basis": torch.zeros(1, P)}, "does not have full rank"),
        ({"basis": torch.randn(P + 1, P)}, "does not have full rank"),
        ({"basis": torch.randn(0, P)}, "k rows of floating-point numbers"),
        ({"basis": torch.ones(1, P, dtype=torch.int64)}, "floating-point numbers are needed"),
        ({"basis": torch.tensor(1.0)}, "floating-point numbers are needed"),
    ],
)
def test_a_basis_that_does_not_fit_is_a_sentence(tensors, words):
    with pytest.raises(PmtlError, match=words):
        rows(**tensors)


def test_a_sum_of_others_is_noticed():
    torch.manual_seed(1)
    given = torch.randn(3, P)
    with pytest.raises(PmtlError, match="does not have full rank"):
        rows(basis=torch.cat([given, given.sum(dim=0, keepdim=True)]))
