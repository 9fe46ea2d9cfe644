"""LEAF's JSON in all the ways it is shipped, and its images."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pmtl.data import load
from pmtl.errors import PmtlError

USERS = ("ann", "bob", "cy")


def shard(raw, split=None, users=USERS, rows=None):
    picked = {user: raw.of(user, split) if rows is None else rows[user] for user in users}
    return {
        "users": list(picked),
        "num_samples": [len(index) for index in picked.values()],
        "user_data": {
            user: {"x": raw.x[index].tolist(), "y": raw.y[index].tolist()}
            for user, index in picked.items()
        },
    }


def write(path: Path, content) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def write_splits(folder, raw):
    for split in ("train", "test"):
        write(folder / split / "shard_0.json", shard(raw, split, ("cy", "bob")))
        write(folder / split / "shard_1.json", shard(raw, split, ("ann",)))
    return folder


def test_one_file_is_split_by_us(raw, content, tmp_path):
    np.savez(tmp_path / "d.npz", x=raw.x, y=raw.y, client=raw.client)
    data = load(write(tmp_path / "all.json", shard(raw)))
    assert content(data) == content(load(tmp_path / "d.npz"))


def test_folders_train_and_test(raw, content, expected, tmp_path):
    assert content(load(write_splits(tmp_path / "plain", raw))) == expected
    write_splits(tmp_path / "femnist" / "data", raw)
    write(tmp_path / "femnist" / "data" / "all_data" / "all_data_0.json", shard(raw))
    write(tmp_path / "femnist" / "data" / "notes.json", "{}")
    assert content(load(tmp_path / "femnist")) == expected
    assert content(load(tmp_path / "femnist" / "data")) == expected


def test_zip(raw, content, expected, tmp_path):
    for inside in ("", "femnist/", "femnist/data/"):
        folder = write_splits(tmp_path / f"at{len(inside)}", raw)
        path = tmp_path / f"data{len(inside)}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("__MACOSX/x.json", "not JSON")
            for file in folder.rglob("*.json"):
                archive.write(file, inside + file.relative_to(folder).as_posix())
        assert content(load(path)) == expected


def test_a_user_in_two_shards_is_one_client(raw, content, tmp_path):
    first = {user: raw.of(user)[:4] for user in USERS}
    second = {user: raw.of(user)[4:] for user in USERS}
    write(tmp_path / "shards" / "a.json", shard(raw, rows=first))
    write(tmp_path / "shards" / "b.json", shard(raw, rows=second))
    whole = load(write(tmp_path / "all.json", shard(raw)))
    assert content(load(tmp_path / "shards")) == content(whole)


def test_larger_than_memory(raw, content, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "100")
    data = load(write_splits(tmp_path / "d", raw))
    assert isinstance(data.x, np.memmap)
    assert content(data) == expected


def images(tmp_path, n=6):
    rng = np.random.default_rng(0)
    (tmp_path / "img").mkdir()
    pixels = []
    for i in range(n):
        pixels.append(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        Image.fromarray(pixels[-1]).save(tmp_path / "img" / f"{i}.png")
    names = [f"{i}.png" for i in range(n)]
    content = {
        "users": ["u"],
        "num_samples": [n],
        "user_data": {"u": {"x": names, "y": [0, 1] * (n // 2)}},
    }
    return write(tmp_path / "celeba.json", content), np.stack(pixels)


def test_images(tmp_path, monkeypatch):
    path, pixels = images(tmp_path)
    data = load(f"{path}:images={tmp_path / 'img'},size=8")
    assert data.x.dtype == np.uint8
    assert (data.x == pixels.transpose(0, 3, 1, 2)).all()
    assert load(f"{path}:images={tmp_path / 'img'}").input_shape == (3, 84, 84)
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", "100")
    mapped = load(f"{path}:images={tmp_path / 'img'},size=8")
    assert isinstance(mapped.x, np.memmap)
    assert mapped.fingerprint() == data.fingerprint()


def test_image_troubles(tmp_path, monkeypatch):
    path, _ = images(tmp_path)
    with pytest.raises(PmtlError, match=r"names of images.*images=FOLDER"):
        load(path)
    with pytest.raises(PmtlError, match="which does not exist"):
        load(f"{path}:images={tmp_path / 'nowhere'}")
    (tmp_path / "img" / "3.png").write_bytes(b"not a picture")
    with pytest.raises(PmtlError, match=r"3\.png cannot be read"):
        load(f"{path}:images={tmp_path / 'img'}")
    (tmp_path / "img" / "3.png").unlink()
    with pytest.raises(PmtlError, match=r"'3\.png' is not in"):
        load(f"{path}:images={tmp_path / 'img'}")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PmtlError, match=r"pmtl\[images\]"):
        load(f"{path}:images={tmp_path / 'img'}")


def leaf_celeba(tmp_path):
    """CelebA as LEAF's scripts leave it: names of images, classes written 0.0 and 1.0."""
    home = tmp_path / "celeba"
    raw_images = home / "data" / "raw" / "img_align_celeba"
    raw_images.mkdir(parents=True)
    rng = np.random.default_rng(1)
    names = [f"{i:06d}.jpg" for i in range(1, 13)]
    for name in names:
        pixels = rng.integers(0, 256, (218, 178, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(raw_images / name)
    for split, part in (("train", slice(0, 5)), ("test", slice(5, 6))):
        data = {
            user: {"x": mine[part], "y": [float(i % 2) for i in range(6)][part]}
            for user, mine in (("2820", names[:6]), ("3227", names[6:]))
        }
        shard = {"users": list(data), "num_samples": [len(d["y"]) for d in data.values()]}
        shard |= {"hierarchies": [], "user_data": data}
        write(home / "data" / split / f"all_data_niid_05_keep_5_{split}_9.json", shard)
    return home


def test_celeba_as_leaf_leaves_it(tmp_path):
    home = leaf_celeba(tmp_path)
    data = load(home)
    assert (data.input_shape, data.x.dtype) == ((3, 84, 84), np.uint8)
    assert (data.task, data.outputs, data.clients) == ("classification", 2, ("2820", "3227"))
    assert data.rows("test").counts.tolist() == [1, 1]
    with Image.open(home / "data" / "raw" / "img_align_celeba" / "000006.jpg") as image:
        wanted = np.asarray(image.convert("RGB").resize((84, 84))).transpose(2, 0, 1)
    assert (data.x[data.rows("test").of(0)[0]] == wanted).all()
    assert load(home / "data").fingerprint() == data.fingerprint()
    (home / "data" / "raw" / "img_align_celeba").rename(tmp_path / "elsewhere")
    with pytest.raises(PmtlError, match=r"names of images.*no folder data/raw/img_align_celeba"):
        load(home)
    assert load(f"{home}:images={tmp_path / 'elsewhere'}").fingerprint() == data.fingerprint()


def test_shakespeare_is_told_from_celeba(tmp_path):
    rows = {"x": ["to be, or not to b", "o be, or not to be"], "y": ["e", ":"]}
    content = {"users": ["HAMLET"], "num_samples": [2], "user_data": {"HAMLET": rows}}
    with pytest.raises(PmtlError, match=r"'HAMLET'.*is text.*text tasks are not supported"):
        load(write(tmp_path / "d.json", content))


def broken(raw, change):
    content = shard(raw)
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["user_data"].pop("bob"), "'bob'.*not in its 'user_data'"),
        (lambda c: (c["users"].pop(1), c["num_samples"].pop(1)), "'bob'.*not in its list 'users'"),
        (lambda c: c["users"].append("ann"), "'ann' twice"),
        (lambda c: c["num_samples"].__setitem__(2, 99), "'cy'.*15 x and 15 y.*says 99"),
        (lambda c: c["num_samples"].pop(), "num_samples"),
        (lambda c: c["user_data"]["bob"]["y"].pop(), "'bob'.*12 x and 11 y"),
        (lambda c: c["user_data"]["bob"].pop("x"), "'bob'.*lists 'x' and 'y'"),
        (lambda c: c.pop("user_data"), "no 'user_data'"),
        (lambda c: c.pop("users"), "no list 'users'"),
        (lambda c: c["user_data"]["bob"]["x"][3].pop(), "'bob'.*one length"),
        (lambda c: [row.pop() for row in c["user_data"]["bob"]["x"]], r"'bob'.*\(3,\).*\(4,\)"),
        (lambda c: c["user_data"]["bob"]["x"].__setitem__(0, "to be or"), "'bob'.*text"),
        (lambda c: c["user_data"]["bob"]["x"].__setitem__(2, ["7", "@me", "hi"]), "'bob'.*text"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, "a"), "y of the user 'bob'"),
        (lambda c: c["user_data"]["bob"]["y"].__setitem__(0, None), "y of the user 'bob'"),
    ],
)
def test_shards_that_contradict_themselves(raw, tmp_path, change, words):
    path = write(tmp_path / "shard_7.json", broken(raw, change))
    with pytest.raises(PmtlError, match=words) as caught:
        load(path)
    assert "shard_7.json" in str(caught.value)


