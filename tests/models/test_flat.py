"""A module as a function of one vector: nothing lost, nothing shared that no clipping covers."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from pmtl.errors import PmtlError
from pmtl.models import FlatModel, build_model, predictions, probabilities


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 3), nn.GroupNorm(2, 2), nn.Flatten(), nn.Linear(2 * 4 * 4, 3)
    return nn.Sequential(*layers)


def example(rows=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 1, 6, 6, generator=generator)


def test_from_module_to_vector_and_back():
    module = network()
    model = FlatModel(module)
    vector = model.start()
    assert vector.shape == (model.size,) == (sum(p.numel() for p in module.parameters()),)
    for name, value in model.layout.cut(vector).items():
        assert torch.equal(value, dict(module.named_parameters())[name])
    carried = FlatModel(model.with_weights(vector)).start()
    assert torch.equal(carried, vector)


def test_the_order_of_a_linear_model_is_weights_row_by_row_and_then_the_intercepts():
    model = build_model("logistic", (2,), 3, "classification", 0)
    pieces = model.layout.cut(torch.arange(9.0))
    assert pieces["linear.weight"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert pieces["linear.bias"].tolist() == [6, 7, 8]


def test_apply_is_the_module_with_these_weights():
    model = FlatModel(network())
    vector = torch.randn(model.size, generator=torch.Generator().manual_seed(2))
    carried = model.with_weights(vector)
    assert torch.equal(model.apply(vector, example()), carried(example()))
    # And the model's own module is left as it was.
    assert torch.equal(model.start(), FlatModel(network()).start())


def test_gradients_of_apply_are_the_modules_own():
    model = FlatModel(network()).to(torch.device("cpu"), torch.float64)
    vector = torch.randn(model.size, generator=torch.Generator().manual_seed(3)).double()
    x = example().double()
    y = torch.tensor([0, 1, 2, 0, 1])
    ours = grad(lambda w: nn.functional.cross_entropy(model.apply(w, x), y))(vector)
    module = model.with_weights(vector)
    nn.functional.cross_entropy(module(x), y).backward()
    theirs = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    assert theirs.abs().max() > 0.01


def test_many_vectors_at_once_are_one_after_another():
    model = FlatModel(network()).to(torch.device("cpu"), torch.float64)
    vectors = torch.randn(4, model.size, generator=torch.Generator().manual_seed(4)).double()
    inputs = torch.stack([example().double() + k for k in range(4)])
    together = vmap(model.apply)(vectors, inputs)
    for k in range(4):
        alone = model.apply(vectors[k], inputs[k])
        assert torch.allclose(together[k], alone, rtol=0, atol=1e-12)


def test_the_start_is_a_copy():
    model = FlatModel(network())
    model.start().zero_()
    assert model.start().any()


def test_a_module_that_carries_weights_is_ready_to_predict_and_its_own():
    model = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    vector = torch.ones(model.size)
    carried = model.with_weights(vector)
    assert not carried.training
    vector.zero_()
    assert torch.equal(carried[0].weight, torch.ones(2, 2))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.InstanceNorm1d(3, track_running_stats=True)]
)
def test_running_statistics_are_refused_with_what_to_use_instead(layer):
    with pytest.raises(PmtlError, match="GroupNorm") as refused:
        FlatModel(nn.Sequential(nn.Linear(3, 3), layer))
    assert type(layer).__name__ in str(refused.value)
    assert "no clipping covers" in str(refused.value)


class RunningMean(nn.Module):
    """Batch normalisation by another name: it remembers its inputs in a buffer."""

    def __init__(self, first, replace):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.replace = replace
        self.register_buffer("running", torch.full((3,), first))

    def forward(self, x):
        if self.training:
            moved = 0.9 * self.running + 0.1 * x.mean(dim=0).detach()
            if self.replace:
                self.running = moved
            else:
                self.running.copy_(moved)
        return self.linear(x - self.running)


@pytest.mark.parametrize("replace", [False, True], ids=["in place", "replaced"])
@pytest.mark.parametrize("first", [1.0, 0.0])
def test_a_home_made_running_buffer_is_refused_wherever_it_begins(first, replace):
    with pytest.raises(PmtlError, match=r"'running' of the model changes.*GroupNorm"):
        build_model(lambda: RunningMean(first, replace), (3,), 2, "classification", 0)


def test_a_buffer_that_never_changes_is_welcome():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("mean", torch.ones(3))

        def forward(self, x):
            return self.linear(x - self.mean)

    model = build_model(Centred, (3,), 2, "classification", 0)
    assert model.size == 8  # the buffer is not in the vector, and so is never shared
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.with_weights(model.start())(x), model.module(x))


def test_a_model_without_parameters_is_refused():
    with pytest.raises(PmtlError, match="nothing to train"):
        FlatModel(nn.Flatten(), "flat")


def test_predictions_are_a_class_a_mark_per_label_or_a_number():
    outputs = torch.tensor([[0.5, -1.0, 2.0], [-0.1, -0.2, -0.3]])
    assert predictions("classification")(outputs).tolist() == [2, 0]
    assert predictions("multilabel")(outputs).tolist() == [[1, 0, 1], [0, 0, 0]]
    assert torch.equal(predictions("regression")(outputs), outputs)


def test_probabilities_of_classes_sum_to_one_and_those_of_labels_stand_alone():
    outputs = torch.tensor([[0.0, -1.0, 2.0], [1.0, 1.0, 1.0]])
    classes, labels = (probabilities(task)(outputs) for task in ("classification", "multilabel"))
    assert torch.allclose(classes.sum(-1), torch.ones(2))
    assert torch.allclose(classes[1], torch.full((3,), 1 / 3))
    assert torch.equal(labels > 0.5, outputs > 0)
    with pytest.raises(PmtlError, match="no probabilities"):
        probabilities("regression")


def test_frozen_layers_are_part_of_the_function_and_not_of_the_vector():
    """Fixed features and a linear head: only the head is trained, clipped, noised and shared."""
    torch.manual_seed(0)
    features, head = nn.Linear(4, 16), nn.Linear(16, 3)
    features.requires_grad_(False)
    model = FlatModel(nn.Sequential(features, nn.ReLU(), head))
    assert model.size == 16 * 3 + 3
    x = torch.randn(5, 4)
    vector = model.start()
    assert torch.allclose(model.apply(vector, x), model.module(x))
    assert torch.equal(model.apply(0 * vector, x), torch.zeros(5, 3))
    moved = model.with_weights(vector + 1)
    assert torch.equal(moved[0].weight, features.weight)
    assert torch.allclose(moved(x), model.apply(vector + 1, x))


def test_batch_normalisation_without_running_statistics_is_refused_too():
    """It would mix padded rows into a client's own."""
    with pytest.raises(PmtlError, match="GroupNorm"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)))
