"""The kinds of parts: which weights move, and how."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pmtl.errors import PmtlError
from pmtl.models import FlatModel, build_model
from pmtl.sharing import build_share

SPECS = ("subspace:k=7,seed=4", "lowrank:rank=2", "lowrank:rank=99", "film")


def mlp():
    return build_model("mlp:hidden=5", (4,), 3, "classification", 0)


def matrix(share):
    """B [P, k], column by column."""
    units = torch.eye(share.size)
    zero = share.join(torch.zeros(share.size), torch.zeros(0))
    return torch.stack([share.join(unit, torch.zeros(0)) - zero for unit in units], dim=1)


@pytest.mark.parametrize("spec", SPECS)
def test_directions_are_linear_and_pull_back_is_the_transpose(spec):
    model = mlp()
    share = build_share(spec, model)
    columns = matrix(share)
    assert share.personal_size == 0
    assert columns.shape == (model.size, share.size)
    assert torch.equal(share.join(torch.zeros(share.size), torch.zeros(0)), model.start())
    s, g = torch.randn(share.size), torch.randn(model.size)
    assert torch.allclose(share.join(s, s[:0]), model.start() + columns @ s, atol=1e-5)
    assert torch.allclose(share.pull_back(g)[0], columns.T @ g, atol=1e-5)
    assert torch.linalg.matrix_rank(columns) == share.size


@pytest.mark.parametrize(
    "spec", ["subspace:k=1", "subspace:k=7", "subspace:k=43", "lowrank:rank=3"]
)
def test_random_directions_are_orthonormal(spec):
    columns = matrix(build_share(spec, mlp()))
    assert torch.allclose(columns.T @ columns, torch.eye(columns.shape[1]), atol=1e-6)


def test_a_subspace_holds_all_weights_in_equal_parts_and_depends_on_its_seed():
    columns = [matrix(build_share(f"subspace:k=8,seed={seed}", mlp())) for seed in (0, 0, 1)]
    assert torch.equal(columns[0], columns[1])
    assert not torch.equal(columns[0], columns[2])
    there = columns[0] != 0
    assert (there.sum(dim=1) == 1).all()
    assert sorted(set(there.sum(dim=0).tolist())) == [5, 6]  # 43 weights in 8 directions.
    larger = build_model("mlp", (9,), 3, "classification", 0)
    signs = matrix(build_share("subspace:k=1", larger)).sign()
    assert abs(float(signs.mean())) < 0.15


def test_low_rank_changes_have_low_rank():
    model = build_model("femnist_cnn", (784,), 3, "classification", 0)
    share = build_share("lowrank:rank=2", model)
    assert share.size == 2 * (32 + 64 + 3)
    torch.manual_seed(0)
    moved = share.join(torch.randn(share.size), torch.zeros(0)) - model.start()
    parts = model.layout.cut(moved)
    for name in ("conv1.weight", "conv2.weight", "head.weight"):
        assert torch.linalg.matrix_rank(parts[name].flatten(1)) == 2
    assert not any(parts[name].any() for name in parts if name.endswith("bias"))


def test_film_scales_and_shifts_the_outputs_of_layers():
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))
    model = FlatModel(module)
    share = build_share("film", model)
    assert share.size == 5 + 5 + 3
    torch.manual_seed(0)
    s, x = torch.randn(13), torch.randn(6, 4)
    scale, shift, last = s[:5], s[5:10], s[10:]
    first = module[0]
    inner = (1 + scale) * (x @ first.weight.T) + first.bias + shift
    by_hand = (1 + last) * (torch.relu(inner) @ module[2].weight.T)
    assert torch.allclose(model.apply(share.join(s, s[:0]), x), by_hand, atol=1e-5)


def test_film_has_no_scale_where_weights_start_at_zero():
    share = build_share("film", build_model("logistic", (4,), 3, "classification", 0))
    assert share.size == 3


def test_names_choose_what_is_shared_and_the_rest_is_personal():
    model = mlp()
    start = model.start()
    share = build_share("3.weight+biases", model)
    assert [part.name for part in share.layout.parameters] == ["1.bias", "3.weight", "3.bias"]
    assert (share.size, share.personal_size) == (5 + 15 + 3, 20)
    s, p = share.first(start), share.own(start)
    assert torch.equal(share.join(s, p), start)
    assert torch.equal(p, start[:20])
    s, p = torch.randn(23), torch.randn(20)
    parts = model.layout.cut(share.join(s, p))
    assert torch.equal(parts["1.weight"].flatten(), p)
    assert torch.equal(torch.cat([parts[n].flatten() for n in ("1.bias", "3.weight", "3.bias")]), s)
    back = share.pull_back(share.join(s, p))
    assert torch.equal(back[0], s)
    assert torch.equal(back[1], p)


def test_what_is_personal_is_published_as_it_began():
    model = mlp()
    share = build_share("3.*", model)
    board = torch.randn(2, share.size)
    shown = share.published(board)
    assert torch.equal(shown[:, :25], model.start()[:25].expand(2, -1))
    assert torch.equal(shown[:, 25:], board)


def test_frozen_weights_are_in_no_part():
    frozen = build_model("mlp:hidden=5", (4,), 3, "classification", 0, frozen="1.*")
    assert build_share("lowrank:rank=1", frozen).size == 3
    assert build_share("biases", frozen).size == 3
    with pytest.raises(PmtlError, match=r"no trained parameter '1\.\*'"):
        build_share("1.*", frozen)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("from-data", "There is no trained parameter 'from-data'"),
        ("", "There is no trained parameter ''"),
        ("head.*", r"There is no trained parameter 'head\.\*'"),
        ("3.*+", "There is no trained parameter ''"),
        ("pca:k=3", "There is no kind of share 'pca'"),
        ("subspace", "needs the option 'k'"),
        ("subspace:k=0", "from 1 to 43"),
        ("subspace:k=-2", "from 1 to 43"),
        ("subspace:k=44", "from 1 to 43"),
        ("subspace:k=many", "must be a whole number"),
        ("subspace:k=3,seed=-1", "must not be negative"),
        ("subspace:k=3,data=private.csv", "no option of share subspace named 'data'"),
        ("lowrank:rank=0", "rank of at least 1"),
        ("lowrank:rank=1,seed=-1", "must not be negative"),
        ("film:k=3", "no option of share film named 'k'"),
        ("basis:file=x.safetensors", "read from a file"),
    ],
)
def test_a_part_that_does_not_exist_is_a_sentence(spec, words):
    with pytest.raises(PmtlError, match=words):
        build_share(spec, mlp())


class Table(nn.Module):
    """A model without linear layers and biases."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4, 3))

    def forward(self, x):
        return x @ self.table


@pytest.mark.parametrize("spec", ["biases", "film", "lowrank:rank=1"])
def test_a_share_that_leaves_nothing_is_refused(spec):
    with pytest.raises(PmtlError, match="leave nothing to share"):
        build_share(spec, FlatModel(Table()))
    bare = nn.Linear(4, 3, bias=False)
    nn.init.zeros_(bare.weight)
    if spec == "film":
        with pytest.raises(PmtlError, match="leave nothing to share"):
            build_share(spec, FlatModel(bare))
