"""Histograms of oriented gradients: what they see, and how few parameters are left."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.models.hog import HogLinear


def test_a_linear_layer_of_17918_parameters():
    model = build_model("hog", (28, 28), 62, "classification", 0)
    assert model.size == 288 * 62 + 62 == 17_918
    assert not model.start().any()
    assert build_model("hog:cells=2,bins=8", (1, 28, 28), 3, "classification", 0).size == 33 * 3


@pytest.mark.parametrize("direction", range(8))
def test_a_slope_votes_for_its_direction(direction):
    """A plane that rises one way has all its gradients in one bin."""
    angle = direction * math.pi / 4
    y, x = np.mgrid[0:16, 0:16] / 16
    plane = torch.from_numpy(np.cos(angle) * x + np.sin(angle) * y).float()
    features = HogLinear((16, 16), 2, cells=1, bins=8).features(plane.reshape(1, -1))[0]
    # Where the image ends its neighbours are repeated, so a few pixels there lean elsewhere.
    assert int(features.argmax()) == direction
    assert features[direction] > 0.9


def test_a_direction_between_two_bins_votes_for_both():
    y, x = np.mgrid[0:16, 0:16] / 16
    angle = math.pi / 8
    plane = torch.from_numpy(np.cos(angle) * x + np.sin(angle) * y).float()
    features = HogLinear((16, 16), 2, cells=1, bins=8).features(plane.reshape(1, -1))[0]
    assert float(features[0]) == pytest.approx(float(features[1]), rel=0.2)
    assert features[2:].max() < 0.2


def test_cells_see_their_own_part_only():
    image = torch.zeros(1, 28, 28)
    image[0, 2:5, 2:5] = 1.0
    features = HogLinear((28, 28), 2).features(image).view(18, 4, 4)
    assert features[:, 0, 0].any()
    assert not features[:, 1:, :].abs().max() > 1e-5
    assert not features[:, :, 1:].abs().max() > 1e-5


def test_brightness_and_contrast_matter_little():
    image = torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(0))
    hog = HogLinear((28, 28), 2)
    assert torch.allclose(hog.features(image), hog.features(0.3 * image + 0.5), atol=0.02)
    assert torch.isfinite(hog.features(torch.zeros(1, 28, 28))).all()


@pytest.mark.parametrize("options", ["hog:cells=29", "hog:bins=1", "hog:cells=0"])
def test_what_cannot_be_is_refused(options):
    with pytest.raises(PmtlError, match="grey square images"):
        build_model(options, (28, 28), 2, "classification", 0)
    with pytest.raises(PmtlError, match="grey square images"):
        build_model("hog", (7,), 2, "classification", 0)
