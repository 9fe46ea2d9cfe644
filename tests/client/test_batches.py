"""Who trains on which rows: every row once an epoch, and no one else has a say in it."""

from itertools import chain

import numpy as np
import pytest

from pmtl.client.batches import Batches, LocalTraining
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.options import declared, rounds_only
from pmtl.streams import name_keys

SIZES = (3, 10, 25, 7, 1)
EVERYBODY = np.arange(len(SIZES))


def federation(sizes=SIZES):
    names = np.repeat([f"client {k}" for k in range(len(sizes))], sizes)
    owner = np.random.default_rng(0).permutation(names)
    split = np.full(len(owner), "train")
    return FederatedData.from_arrays(np.eye(len(owner)), owner, owner, split, validation=0.0)


def batches(seed=5, data=None, keys=None, **local):
    data = data or federation()
    keys = name_keys(data.clients) if keys is None else keys
    return Batches(data.rows("train"), LocalTraining(**local), seed, keys), data.rows("train")


def steps_of(drawn, k):
    """The real rows of every step of the k-th client drawn; steps without any are left out."""
    index, real = drawn
    return [index[k, s][real[k, s]].tolist() for s in range(index.shape[1]) if real[k, s].any()]


def flat(steps):
    return list(chain.from_iterable(steps))


