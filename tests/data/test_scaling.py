"""Features and targets with public bounds: the same units for all clients, clipped and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pmtl.data import FederatedData, describe, load, public_warnings
from pmtl.data.scaling import scaling_of_new_client
from pmtl.errors import PmtlError

BOUNDS = {"age": (0, 100), "score": (0, 10)}
TOML = "[columns.age]\nlow = 0\nhigh = 100\n[columns.score]\nlow = 0\nhigh = 10\n"


def rows():
    """Two clients with ages of different sizes; one age and two scores are beyond the bounds."""
    random = np.random.default_rng(3)
    age = np.concatenate([random.uniform(0, 20, 20), random.uniform(60, 100, 20)])
    age[4] = 130
    weight = random.normal(70, 5, 40) + np.repeat([0, 1000], 20)
    score = random.uniform(1, 9, 40)
    score[[5, 25]] = -3, 12
    split = np.where(np.arange(40) % 4 == 0, "test", "train")
    return np.stack([age, weight], 1), score, np.repeat(["a", "b"], 20), split


def federation(**options):
    x, y, client, split = rows()
    names = {"feature_names": ("age", "weight"), "target_names": ("score",)}
    return FederatedData.from_arrays(x, y, client, split, validation=0, **names, **options)


def test_bounds_give_all_clients_the_same_units_and_clip():
    raw, data = federation(), federation(bounds=BOUNDS)
    expected = np.clip((raw.x[:, 0] - 50) / 50, -1, 1)
    assert np.allclose(data.x[:, 0], expected, atol=1e-6)
    assert data.x[4, 0] == 1
    assert (data.scaling.means[:, 0] == 50).all()
    assert (data.scaling.widths[:, 0] == 50).all()
    assert data.scaling.limits.tolist() == [1, 4]
    assert not data.scaling.same_for_all
    assert federation(bounds={"age": (0, 100), "weight": (0, 2000)}).scaling.same_for_all


def test_columns_without_bounds_are_scaled_by_each_client():
    data, by_client = federation(bounds=BOUNDS), federation(scale="client")
    assert (data.x[:, 1] == by_client.x[:, 1]).all()
    assert (federation(bounds=BOUNDS, scale="client").x == data.x).all()


def test_each_client_scales_by_its_own_training_rows():
    """Two-valued columns become ±1, columns of a size near 1 stay, constant ones become 0, and
    others are centred; values of new rows are limited."""
    random = np.random.default_rng(5)
    x = random.normal(size=(40, 5)) * [1, 1, 200, 1, 0.001] + [0, 0, 900, 0, 0]
    x[:, 1], x[:, 3] = np.arange(40) % 2, 7.0
    x[0, 2], x[0, 3] = 1e6, 8.0  # in a test row
    split = np.where(np.arange(40) % 4 == 0, "test", "train")
    client = np.repeat(["a", "b"], 20)
    data = FederatedData.from_arrays(x, x[:, 0], client, split, validation=0, scale="client")
    assert np.allclose(data.x[:, 0], np.clip(x[:, 0], -4, 4), atol=1e-6)
    assert np.array_equal(data.x[:, 1], 2 * x[:, 1] - 1)
    assert (data.x[:, 3] == 0).all()
    assert data.x[0, 2] == 4
    for name in ("a", "b"):
        mine = (client == name) & (split == "train")
        for column in (2, 4):
            width = x[mine, column].std() * (1 + 3 / mine.sum())
            expected = (x[mine, column] - x[mine, column].mean()) / width
            assert np.allclose(data.x[mine, column], expected, atol=1e-4)


@pytest.mark.parametrize(("columns", "size", "stays"), [
    (99, 0.2, True),
    (100, 0.2, False),
    (100, 0.5, True),
    (99, 0.05, False),
])  # fmt: skip
def test_what_stays_depends_on_the_number_of_columns_and_not_on_that_of_rows(columns, size, stays):
    """A shared weight means the same for clients with few and with many rows, and for new ones."""
    x = size * np.where(np.arange(58) % 2, 1.0, -1.0)[:, None] * np.ones(columns)
    client, split = np.repeat(["few", "many"], [8, 50]), np.full(58, "train")
    data = FederatedData.from_arrays(x, x[:, 0], client, split, validation=0, scale="client")
    new = scaling_of_new_client(x[:30].astype(np.float32), data.scaling)
    for widths in (*data.scaling.widths, new.widths[0]):
        assert (widths == 1).all() == stays
        assert stays or (np.abs(widths - size) < size).all()


def test_targets_are_clipped_in_training_and_nowhere_else():
    x, y, client, split = rows()
    y[0] = 50  # a test row
    before = y.astype(np.float32)
    data = FederatedData.from_arrays(x, before, client, split, bounds={"target": (0, 10)})
    assert (data.y[[0, 5, 25]] == [50, 0, 10]).all()
    assert before[5] == -3  # the user's own array
    assert data.scaling is None
    assert (data.x == x.astype(np.float32)).all()


def test_whole_numbers_with_bounds_are_amounts_and_not_classes():
    x, y, client, split = rows()
    whole = np.round(y).astype(int) + 3
    assert FederatedData.from_arrays(x, whole, client, split).task == "classification"
    data = FederatedData.from_arrays(x, whole, client, split, bounds={"target": (0, 20)})
    assert data.task == "regression"


def test_what_was_clipped_is_counted_for_the_owner_and_not_in_public():
    data = federation(bounds=BOUNDS)
    public = " ".join(public_warnings(data))
    assert "given by the user" in public
    assert "clipped" in public
    assert "3 of 40" not in public
    assert any("In 3 of 40 rows" in sentence for sentence in describe(data)["warnings"])
    inside = federation(bounds={"age": (0, 200), "score": (-10, 20)})
    assert public_warnings(inside) == public_warnings(data)
    assert not any("rows a value" in sentence for sentence in describe(inside)["warnings"])


def test_the_fingerprint_knows_the_bounds():
    prints = {
        federation(bounds=bounds).fingerprint()
        for bounds in (None, BOUNDS, {"score": (0, 10)}, {"score": (-5, 20)}, {"score": (-6, 20)})
    }
    assert len(prints) == 5
    assert federation().bounded(federation(bounds=BOUNDS).bounds).fingerprint() in prints


def test_selected_clients_keep_their_bounds():
    data = federation(bounds=BOUNDS).select(["b"])
    assert data.bounds.target == (0, 10)
    assert data.scaling.means.shape == (1, 2)


@pytest.fixture
def table(tmp_path):
    x, y, client, split = rows()
    lines = [f"{c},{a},{w},{s},{p}" for (a, w), s, c, p in zip(x, y, client, split, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["client,age,weight,score,split", *lines]) + "\n")
    (tmp_path / "b.toml").write_text(TOML)
    return tmp_path / "t.csv"


def test_a_file_of_bounds_is_an_option_of_the_spec(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = "t.csv:target=score,validation=0,bounds=b.toml"
    data = load(spec)
    assert data.fingerprint() == federation(bounds=BOUNDS).fingerprint()
    monkeypatch.chdir("/")
    assert load(data.source).fingerprint() == data.fingerprint()
    monkeypatch.chdir(tmp_path)
    produced = load(spec, production=True)
    assert (produced.x == data.x).all()
    assert any("In 3 of 40 rows" in sentence for sentence in produced.for_owner)


def test_a_frame_has_bounds(table):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(table)
    data = FederatedData.from_frame(
        frame, target="score", split="split", validation=0, bounds=BOUNDS
    )
    assert data.bounds == federation(bounds=BOUNDS).bounds


@pytest.mark.parametrize("production", [False, True])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[columns.aeg]\nlow = 0\nhigh = 1\n", ["'aeg'", "Did you mean 'age'"]),
        ("[columns.client]\nlow = 0\nhigh = 1\n", ["'client'", "neither"]),
        ("[columns.age]\nlow = 1\nhigh = 0\n", ["'age'", "less than"]),
    ],
)
def test_a_mistake_in_bounds_is_said_in_production_too(text, words, production, table):
    table.with_name("b.toml").write_text(text)
    with pytest.raises(PmtlError) as error:
        load(f"{table}:target=score,bounds={table.with_name('b.toml')}", production=production)
    for word in words:
        assert word in str(error.value)


def test_bounds_of_sparse_rows_are_refused_but_of_their_target_not():
    from scipy.sparse import csr_matrix

    x, y, client, split = rows()
    with pytest.raises(PmtlError, match="sparse"):
        FederatedData.from_arrays(csr_matrix(x), y, client, split, bounds={0: (0, 1)})
    data = FederatedData.from_arrays(csr_matrix(x), y, client, split, bounds={"target": (0, 10)})
    assert data.bounds.target == (0, 10)


def test_a_client_without_training_rows_scales_by_the_bounds():
    x, y, client, split = rows()
    x[20:, 1] = np.nan  # In production, the rows of b are left out.
    data = FederatedData.from_arrays(
        x, y, client, split, bounds={0: (0, 100), "target": (0, 10)}, bad_rows="drop"
    )
    assert data.rows("train").counts.tolist()[1] == 0
    assert data.scaling.means[1, 0] == 50
    assert data.scaling.widths[1, 0] == 50


@pytest.mark.filterwarnings("error")
def test_huge_numbers_of_a_client_are_scaled_without_a_warning():
    """In production a warning would disclose something about one client's rows."""
    client = np.repeat(["a", "b"], 8)
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    x[:8, 0] = [3e38, -3e38] * 4
    x[:8, 1] = 3e38
    parts = np.array(["train", "test"] * 8)
    x[1:8:2, 1] = -3e38  # constant in the training rows, and infinitely far in the others
    data = FederatedData.from_arrays(x, np.zeros(16), client, parts, scale="client")
    assert np.isfinite(data.x).all()
    assert np.abs(data.x).max() <= 4


