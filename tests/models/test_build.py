"""From a spec to a model that fits the data, or to a sentence that says why not."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from pmtl.errors import PmtlError
from pmtl.models import MODELS, build_model


@pytest.mark.parametrize(
    ("spec", "shape", "outputs", "parameters"),
    [
        ("femnist_cnn", (28, 28), 62, 115_646),
        ("femnist_cnn", (1, 28, 28), 62, 115_646),
        ("celeba_cnn", (3, 84, 84), 2, 30_498),
        ("logistic", (10_000,), 500, 5_000_500),
        ("logistic", (4, 5), 3, 63),
        ("mlp", (10,), 3, 10 * 64 + 64 + 64 * 3 + 3),
        ("mlp:hidden=7,layers=2", (10,), 3, 77 + 56 + 24),
    ],
)
def test_the_papers_models_have_the_papers_sizes(spec, shape, outputs, parameters):
    model = build_model(spec, shape, outputs, "classification", 0)
    assert model.size == parameters
    assert model.module(torch.zeros(2, *shape)).shape == (2, outputs)


def test_a_linear_model_begins_at_zero_and_others_at_their_seed():
    assert not build_model("logistic", (4,), 3, "classification", 0).start().any()
    one, again, other = (
        build_model("mlp", (4,), 3, "classification", s).start() for s in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    build_model("mlp", (4,), 3, "classification", 0)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("task", "name"),
    [("regression", "linear"), ("classification", "logistic"), ("multilabel", "logistic")],
)
def test_auto_is_the_linear_model_of_the_task(task, name):
    assert build_model("auto", (4,), 3, task, 0).name == name


@pytest.mark.parametrize(
    ("name", "task", "better"),
    [
        ("linear", "classification", "logistic"),
        ("linear", "multilabel", "logistic"),
        ("logistic", "regression", "linear"),
    ],
)
def test_a_model_for_another_task_is_refused_with_the_right_one(name, task, better):
    with pytest.raises(PmtlError, match=f"{name!r} does not fit a {task} target: use {better!r}"):
        build_model(name, (4,), 3, task, 0)


def test_an_unknown_model_is_answered_with_its_neighbour_and_all_that_exist():
    with pytest.raises(PmtlError, match="Did you mean 'logistic'") as refused:
        build_model("logistc", (4,), 3, "classification", 0)
    assert all(name in str(refused.value) for name in (*MODELS, "package.module:Name"))
    with pytest.raises(PmtlError, match=r"no option of model mlp named 'hiden'.*Did you mean"):
        build_model("mlp:hiden=4", (4,), 3, "classification", 0)
    with pytest.raises(
        PmtlError, match="hidden of model mlp must be a whole number, but 'many' was given"
    ):
        build_model("mlp:hidden=many", (4,), 3, "classification", 0)
    with pytest.raises(PmtlError, match="hidden ≥ 1"):
        build_model("mlp:hidden=0", (4,), 3, "classification", 0)


@pytest.mark.parametrize(("name", "shape"), [("femnist_cnn", (28, 27)), ("celeba_cnn", (84, 84))])
def test_images_of_another_shape_are_refused_in_a_sentence(name, shape):
    with pytest.raises(PmtlError, match=f"The model '{name}' reads images of shape") as refused:
        build_model(name, shape, 2, "classification", 0)
    assert str(shape) in str(refused.value)


FACTORIES = """
import torch
from torch import nn

def sized(input_shape, outputs, width=4, bias: bool = True, scale=1.0):
    made = nn.Sequential(
        nn.Linear(input_shape[0], width, bias=bias), nn.ReLU(), nn.Linear(width, outputs)
    )
    made.scale = scale
    return made

def fixed():
    return nn.Linear(3, 2)