@pytest.mark.parametrize("batch", [1, 4, 10, 1000, 0])
@pytest.mark.parametrize("round", [0, 3])
def test_every_row_comes_exactly_once_in_every_epoch(batch, round):
    source, rows = batches(epochs=3, batch=batch)
    drawn = source.draw(EVERYBODY, round)
    for k, n in enumerate(SIZES):
        steps = steps_of(drawn, k)
        per_epoch = -(-n // batch) if batch else 1
        assert len(steps) == 3 * per_epoch
        for epoch in range(3):
            seen = flat(steps[epoch * per_epoch : (epoch + 1) * per_epoch])
            assert sorted(seen) == sorted(rows.of(k).tolist())


def test_the_last_batch_of_an_epoch_is_short_and_never_straddles_two():
    source, _ = batches(epochs=2, batch=4)
    drawn = source.draw(EVERYBODY, 0)
    sizes = [[len(step) for step in steps_of(drawn, k)] for k in EVERYBODY]
    assert sizes == [[3, 3], [4, 4, 2] * 2, [4, 4, 4, 4, 4, 4, 1] * 2, [4, 3] * 2, [1, 1]]


def test_the_mask_marks_real_rows_first_and_steps_after_the_end_have_none():
    source, rows = batches(epochs=2, batch=4)
    index, real = source.draw(EVERYBODY, 0)
    assert index.shape == real.shape == (5, 14, 4)
    assert (np.diff(real.astype(int), axis=2) <= 0).all()
    active = real.any(axis=2)
    assert (np.diff(active.astype(int), axis=1) <= 0).all()
    assert active.sum(axis=1).tolist() == [2, 6, 14, 4, 2]
    # Padding, too, is one of the client's own rows, never another's.
    for k in EVERYBODY:
        assert set(index[k].ravel()) <= set(rows.of(k))


def test_batch_zero_is_all_rows_at_once():
    source, rows = batches(steps=3, batch=0)
    drawn = source.draw(EVERYBODY, 2)
    assert source.size == max(SIZES)
    for k in EVERYBODY:
        assert [sorted(step) for step in steps_of(drawn, k)] == [sorted(rows.of(k).tolist())] * 3


def test_steps_mean_that_many_for_everybody_through_as_many_epochs_as_it_takes():
    source, rows = batches(steps=5, batch=4)
    drawn = source.draw(EVERYBODY, 0)
    assert drawn[0].shape == (5, 5, 4)
    assert [len(steps_of(drawn, k)) for k in EVERYBODY] == [5] * 5
    # 10 rows in batches of 4: an epoch is 4 + 4 + 2, and the next begins with a full batch.
    steps = steps_of(drawn, 1)
    assert [len(step) for step in steps] == [4, 4, 2, 4, 4]
    assert sorted(flat(steps[:3])) == sorted(rows.of(1).tolist())
    assert len(set(flat(steps[3:]))) == 8


def test_shuffles_differ_between_epochs_rounds_clients_and_seeds():
    source, rows = batches(epochs=2, batch=5)
    place = {row: spot for spot, row in enumerate(rows.of(2).tolist())}
    first, second = np.split(np.array(flat(steps_of(source.draw(EVERYBODY, 0), 2))), 2)
    other, _ = batches(seed=6, epochs=2, batch=5)
    later = flat(steps_of(source.draw(EVERYBODY, 1), 2))[:25]
    other_seed = flat(steps_of(other.draw(EVERYBODY, 0), 2))[:25]
    orders = [[place[row] for row in order] for order in (first, second, later, other_seed)]
    orders.append(list(range(25)))
    assert len({tuple(order) for order in orders}) == 5
    # Two clients of one size do not share a shuffle.
    data = federation((12, 12))
    twins, rows = batches(data=data, epochs=1, batch=4)
    drawn = twins.draw(np.arange(2), 0)
    spots = [[rows.of(k).tolist().index(row) for row in flat(steps_of(drawn, k))] for k in (0, 1)]
    assert spots[0] != spots[1]


def test_a_shuffle_is_uniform():
    """The row that comes first, over 3000 rounds of a client with 10 rows: 300 ± 5 deviations."""
    source, rows = batches(epochs=1, batch=4)
    first = [source.draw(np.array([1]), t)[0][0, 0, 0] for t in range(3000)]
    counts = [first.count(row) for row in rows.of(1)]
    assert sum(counts) == 3000
    assert max(abs(count - 300) for count in counts) < 5 * (3000 * 0.1 * 0.9) ** 0.5


@pytest.mark.parametrize("local", [{"epochs": 2, "batch": 4}, {"steps": 6, "batch": 8}])
def test_a_clients_batches_do_not_depend_on_who_else_was_drawn(local):
    """Row for row, in their order: a sum in another order has other last bits."""
    source, _ = batches(**local)
    together = source.draw(EVERYBODY, 3)
    some = source.draw(np.array([1, 3]), 3)
    for k in EVERYBODY:
        alone = steps_of(source.draw(np.array([k]), 3), 0)
        assert alone == steps_of(together, k)
    assert steps_of(some, 0) == steps_of(together, 1)
    assert steps_of(some, 1) == steps_of(together, 3)


def test_a_clients_batches_go_by_its_key_and_not_by_its_place():
    data = federation((12, 12, 12))
    keys = name_keys(data.clients)
    one, rows = batches(data=data, epochs=1, batch=4)
    two, _ = batches(data=data, keys=keys[::-1].copy(), epochs=1, batch=4)

    def spots(source, k):
        steps = steps_of(source.draw(np.arange(3), 0), k)
        return [rows.of(k).tolist().index(row) for row in flat(steps)]

    assert spots(one, 0) == spots(two, 2)
    assert spots(one, 0) != spots(two, 0)


def test_a_draw_has_no_memory():
    source, _ = batches(epochs=2, batch=4)
    index, real = source.draw(EVERYBODY, 7)
    source.draw(EVERYBODY, 1)
    again = source.draw(EVERYBODY, 7)
    assert np.array_equal(index, again[0])
    assert np.array_equal(real, again[1])


def test_the_step_size_is_halved_again_and_again():
    local = LocalTraining(lr=0.8, halve_every=3)
    assert [local.lr_at(t) for t in range(8)] == [0.8] * 3 + [0.4] * 3 + [0.2] * 2
    assert LocalTraining(lr=0.8).lr_at(1000) == 0.8


@pytest.mark.parametrize("name", declared(LocalTraining))
def test_a_step_size_that_depends_on_the_round_is_not_for_fine_tuning(name):
    """Fine-tuning trains with the step size of the first round."""
    local = LocalTraining(**{name: 3})
    depends = len({local.lr_at(round) for round in range(50)}) > 1
    assert not depends or name in rounds_only(LocalTraining)


def test_without_a_word_a_client_takes_ten_steps_and_epochs_take_their_place():
    assert LocalTraining().steps == 10
    assert LocalTraining().epochs is None
    assert LocalTraining(epochs=2).steps is None


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"halve_every": 0}, "halve_every must be at least 1"),
        ({"steps": 3, "epochs": 3}, "give one of them"),
        ({"batch": -1}, "batch must be at least 0"),
        ({"lr": 0.0}, "lr must be greater than 0"),
        ({"lr": -0.1}, "lr must be greater than 0"),
        ({"lr": float("nan")}, "lr must be a number"),
        ({"lr": float("inf")}, "lr must be finite"),
    ],
)
def test_local_training_that_makes_no_sense_is_refused_in_a_sentence(wrong, sentence):
    with pytest.raises(PmtlError, match=sentence):
        LocalTraining(**wrong)