@pytest.mark.parametrize("bounds", ["", TOML.replace("age", "a").replace("score", "target")])
def test_rows_on_disk_are_scaled_like_rows_in_memory(bounds, tmp_path, monkeypatch):
    """Where rows are depends on how many there are, which one client may decide."""
    monkeypatch.setattr("pmtl.data.checks.CHUNK_BYTES", 40)
    numbers = np.random.default_rng(0).normal(5, 30, (40, 3))
    lines = [f"{k % 4},{a},{b},{abs(c):.0f}" for k, (a, b, c) in enumerate(numbers.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(["client,a,b,target", *lines]))
    (tmp_path / "bounds.toml").write_text(bounds)
    kind = {"scale": "client", "task": "regression"}
    kind |= {"bounds": tmp_path / "bounds.toml"} if bounds else {}
    held = load(tmp_path / "t.csv", **kind)
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "100")
    mapped = load(tmp_path / "t.csv", **kind)
    assert isinstance(mapped.x, np.memmap)
    assert np.array_equal(mapped.x, held.x)
    assert np.array_equal(mapped.y, held.y)
    for name in ("means", "widths", "limits"):
        assert np.array_equal(getattr(mapped.scaling, name), getattr(held.scaling, name))
    assert mapped.for_owner == held.for_owner
    assert mapped.fingerprint() == held.fingerprint()


def test_a_disk_without_room_for_scaled_rows_is_a_sentence(tmp_path, monkeypatch):
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (40, 2))
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr("pmtl.data.scaling.temporary_file", lambda: full)
        with pytest.raises(PmtlError, match=r"No space left on device.*TMPDIR"):
            FederatedData.from_arrays(x, np.zeros(40), np.arange(40) % 4, scale="client")
