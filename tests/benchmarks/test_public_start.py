"""The public start: networks without normalisation, heads solved to the end, one release."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pmtl.models import build_model
from pmtl.privacy.accounting import accountant
from pmtl.privacy.plan import PrivacyPlan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def part(monkeypatch):
    """Imports a file of the folder, whose files import each other by their names."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/public_start"))
    yield importlib.import_module
    for name in ("glyphs", "networks", "start", "basis", "shared_head", "default"):
        sys.modules.pop(name, None)


def glyph_file(tmp_path) -> str:
    """Two fonts of three characters: an L, which has no symmetry, in different widths."""
    pixels = np.zeros((2, 3, 112, 112), dtype=np.uint8)
    for font, character in np.ndindex(2, 3):
        wide = 8 + 4 * character + font
        pixels[font, character, 34:78, 40 : 40 + wide] = 255
        pixels[font, character, 78 - wide : 78, 40:70] = 255
    np.savez(tmp_path / "glyphs.npz", g=pixels)
    return str(tmp_path / "glyphs.npz")


def test_glyphs_become_ink_on_white_paper_the_right_way_up(part, tmp_path):
    drawn = part("glyphs")
    glyphs = drawn.Glyphs(glyph_file(tmp_path), "cpu")
    still = drawn.Style(turn=0, slant=0, size=0, aspect=0, move=0, bend=0)
    images, labels = glyphs.batch(50, still)
    assert images.shape == (50, 1, 28, 28)
    assert set(labels.tolist()) == {0, 1, 2}
    assert images[:, :, 0].min() == 1  # The paper is 1.
    ink = 1 - images[:, 0]
    height = (ink.amax(2) > 0.5).sum(1)
    assert ((height >= 9) & (height <= 13)).all()  # About 11 of 28, as a capital of FEMNIST.
    assert (ink[:, 14:].sum((1, 2)) > 1.2 * ink[:, :14].sum((1, 2))).all()  # The foot is below,
    assert (ink[:, :, :14].sum((1, 2)) > ink[:, :, 14:].sum((1, 2))).all()  # the stem on the left.


def test_what_is_saved_answers_as_what_was_trained(part, tmp_path):
    networks, start = part("networks"), part("start")
    drawn = part("glyphs")
    glyphs = drawn.Glyphs(glyph_file(tmp_path), "cpu")
    start.ROWS = 32
    images, _ = glyphs.batch(300, drawn.Style())
    trained = networks.GlyphNet(norm=True, channels=4, hidden=16, width=8)
    start.train(trained, glyphs, 3, drawn.Style())
    plain = networks.GlyphNet(channels=4, hidden=16, width=8)
    plain.load_state_dict(networks.folded_glyph(trained, images))
    torch.testing.assert_close(plain(images), trained(images), atol=1e-4, rtol=1e-4)
    paper = networks.PaperNet(norm=True)
    start.train(paper, glyphs, 2, drawn.Style())
    model = build_model("femnist_cnn", (28, 28), 62, "classification", seed=0).module
    model.load_state_dict(networks.folded_paper(paper))
    torch.testing.assert_close(model(images), paper(images), atol=1e-4, rtol=1e-4)


def test_features_have_no_preferred_direction(part):
    networks = part("networks")
    torch.manual_seed(0)
    network = networks.GlyphNet(norm=True, channels=4, hidden=16, width=6).eval()
    images = torch.rand(500, 1, 28, 28)
    plain = networks.GlyphNet(channels=4, hidden=16, width=6)
    plain.load_state_dict(networks.folded_glyph(network, images))
    found = plain.features(images).detach()
    variances = torch.linalg.eigvalsh(torch.cov(found.T))
    assert found.mean(0).abs().max() < 1e-2
    assert variances[-1] == pytest.approx(1, abs=1e-2)


def test_a_basis_has_unit_variances_in_the_order_of_importance(part):
    torch.manual_seed(0)
    values = 3 + torch.randn(4000, 5) * torch.tensor([1.0, 10.0, 5.0, 0.5, 2.0])
    basis = part("basis").directions(values, 3)
    found = (values - basis["mean"]) @ basis["directions"]
    torch.testing.assert_close(torch.cov(found.T), torch.eye(3), atol=0.05, rtol=0)
    assert basis["directions"].abs().argmax(0).tolist() == [1, 2, 4]


def some_rows(heads, m=6, n=12, k=4):
    torch.manual_seed(1)
    real = (torch.arange(n) < torch.arange(n - m, n)[:, None]).float()
    x = torch.randn(m, n, k) * real[..., None]
    return heads.Rows(x, torch.randint(3, (m, n)), real, torch.randn(m, n, 3))


