"""Where the paper's data sets are to be had: official places, and what their files must hash to.

A checksum is given where the publisher gives one. TensorFlow Federated's are those in its own
loaders (`simulation/datasets/emnist.py` and `stackoverflow.py`, releases that read HDF5). NIST
publishes none.
"""

from __future__ import annotations

from dataclasses import dataclass

from pmtl.spec import unknown

_TFF = "https://storage.googleapis.com/tff-datasets-public"
_NIST = "https://s3.amazonaws.com/nist-srd/SD19"


@dataclass(frozen=True)
class Source:
    """One file to download. An archive is unpacked into `holds`, and then removed."""

    url: str
    sha256: str | None = None
    holds: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the file is called on disk."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    """A data set: its files, or what a person has to do where no program may fetch it."""

    sources: tuple[Source, ...]
    about: str
    next: str
    """What to do with it; {folder} is where it is."""
    by_hand: str | None = None


CATALOGUE: dict[str, DataSet] = {
    "femnist": DataSet(
        (
            Source(
                f"{_TFF}/fed_emnist.tar.bz2",
                "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
                ("fed_emnist_train.h5", "fed_emnist_test.h5"),
            ),
        ),
        "FEMNIST, 3,400 writers and 62 classes, as TensorFlow Federated publishes it",
        "pmtl train --data {folder}:min_rows=100,clients=205 --model femnist_cnn",
    ),
    "femnist-nist": DataSet(
        (Source(f"{_NIST}/by_class.zip"), Source(f"{_NIST}/by_write.zip")),
        "NIST Special Database 19, from which LEAF's scripts make FEMNIST",
        "unpack both in LEAF's data/femnist/data/raw_data, run its preprocess.sh -s niid --sf 0.05 "
        "-k 100 -t sample, and give pmtl LEAF's folder data/femnist",
    ),
    "stackoverflow": DataSet(
        (
            Source(
                f"{_TFF}/stackoverflow.word_count.tar.bz2",
                "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
                ("stackoverflow.word_count",),
            ),
            Source(
                f"{_TFF}/stackoverflow.tag_count.tar.bz2",
                "6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
                ("stackoverflow.tag_count",),
            ),
            Source(
                f"{_TFF}/stackoverflow.tar.bz2",
                "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
                ("stackoverflow_train.h5", "stackoverflow_held_out.h5", "stackoverflow_test.h5"),
            ),
        ),
        "StackOverflow's questions and answers (CC BY-SA 3.0), as TensorFlow Federated publishes "
        "them: many gigabytes",
        "pmtl train --data {folder}:clients=400 --model logistic",
    ),
    "celeba": DataSet(
        (),
        "CelebA, faces by celebrity, for LEAF's task of telling who smiles",
        "pmtl train --data leaf/data/celeba --model celeba_cnn",
        by_hand="CelebA is for non-commercial research under an agreement that a person has to "
        "accept, so it is not fetched by a program. (1) From its official page, "
        "http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, get img_align_celeba.zip, "
        "identity_CelebA.txt (to be asked for there) and list_attr_celeba.txt. (2) In a copy of "
        "LEAF (https://github.com/TalwalkarLab/leaf) put the two text files into "
        "data/celeba/data/raw and the images into data/celeba/data/raw/img_align_celeba. (3) In "
        "data/celeba run ./preprocess.sh -s niid --sf 0.05 -k 5 -t sample. (4) Give pmtl that "
        "folder: pmtl train --data leaf/data/celeba --model celeba_cnn.",
    ),
}


def data_set(name: str) -> DataSet:
    """The data set of that name."""
    if name not in CATALOGUE:
        raise unknown("data set to fetch named", name, CATALOGUE)
    return CATALOGUE[name]
