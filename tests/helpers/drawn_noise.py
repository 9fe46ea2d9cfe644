"""Standard normal numbers as a gate draws them."""

from pmtl.privacy.noise import Noise, real, seeded_source, system_source


def seeded_noise(seed: int, release: str = "") -> Noise:
    """The noise of an experiment."""
    source = seeded_source(seed, release)
    return lambda round, shape: real(source(round), shape)


def system_noise(round, shape):
    """The noise of production."""
    return real(system_source(round), shape)