def test_a_head_solves_its_problem(part):
    heads = part("shared_head")
    rows, around = some_rows(heads), torch.randn(4, 3)
    found = heads.solve(around, rows, 0.2, steps=300).requires_grad_()
    logs = torch.log_softmax(rows.public + rows.x @ found, -1).gather(2, rows.y[..., None])[..., 0]
    losses = -(logs * rows.real).sum(1) / rows.real.sum(1)
    (losses + 0.1 * (found - around).square().sum((1, 2))).sum().backward()
    assert found.grad.abs().max() < 1e-4


def test_the_release_has_the_noise_of_its_epsilon(part, monkeypatch):
    heads = part("shared_head")
    monkeypatch.setattr(heads, "shrunk", lambda noisy, noise, over: noisy)
    changes = torch.full((50, 100, 80), 9.0)
    exact = heads.release(changes, 0.5, float("inf"), 0)
    assert float(exact.norm()) == pytest.approx(0.5, rel=1e-4)  # Clipped.
    noise = float((heads.release(changes, 0.5, 2.0, 0) - exact).std())
    plan = PrivacyPlan(50, 50, "full", 0.5, noise, 1, 1 / 50)
    assert accountant.epsilon(plan) == pytest.approx(2.0, rel=0.05)


def test_noise_is_shrunk_away_and_signal_is_kept(part):
    heads = part("shared_head")
    torch.manual_seed(0)
    noisy = torch.randn(400, 3)
    noisy[:, 0] += 10
    shrunk = heads.shrunk(noisy, 1.0, 0)
    assert float(shrunk[:, 0].norm() / noisy[:, 0].norm()) > 0.98
    assert float(shrunk[:, 1:].norm()) < 0.3 * float(noisy[:, 1:].norm())


def test_a_gain_has_an_error_over_clients(part):
    heads = part("shared_head")
    rows = heads.Rows(*(torch.ones(4, 5, 1), torch.zeros(4, 5), torch.ones(4, 5), torch.zeros(1)))
    gain, error = heads.paired(torch.tensor([3, 4, 2, 3]), torch.tensor([2, 2, 2, 2]), rows)
    assert gain == pytest.approx(4 / 20)
    assert error == pytest.approx(np.std([1, 2, 0, 1], ddof=1) / np.sqrt(4) / 5)


@pytest.mark.parametrize("name", ["public-start", "public-start-paper"])
def test_the_page_has_the_results(name, part):
    page = (ROOT / "docs/public-start.md").read_text(encoding="utf-8")
    file = ROOT / f"benchmarks/results/{name}.json"
    lines = json.loads(file.read_text(encoding="utf-8"))
    shown = page.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
    assert shown.strip() == part("shared_head").table(lines)
    for line in lines[:2]:  # The public head, and training alone.
        assert f"has {line['test']:.3f}".replace("0.", ".") in page or (
            f"training alone {line['test']:.3f}".replace("0.", ".") in page
        )


def test_the_page_has_the_results_of_the_default_method(part):
    page = (ROOT / "docs/public-start.md").read_text(encoding="utf-8")
    file = ROOT / "benchmarks/results/public-start-default.json"
    name = "public-start-default"
    shown = page.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
    assert shown.strip() == part("default").table(json.loads(file.read_text(encoding="utf-8")))


def test_the_default_method_begins_with_the_public_head(part, tmp_path, monkeypatch):
    """A run of the benchmark on made-up images: the model, what is frozen, and both errors."""
    default, networks = part("default"), part("networks")
    monkeypatch.setattr(default, "SPEC", "clients=6,validation=0")
    random = np.random.default_rng(0)
    x = random.integers(0, 255, (120, 28, 28)).astype(np.uint8)
    y, client = random.permutation(np.arange(120) % 62), np.repeat(np.arange(6), 20)
    split = np.where(np.arange(120) % 4 == 3, "test", "train")
    np.savez(tmp_path / "images.npz", x=x, y=y, client=client, split=split)
    torch.manual_seed(0)
    save_file(networks.GlyphNet().state_dict(), tmp_path / "start.safetensors")
    line = default.measure(
        "glyph", str(tmp_path / "start.safetensors"), str(tmp_path / "images.npz"), 2.0, 0
    )
    assert set(line) >= {"shared", "alone", "personal", "gain", "error", "loss", "loss_error"}
    assert line["gain"] == pytest.approx(line["personal"] - line["alone"], abs=1e-9)
    assert line["error"] >= 0
