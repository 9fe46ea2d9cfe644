"""Every algorithm has the same anatomy: one file of tests for all that exist, and for the next."""

import dataclasses
import json
import re
import sys

import numpy as np
import pytest
import torch
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from pmtl.algorithms import (
    ALGORITHMS,
    Algorithm,
    ExactAlgorithm,
    algorithms_in_help,
    build_algorithm,
)
from pmtl.errors import PmtlError
from pmtl.models.layout import Layout, Traits

P, K, LR = 6, 5, 0.1
CLIENTS = tuple(f"client {k}" for k in range(K))
CLUSTERS = {client: "odd" if k % 2 else "even" for k, client in enumerate(CLIENTS)}
OMEGA = np.eye(K) - 1 / K
VALUE = 0.3  # of every constant

every = pytest.mark.parametrize("name", ALGORITHMS)
#: Exact algorithms take no steps: tests/algorithms/default has what they do instead.
by_steps = pytest.mark.parametrize(
    "name", [name for name, kind in ALGORITHMS.items() if not kind.exact]
)
#: Of a vector of P numbers, for algorithms that treat parts of a model differently.
LAYOUT = Layout.of(torch.nn.Linear(P // 2 - 1, 2), Traits(random_forward=False, looks_up=False))


def constants(name):
    """Numbers from 0. Other fields are tested beside the tests of their algorithms."""
    kinds = {field.name: field.type for field in dataclasses.fields(ALGORITHMS[name])}
    return [name for name, kind in kinds.items() if kind in ("float", float)]


def make(name, **options):
    options = dict.fromkeys(constants(name), VALUE) | options
    if name == "clustered":
        options["clusters"] = CLUSTERS
    if name == "related":
        options["omega"] = OMEGA
    return ALGORITHMS[name](**options).bind(LAYOUT)


def vectors(seed):
    """[K, P] different vectors."""
    return torch.randn(K, P, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(w):
    """Of ¼Σw⁴ + Σw: not linear, and never zero where w is a round number."""
    return w**3 + 1


def owned(algorithm, seed=1):
    """What K clients could own in mid-run: of the right shape, and not the start."""
    return (
        vmap(algorithm.start)(vectors(seed))
        + vectors(seed)[:, : len(algorithm.start(torch.zeros(P)))]
    )


def one_round(algorithm, own, shared, steps=3):
    """What a client does in a round, written for one client."""
    state = algorithm.begin(own, shared)
    for _ in range(steps):
        state = algorithm.step(state, shared, gradient, LR)
    uploads, kept = algorithm.upload(state, own, shared), algorithm.keep(state)
    return state, uploads, kept, algorithm.predict(kept, shared)


@every
def test_it_is_a_frozen_dataclass_known_by_its_own_name(name):
    algorithm = make(name)
    assert isinstance(algorithm, Algorithm)
    assert algorithm.name == name == ALGORITHMS[name].name
    assert dataclasses.is_dataclass(algorithm)
    for field in dataclasses.fields(algorithm):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(algorithm, field.name, 1.0)


@every
def test_it_can_be_made_without_a_word_and_its_defaults_are_valid(name):
    assert build_algorithm(name) == ALGORITHMS[name]()


@every
def test_its_spec_line_builds_it_again(name, tmp_path):
    options = [f"{constant}={VALUE}" for constant in constants(name)]
    if name == "clustered":
        file = tmp_path / "clusters.json"
        file.write_text(json.dumps(CLUSTERS))
        options.append(f"clusters={file}")
    if name == "related":
        np.save(tmp_path / "omega.npy", OMEGA)
        options.append(f"omega={tmp_path / 'omega.npy'}")
    built = build_algorithm(f"{name}:{','.join(options)}" if options else name)
    assert type(built) is ALGORITHMS[name]
    for constant in constants(name):
        assert getattr(built, constant) == VALUE
    assert np.array_equal(built.blocks(CLIENTS), make(name).blocks(CLIENTS))
    assert build_algorithm(built) is built


@by_steps
def test_its_functions_give_the_shapes_that_are_promised(name):
    algorithm = make(name)
    own, shared = owned(algorithm)[0], vectors(2)[0]
    state, upload, kept, answer = one_round(algorithm, own, shared)
    begun = algorithm.begin(own, shared)
    assert [leaf.shape for leaf in tree_leaves(begun)] == [
        leaf.shape for leaf in tree_leaves(state)
    ]
    assert upload.shape == ((P,) if algorithm.shares else (0,))
    assert kept.shape == own.shape == algorithm.start(shared).shape
    assert answer.shape == (P,)
    assert all(tensor.dtype == torch.float64 for tensor in (upload, kept, answer))


@every
def test_every_client_has_a_block_of_the_billboard(name):
    blocks = make(name).blocks(CLIENTS)
    assert blocks.shape == (K,)
    assert np.issubdtype(blocks.dtype, np.integer)
    assert set(blocks.tolist()) == set(range(int(blocks.max()) + 1))


@by_steps
def test_its_functions_are_pure(name):
    algorithm = make(name)
    own, shared = owned(algorithm)[0], vectors(2)[0]
    before = own.clone(), shared.clone()
    first = one_round(algorithm, own, shared)
    second = one_round(algorithm, own, shared)
    assert torch.equal(own, before[0])
    assert torch.equal(shared, before[1])
    for one, two in zip(tree_leaves(first), tree_leaves(second), strict=True):
        assert torch.equal(one, two)
    # A step leaves the state that it was given alone.
    state = algorithm.begin(own, shared)
    kept = tree_map(torch.clone, state)
    algorithm.step(state, shared, gradient, LR)
    assert all(map(torch.equal, tree_leaves(state), tree_leaves(kept)))


@by_steps
def test_one_client_alone_and_many_under_vmap_are_the_same_bits(name):
    algorithm = make(name)
    own, shared = owned(algorithm), vectors(2)
    together = vmap(lambda own, shared: one_round(algorithm, own, shared))(own, shared)
    for k in range(K):
        alone = one_round(algorithm, own[k], shared[k])
        for one, many in zip(tree_leaves(alone), tree_leaves(together), strict=True):
            assert torch.equal(one, many[k])


@by_steps
def test_without_a_step_nothing_is_uploaded_and_nothing_is_lost(name):
    algorithm = make(name)
    own, shared = owned(algorithm)[0], vectors(2)[0]
    _, upload, _, answer = one_round(algorithm, own, shared, steps=0)
    assert not upload.any()
    assert torch.equal(answer, algorithm.predict(own, shared))
    _, moved, _, _ = one_round(algorithm, own, shared, steps=1)
    assert bool(moved.any()) == algorithm.shares


@by_steps
@pytest.mark.parametrize("lr", [LR, 4.0])  # 4 · 0.3 is beyond 1: the pull overshoots.
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_zero_gradient_steps_are_that_many_steps_with_a_gradient_of_zero(name, steps, lr):
    algorithm = make(name)
    own, shared = owned(algorithm)[0], vectors(2)[0]
    state = algorithm.begin(own, shared)
    if name in ("fedprox", "ditto"):  # Their rounds begin at w̃; from there nothing would pull.
        state = tree_map(lambda vector: vector + vectors(3)[0], state)
    count = torch.tensor(float(steps), dtype=torch.float64)
    at_once = algorithm.zero_gradient_steps(state, shared, lr, count)
    if at_once is None:
        pytest.skip("It has no closed form.")
    for _ in range(steps):
        state = algorithm.step(state, shared, torch.zeros_like, lr)
    for one, two in zip(tree_leaves(at_once), tree_leaves(state), strict=True):
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-12)


@by_steps
def test_it_treats_every_coordinate_by_itself(name):
    """Trained on some coordinates alone it does to them what it does to them among others. An
    algorithm with `zero_gradient_steps` promises that."""
    algorithm = make(name)
    if type(algorithm).zero_gradient_steps is Algorithm.zero_gradient_steps:
        pytest.skip("It does not promise that.")
    own, shared, some = owned(algorithm)[0], vectors(2)[0], slice(1, 4)
    _, upload, kept, _ = one_round(algorithm, own, shared)
    _, part_upload, part_kept, _ = one_round(algorithm, own[some], shared[some])
    assert torch.equal(part_upload, upload[some])
    assert torch.equal(part_kept, kept[some])


def test_local_training_shares_nothing_and_uploads_nothing():
    algorithm = make("local")
    assert not algorithm.shares
    _, upload, kept, _ = one_round(algorithm, vectors(1)[0], vectors(2)[0])
    assert upload.numel() == 0
    assert kept.shape == (P,)


def test_exact_algorithms_say_so_and_take_no_steps():
    exact = [name for name, kind in ALGORITHMS.items() if kind.exact]
    assert exact == [name for name, kind in ALGORITHMS.items() if issubclass(kind, ExactAlgorithm)]
    assert {"pooling", "anchored"} <= {*exact}
    for name in exact:
        with pytest.raises(NotImplementedError):
            make(name).begin(vectors(1)[0], vectors(2)[0])


@every
def test_who_is_personal_says_so(name):
    """Clients without a part of their own answer with what is published, and nothing else."""
    algorithm = make(name)
    owns = len(algorithm.start(torch.zeros(P))) > 0
    assert algorithm.personal == owns


@every
def test_its_docstring_cites_its_source(name):
    chapter = sys.modules[ALGORITHMS[name].__module__].__doc__
    assert len(chapter.splitlines()) >= 3
    if ALGORITHMS[name].shares:  # Training alone is nobody's invention.
        assert re.search(r"[A-Z]\w+,? (19|20)\d\d|Fig\. 1", chapter)  # A venue or authors and year.


def test_defaults_in_the_help_are_those_of_the_classes():
    shown = re.findall(r"{(\w+)}\[:(\w+)=(.*?)\]", algorithms_in_help())
    assert len(shown) >= 5
    for name, constant, value in shown:
        assert getattr(ALGORITHMS[name](), constant) == float(value), name


@every
def test_constants_that_are_negative_or_no_numbers_are_refused_in_a_sentence(name):
    for constant in constants(name):
        for value in (-0.1, -1, float("nan"), float("inf"), float("-inf"), True):
            with pytest.raises(PmtlError, match=f"{name}: {constant} must be a finite number"):
                make(name, **{constant: value})
        with pytest.raises(PmtlError, match=f"{constant} must be a finite number"):
            build_algorithm(f"{name}:{constant}=nan")
        with pytest.raises(PmtlError, match=f"{constant} of algorithm {name} must be a number"):
            build_algorithm(f"{name}:{constant}=much")
        assert getattr(make(name, **{constant: 0.0}), constant) == 0


@every
def test_an_unknown_option_is_answered_with_the_known_ones(name):
    known = [field.name for field in dataclasses.fields(ALGORITHMS[name])] or ["(none)"]
    with pytest.raises(PmtlError) as refused:
        build_algorithm(f"{name}:no_such=1")
    sentence = str(refused.value)
    assert sentence.startswith(f"There is no option of algorithm {name} named 'no_such'.")
    assert sentence.endswith(f"Known: {', '.join(sorted(known))}.")


def test_an_unknown_algorithm_is_answered_with_its_neighbour_and_all_that_exist():
    with pytest.raises(PmtlError, match="Did you mean 'fedprox'") as refused:
        build_algorithm("fedprx")
    assert all(name in str(refused.value) for name in ALGORITHMS)


def test_clusters_can_be_a_mapping_a_json_object_or_a_csv_file(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(CLUSTERS))
    lines = ["client,cluster", *(f"{client},{cluster}" for client, cluster in CLUSTERS.items())]
    (tmp_path / "c.csv").write_text("\n".join(lines))
    expected = [0, 1, 0, 1, 0]
    assert make("clustered").blocks(CLIENTS).tolist() == expected
    for file in ("c.json", "c.csv"):
        built = build_algorithm(f"clustered:clusters={tmp_path / file}")
        assert built.blocks(CLIENTS).tolist() == expected


def test_clusters_that_cannot_be_read_or_miss_a_client_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(PmtlError, match="cannot be read"):
        build_algorithm(f"clustered:clusters={tmp_path / 'none.json'}").blocks(CLIENTS)
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "wrong.csv").write_text("who,where\na,b\n")
    for file in ("list.json", "wrong.csv"):
        with pytest.raises(PmtlError, match="JSON object that maps"):
            build_algorithm(f"clustered:clusters={tmp_path / file}").blocks(CLIENTS)
    with pytest.raises(PmtlError, match="1 of 6 clients have no cluster, the first is 'stranger'"):
        make("clustered").blocks((*CLIENTS, "stranger"))
