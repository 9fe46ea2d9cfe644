"""Random numbers without state: the same for the same name, unrelated for any other."""

import numpy as np
import pytest

from pmtl.streams import name_key, name_keys, subseed, uniforms, words

STREAMS = ("initialisation", "sampling", "batches", "noise")


def test_the_numbers_are_these_for_ever():
    """A resumed run on another machine or a later version must go on to the same bits."""
    assert name_key("sampling") == 0x2DA288132DC7F360
    assert words(7, "sampling", np.arange(3), 5).tolist() == [
        2676280578623851068,
        9913998706384288956,
        3284326171442249003,
    ]
    assert uniforms(7, "sampling", 1, 5) == 9913998706384288956 // 2**11 / 2**53
    assert subseed(0, "initialisation") == 2016200699892844660


def test_the_generator_is_splitmix64s_finaliser_over_the_counters():
    """The same in Python's own integers."""

    def finalise(state):
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    for seed, stream, counters in ((7, "sampling", (2, 5)), (2**64 + 3, "noise", (2**63 + 1,))):
        state = finalise((seed % 2**64) ^ name_key(stream))
        for counter in counters:
            state = finalise(((state + 0x9E3779B97F4A7C15) % 2**64) ^ finalise(counter))
        assert int(words(seed, stream, *(np.uint64(c) for c in counters))) == state


def test_a_number_is_a_function_of_its_name_alone():
    whole = words(3, "batches", np.arange(100)[:, None], np.arange(7))
    assert whole.shape == (100, 7)
    assert whole.dtype == np.uint64
    assert words(3, "batches", 42, 5) == whole[42, 5]
    assert np.array_equal(words(3, "batches", np.arange(50, 60)[:, None], 2)[:, 0], whole[50:60, 2])


def test_seed_stream_and_every_counter_matter_and_so_does_their_order():
    base = words(1, "noise", 2, 3)
    for other in (
        words(2, "noise", 2, 3),
        words(1, "sampling", 2, 3),
        words(1, "noise", 3, 3),
        words(1, "noise", 2, 4),
        words(1, "noise", 3, 2),
        words(1, "noise", 2),
        words(1, "noise", 2, 3, 0),
    ):
        assert other != base


def test_streams_are_unrelated_to_each_other_and_to_neighbouring_seeds_and_rounds():
    """Correlations of 20,000 independent uniforms have deviation 0.0071: five of them."""
    counter = np.arange(20_000)
    samples = [uniforms(0, stream, counter, 0) for stream in STREAMS]
    samples += [uniforms(1, "noise", counter, 0), uniforms(0, "noise", counter, 1)]
    samples += [uniforms(0, "noise", counter + 1, 0)]
    table = np.corrcoef(samples)
    assert abs(table[np.triu_indices(len(samples), 1)]).max() < 5 * 0.0071


def test_uniforms_are_uniform():
    sample = uniforms(5, "sampling", np.arange(100_000))
    assert sample.min() >= 0
    assert sample.max() < 1
    counts = np.histogram(sample, bins=50, range=(0, 1))[0]
    # χ² with 49 degrees of freedom: mean 49, deviation 9.9.
    assert ((counts - 2000) ** 2 / 2000).sum() < 49 + 5 * 9.9


def test_every_bit_of_a_word_is_a_fair_coin():
    drawn = words(5, "batches", np.arange(40_000))
    bits = (drawn[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.0025


def test_no_two_words_of_a_table_are_equal():
    drawn = words(0, "batches", np.arange(1000)[:, None], np.arange(200))
    assert len(np.unique(drawn)) == drawn.size


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1, 2**70, -1])
def test_any_integer_is_a_seed_and_a_subseed_is_never_negative(seed):
    made = subseed(seed, "noise", 3)
    assert 0 <= made < 2**63
    assert isinstance(made, int)
    assert made == subseed(seed, "noise", 3) == int(words(seed, "noise", 3)) >> 1


def test_keys_of_names_are_stable_and_differ():
    names = tuple(f"client {k}" for k in range(5000))
    keys = name_keys(names)
    assert keys.dtype == np.uint64
    assert len(np.unique(keys)) == 5000
    assert keys[17] == name_key("client 17")
    assert name_key("é") != name_key("e")