def test_json_cut_short_names_the_shard(raw, tmp_path):
    folder = write_splits(tmp_path / "d", raw)
    text = (folder / "train" / "shard_1.json").read_text()
    write(folder / "train" / "shard_1.json", text[: len(text) // 2])
    with pytest.raises(PmtlError, match=r"shard_1\.json is not valid JSON"):
        load(folder)
    write(folder / "train" / "shard_1.json", "[]")
    with pytest.raises(PmtlError, match=r"shard_1\.json is not a LEAF shard"):
        load(folder)


def test_a_user_whose_name_no_file_can_hold(tmp_path):
    rows = {"x": [[1.0]] * 3, "y": [0, 1, 0]}
    content = {"users": ["\ud800a"], "num_samples": [3], "user_data": {"\ud800a": rows}}
    with pytest.raises(PmtlError, match=r"client '\\ud800a' is not valid Unicode"):
        load(write(tmp_path / "d.json", content))


def test_users_who_only_test(raw, tmp_path):
    write(tmp_path / "d" / "train" / "a.json", shard(raw, "train", ("ann", "bob")))
    write(tmp_path / "d" / "test" / "a.json", shard(raw, "test"))
    with pytest.raises(PmtlError, match=r"'cy'.*test but never in train"):
        load(tmp_path / "d")


def test_places_without_leaf_data(raw, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(PmtlError, match=r"empty holds no data: .* To read a table, name the file"):
        load(tmp_path / "empty")
    (tmp_path / "bad.zip").write_bytes(b"zip?")
    with pytest.raises(PmtlError, match="not a complete zip"):
        load(tmp_path / "bad.zip")
    nobody = {"users": [], "num_samples": [], "user_data": {}}
    with pytest.raises(PmtlError, match="no rows"):
        load(write(tmp_path / "nobody.json", nobody))