class Whole(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.linear = nn.Linear(3, outputs)

    def forward(self, x):
        return self.linear(x)

def demanding(width):
    return nn.Linear(3, 2)

class Shifted(nn.Linear):
    def __init__(self):
        super().__init__(5, 2)
        self.register_buffer("shift", torch.ones(5))

    def forward(self, x):
        return super().forward(x - self.shift)

def no_module():
    return 3

number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of the user's with a module in it, in which the program was started."""
    (tmp_path / "users_models").mkdir()
    (tmp_path / "users_models" / "nets.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "users_models.nets"
    for name in [name for name in sys.modules if name.startswith("users_models")]:
        del sys.modules[name]


def build(spec, shape=(3,), outputs=2):
    return build_model(spec, shape, outputs, "classification", 0)


class TestAUsersOwnModel:
    def test_it_is_found_from_the_folder_and_given_the_sizes_it_asks_for(self, here):
        model = build(f"{here}:sized", (5,), 3)
        assert model.size == 5 * 4 + 4 + 4 * 3 + 3
        assert model.name == f"{here}:sized"
        assert build(f"{here}:fixed").size == 8
        assert build(f"{here}:Whole", (3,), 7).size == 28

    def test_options_become_the_types_of_its_parameters(self, here):
        model = build(f"{here}:sized:width=6,bias=false,scale=2", (5,), 3)
        assert model.size == 5 * 6 + 6 * 3 + 3
        assert model.module.scale == 2.0
        assert isinstance(model.module.scale, float)
        with pytest.raises(PmtlError, match=r"There is no option of model .* named 'depth'"):
            build(f"{here}:sized:depth=6")
        with pytest.raises(PmtlError, match="must be a whole number, but 'wide' was given"):
            build(f"{here}:sized:width=wide")

    def test_a_factory_may_be_handed_over_as_it_is(self):
        model = build(lambda input_shape, outputs: nn.Linear(input_shape[0], outputs), (4,), 3)
        assert model.size == 15

    def test_what_cannot_be_imported_is_told_in_a_sentence(self, here):
        with pytest.raises(PmtlError, match="cannot be imported"):
            build("users_models.nothing:factory")
        with pytest.raises(PmtlError, match="has no 'nothing'"):
            build(f"{here}:nothing")
        with pytest.raises(PmtlError, match="is not callable"):
            build(f"{here}:number")
        with pytest.raises(PmtlError, match="returned a int, not a module"):
            build(f"{here}:no_module")

    def test_a_model_that_cannot_read_the_rows_is_refused_with_their_shape(self, here):
        with pytest.raises(PmtlError, match=r"cannot read rows of shape \(4,\)"):
            build(f"{here}:fixed", (4,))

    def test_a_model_with_a_buffer_that_cannot_read_the_rows_is_refused_in_the_same_words(
        self, here
    ):
        with pytest.raises(PmtlError, match=r"cannot read rows of shape \(4,\)"):
            build(f"{here}:Shifted", (4,))

    def test_a_model_with_another_number_of_outputs_is_refused(self, here):
        with pytest.raises(PmtlError, match=r"shape \(2, 2\), but this data needs \(2, 3\)"):
            build(f"{here}:fixed", (3,), 3)

    def test_a_factory_that_lacks_an_argument_is_told_which(self, here):
        with pytest.raises(PmtlError, match="width"):
            build(f"{here}:demanding")
        assert build(f"{here}:demanding:width=3").size == 8


class FunctionalDropout(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class OtherDropout(nn.Linear):
    def __init__(self, numbers):
        super().__init__(3, 2)
        self.numbers = numbers

    def forward(self, x):
        return super().forward(x * (self.numbers(3) > 0.5))


def of_numpy(size):
    return torch.from_numpy(np.random.default_rng().random(size)).float()


def of_a_generator(size, generator=torch.Generator().manual_seed(1)):  # noqa: B008
    return torch.rand(size, generator=generator)


@pytest.mark.parametrize("numbers", [of_numpy, of_a_generator])
def test_random_numbers_that_do_not_follow_torchs_seed_are_refused(numbers):
    """With one seed, two runs would train differently and have the same noise."""
    with pytest.raises(PmtlError, match="torch's seed does not decide"):
        build(lambda: OtherDropout(numbers))
    assert build(lambda: OtherDropout(torch.rand)).traits.random_forward


def test_dropout_is_noticed_where_it_is_a_function_and_no_layer():
    assert build(FunctionalDropout).traits.random_forward
    assert not build("logistic").traits.random_forward
