"""NumPy files: every layout gives the same federation, in memory and on disk."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from pmtl.data import load
from pmtl.errors import PmtlError


def arrays(raw):
    return {"x": raw.x, "y": raw.y, "client": raw.client, "split": raw.split}


def sparse_arrays(raw):
    m = sparse.csr_matrix(raw.x)
    parts = {"x_data": m.data, "x_indices": m.indices, "x_indptr": m.indptr, "x_shape": m.shape}
    return {**{k: v for k, v in arrays(raw).items() if k != "x"}, **parts}


def write_folder(folder, columns):
    folder.mkdir()
    for name, array in columns.items():
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_dense(raw, content, expected, tmp_path, save):
    save(tmp_path / "data.npz", **arrays(raw))
    data = load(tmp_path / "data.npz")
    assert content(data) == expected
    assert not isinstance(data.x, np.memmap)
    assert data.source == str(tmp_path / "data.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_larger_than_memory(raw, content, expected, tmp_path, monkeypatch, save, order):
    columns = {**arrays(raw), "x": np.array(raw.x, order=order)}
    save(tmp_path / "data.npz", **columns)
    fingerprint = load(tmp_path / "data.npz").fingerprint()
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "100")
    data = load(tmp_path / "data.npz")
    assert isinstance(data.x, np.memmap)
    assert content(data) == expected
    assert data.fingerprint() == fingerprint


def test_a_memory_map_is_checked_too(raw, tmp_path, monkeypatch):
    x = raw.x.astype(np.float64)
    x[30, 1] = np.nan
    np.savez(tmp_path / "data.npz", **{**arrays(raw), "x": x})
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "100")
    with pytest.raises(PmtlError, match="row 30, column 1"):
        load(tmp_path / "data.npz")


def test_sparse(raw, content, expected, tmp_path):
    np.savez(tmp_path / "data.npz", **sparse_arrays(raw))
    data = load(tmp_path / "data.npz")
    assert sparse.issparse(data.x)
    assert content(data) == expected


def test_folder_is_memory_mapped(raw, content, expected, tmp_path):
    data = load(write_folder(tmp_path / "dense", arrays(raw)))
    assert isinstance(data.x, np.memmap)
    assert content(data) == expected
    data = load(write_folder(tmp_path / "sparse", sparse_arrays(raw)))
    assert sparse.issparse(data.x)
    assert content(data) == expected


def test_text_classes_and_no_split(raw, tmp_path):
    np.savez(tmp_path / "d.npz", x=raw.x, y=np.array(["n", "y"] * 18), client=raw.client)
    data = load(f"{tmp_path / 'd.npz'}:validation=0,test=0.5")
    assert data.labels == ("n", "y")
    assert [len(data.rows(s).order) for s in ("validation", "test")] == [0, 18]


@pytest.mark.parametrize("name", ["y", "client", "split"])
def test_a_single_value_is_no_column(raw, tmp_path, name):
    columns = {**arrays(raw), name: arrays(raw)[name][0]}
    np.savez(tmp_path / "data.npz", **columns)
    for path in (tmp_path / "data.npz", write_folder(tmp_path / "folder", columns)):
        with pytest.raises(PmtlError, match=f"{name} is a single value"):
            load(path)


def test_bytes_that_are_not_utf_8_are_still_names(raw, tmp_path):
    client = np.where(raw.client == "bob", b"b\xff", raw.client.astype("S"))
    np.savez(tmp_path / "d.npz", **{**arrays(raw), "client": client})
    assert load(tmp_path / "d.npz").clients == ("ann", "b\ufffd", "cy")


@pytest.mark.parametrize("name", ["x", "client"])
def test_pickles_are_refused(raw, tmp_path, name):
    columns = {**arrays(raw), name: arrays(raw)[name].astype(object)}
    np.savez(tmp_path / "data.npz", **columns)
    with pytest.raises(PmtlError, match=f"{name}.npy.*Python objects"):
        load(tmp_path / "data.npz")
    with pytest.raises(PmtlError, match=f"{name}.npy.*Python objects"):
        load(write_folder(tmp_path / "folder", columns))


def test_missing_arrays_are_named(raw, tmp_path):
    np.savez(tmp_path / "data.npz", features=raw.x, y=raw.y, client=raw.client)
    with pytest.raises(PmtlError, match=r"no array 'x'.*client, features, y"):
        load(tmp_path / "data.npz")
    with pytest.raises(PmtlError, match="no array 'client'"):
        load(write_folder(tmp_path / "folder", {"x": raw.x, "y": raw.y}))


def test_damaged_files(raw, tmp_path):
    good = tmp_path / "good.npz"
    np.savez_compressed(good, **arrays(raw))
    bad = tmp_path / "bad.npz"
    bad.write_bytes(good.read_bytes()[:-100])
    with pytest.raises(PmtlError, match="not a complete"):
        load(bad)
    flipped = bytearray(good.read_bytes())
    flipped[120:140] = bytes(20)
    bad.write_bytes(bytes(flipped))
    with pytest.raises(PmtlError):
        load(bad)
    folder = write_folder(tmp_path / "folder", arrays(raw))
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-50])
    with pytest.raises(PmtlError, match=r"x.npy.*not a readable"):
        load(folder)
    (folder / "x.npy").write_bytes(b"nonsense")
    with pytest.raises(PmtlError, match=r"x.npy.*not a readable"):
        load(folder)


def test_parts_that_make_no_matrix(raw, tmp_path):
    columns = {**sparse_arrays(raw), "x_shape": np.array([36, 2])}
    np.savez(tmp_path / "data.npz", **columns)
    with pytest.raises(PmtlError, match="CSR matrix"):
        load(tmp_path / "data.npz")
