import functools
import subprocess
import sys

import pytest
import torch
from torch import nn

from fedapp import models
from fedapp.config import RunConfig, SettingError
from fedapp.datasets import DATASETS


class Halves(nn.Module):
    def __init__(self, num_classes=3, input_shape=(1, 4, 4), feature_dim=5):
        super().__init__()
        self.encoder = nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], feature_dim)
        self.head = nn.Linear(feature_dim, num_classes)

    def features(self, x):
        return self.encoder(x.flatten(1))


@pytest.fixture(autouse=True)
def restored_table():
    before = dict(models.MODELS)
    yield
    models.MODELS.clear()
    models.MODELS.update(before)


def test_listing_the_models_imports_neither_torch_nor_torchvision():
    code = "import fedapp.models, sys; sys.exit('torch' in sys.modules or 'torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_building_a_small_model_does_not_import_torchvision():
    code = (
        "import sys; from fedapp.models import build\n"
        "build('small-cnn', num_classes=2, input_shape=(1, 8, 8)); sys.exit('torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_entry_carries_its_key_as_name_and_a_one_line_summary():
    for name, entry in models.MODELS.items():
        assert entry.name == name
        assert entry.summary
        assert "\n" not in entry.summary


@pytest.mark.parametrize("group", models.GROUPS)
def test_every_group_resolves_to_known_models_and_assigns_them_in_a_cycle(group):
    names = models.resolve(group)
    assert set(names) <= set(models.MODELS)
    assigned = [models.assign(group, "cyclic", index, 20) for index in range(20)]
    assert assigned == [names[index % len(names)] for index in range(20)]


def test_the_groups_have_the_papers_sizes_and_order():
    sizes = {group: len(names) for group, names in models.GROUPS.items()}
    assert sizes == {
        **{"htfe2": 2, "htfe4": 4, "htfe8": 8, "htfe9": 9, "htm4": 4, "htm10": 10, "small4": 4},
        **{"htfe6-txt": 6, "htfe6-txt-legacy": 6, "small3-txt": 3, "mlp-bow": 5, "tabular3": 3},
    }
    assert models.GROUPS["htfe8"][:4] == models.GROUPS["htfe4"]
    assert models.GROUPS["htm10"][:8] == models.GROUPS["htfe8"]
    # PACS has 4 clients and DomainNet 6; under HtFE9 they take the shallowest networks in order of depth.
    assert models.GROUPS["htfe9"][:6] == ("resnet4", "resnet6", "resnet8", "resnet10", "resnet18", "resnet34")


def test_names_and_groups_mix_in_a_list():
    assert models.resolve("resnet10, htfe2,mlp") == ("resnet10", "fedavgcnn", "resnet18", "mlp")


@pytest.mark.parametrize("text", ["", " , "])
def test_an_empty_list_of_models_is_refused(text):
    with pytest.raises(SettingError, match=r"models is empty; give a group \(htfe2"):
        models.resolve(text)


def test_an_unknown_name_is_answered_with_the_models_the_groups_and_the_closest():
    with pytest.raises(SettingError, match="did you mean htfe4") as caught:
        models.resolve("htfe44")
    assert "mobilenetv2" in str(caught.value)
    assert "htm10" in str(caught.value)


def test_building_an_unknown_model_names_the_closest():
    with pytest.raises(SettingError, match=r"unknown model 'resnet-18'; .*did you mean resnet18"):
        models.build("resnet-18", num_classes=10, input_shape=(3, 32, 32))


def test_a_list_gives_the_ith_client_the_ith_name():
    names = [models.assign("mlp,resnet4,mlp", "list", index, 3) for index in range(3)]
    assert names == ["mlp", "resnet4", "mlp"]


@pytest.mark.parametrize("num_clients", [3, 5])
def test_a_list_must_be_as_long_as_there_are_clients(num_clients):
    with pytest.raises(SettingError, match=f"each of the {num_clients} clients, got 4 in 'small4'"):
        models.assign("small4", "list", 0, num_clients)


@pytest.mark.parametrize("index", [-1, 4])
def test_a_client_index_outside_the_federation_is_refused(index):
    with pytest.raises(SettingError, match=rf"in \[0, 4\), got {index}"):
        models.assign("small4", "cyclic", index, 4)


def test_an_unknown_assignment_names_the_valid_ones():
    with pytest.raises(SettingError, match=r"unknown model assignment 'cycle'; valid names: cyclic, list"):
        models.assign("small4", "cycle", 0, 4)


@pytest.mark.parametrize(
    ("num_classes", "input_shape", "feature_dim"),
    [(0, (3, 32, 32), 512), (10, (), 512), (10, (3, 32, 0), 512), (10, (3, 32, 32), 0)],
)
def test_impossible_sizes_are_refused(num_classes, input_shape, feature_dim):
    with pytest.raises(SettingError, match=r"model 'mlp' needs .* at least 1"):
        models.build("mlp", num_classes=num_classes, input_shape=input_shape, feature_dim=feature_dim)


def test_a_registered_model_is_built_with_the_sizes():
    models.register("mine", Halves, summary="my model")
    model = models.build("mine", num_classes=7, input_shape=(2, 6, 6), feature_dim=9)
    assert model.head(model.features(torch.randn(4, 2, 6, 6))).shape == (4, 7)
    assert model.head.in_features == 9
    assert models.assign("mine,mlp", "cyclic", 0, 2) == "mine"
    assert models.MODELS["mine"].summary == "my model"


def test_a_builder_gets_only_the_keywords_it_takes():
    def build(num_classes, *, depth=2):
        assert depth == 2
        return Halves(num_classes)

    models.register("mine", build)
    assert models.build("mine", num_classes=8, input_shape=(1, 4, 4)).head.out_features == 8


def test_a_builder_with_open_keywords_gets_all_of_them():
    received = {}

    def build(**sizes):
        received.update(sizes)
        return Halves()

    models.register("mine", build)
    models.build("mine", num_classes=8, input_shape=(1, 4, 4), feature_dim=6)
    assert received == {"num_classes": 8, "input_shape": (1, 4, 4), "feature_dim": 6, "vocabulary": 0}


@pytest.mark.parametrize(
    ("input_shape", "vocabulary"), [((7,), 0), ((4, 5), 0), ((1, 4, 4), 0), ((2, 3, 4, 5), 0), ((7,), 30)]
)
def test_a_users_builder_gets_samples_of_any_shape_and_the_vocabulary(input_shape, vocabulary):
    received = {}

    def build(input_shape, vocabulary):
        received.update(input_shape=input_shape, vocabulary=vocabulary)
        return Halves()

    models.register("mine", build)
    models.build("mine", num_classes=3, input_shape=input_shape, vocabulary=vocabulary)
    assert received == {"input_shape": input_shape, "vocabulary": vocabulary}


@pytest.mark.parametrize(
    ("name", "input_shape", "vocabulary", "words"),
    [
        ("lstm", (3, 32, 32), 0, "takes tokens, the data set has images of shape (3, 32, 32)"),
        ("lstm", (200,), 0, "takes tokens, the data set has numbers of shape (200,), and no vocabulary"),
        ("resnet18", (200,), 5000, "takes images, the data set has tokens of shape (200,)"),
        ("small-cnn", (12,), 0, "takes images, the data set has numbers of shape (12,)"),
        ("bow-200", (200,), 5000, "takes numbers, the data set has tokens of shape (200,)"),
        ("tabular-deep", (1, 8, 8), 0, "takes numbers, the data set has images of shape (1, 8, 8)"),
        ("mlp", (200,), 5000, "takes images or numbers, the data set has tokens of shape (200,)"),
    ],
)
def test_a_model_of_another_kind_of_input_is_refused_with_both_kinds_and_models_that_fit(
    name, input_shape, vocabulary, words
):
    with pytest.raises(SettingError) as caught:
        models.build(name, num_classes=2, input_shape=input_shape, vocabulary=vocabulary)
    suited = models.SUITED[models.kind_of(input_shape, vocabulary)]
    for part in (f"model {name!r} {words}", f"models = {suited!r}"):
        assert part in str(caught.value)
    for fitting in models.resolve(suited):
        assert models.build(fitting, num_classes=2, input_shape=input_shape, vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("method", "input_shape", "vocabulary", "own", "expected"),
    [
        ("small4", (3, 8, 8), 0, "", "small4"),
        ("small4", (3, 8, 8), 0, "resnet4,resnet6", "resnet4,resnet6"),
        ("small-resnet", (3, 8, 8), 0, "resnet4,resnet6", "resnet4"),
        ("small4", (80,), 82, "", "small3-txt"),
        ("small4", (80,), 82, "char-lstm", "char-lstm"),
        ("small-resnet", (80,), 82, "char-lstm", "char-lstm"),
        ("small-resnet", (80,), 82, "", "small-fasttext"),
        ("small4", (5000,), 0, "mlp-bow", "mlp-bow"),
        ("small-cnn,mlp", (5000,), 0, "", "tabular3"),
    ],
)
def test_auto_takes_the_data_sets_own_group_or_its_kinds_and_one_model_of_it_where_the_method_needs_equal_ones(
    method, input_shape, vocabulary, own, expected
):
    assert models.suited(method, input_shape, vocabulary, own) == expected


@pytest.mark.parametrize("source", [source for source in DATASETS.values() if source.models], ids=lambda one: one.name)
def test_the_models_that_a_data_set_names_take_its_samples(source):
    kind = models.kind_of(source.shape, source.vocabulary)
    assert all(kind in models.MODELS[name].takes for name in models.resolve(source.models))


@pytest.mark.parametrize(("input_shape", "vocabulary"), [((80,), 1), ((8, 10), 50)])
def test_a_text_that_is_no_row_of_ids_is_refused(input_shape, vocabulary):
    with pytest.raises(SettingError, match=r"texts of shape \(length,\) and a vocabulary of at least 2 ids"):
        models.build("gru", num_classes=2, input_shape=input_shape, vocabulary=vocabulary)


def test_a_builder_that_requires_another_argument_is_refused_at_registration():
    with pytest.raises(SettingError, match=r"requires 'depth'.*give 'depth' a default"):
        models.register("mine", lambda num_classes, depth: Halves())
    assert "mine" not in models.MODELS


def test_a_model_may_offer_its_halves_as_submodules():
    models.register("mine", _with_submodules)
    model = models.build("mine", num_classes=3, input_shape=(1, 2, 2))
    assert model.head(model.features(torch.zeros(5, 1, 2, 2))).shape == (5, 3)


def _with_submodules(num_classes):
    model = nn.Module()
    model.features = nn.Flatten()
    model.head = nn.Linear(4, num_classes)
    return model


@pytest.mark.parametrize("missing", ["features", "head"])
def test_a_model_that_lacks_a_half_is_refused_by_name(missing):
    def build(num_classes):
        model = _with_submodules(num_classes)
        delattr(model, missing)
        return model

    models.register("mine", build)
    with pytest.raises(SettingError, match=f"model 'mine' .* has no callable {missing}; a model needs"):
        models.build("mine", num_classes=3, input_shape=(1, 2, 2))


def test_a_builder_that_returns_no_module_is_refused():
    models.register("mine", lambda: "a string")
    with pytest.raises(SettingError, match=r"model 'mine' must be a torch.nn.Module, got str"):
        models.build("mine", num_classes=3, input_shape=(1, 2, 2))


def _misfit(num_classes, feature_dim):
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied\nand more of it")


def test_what_a_users_builder_raises_names_the_model_the_error_and_the_builder_and_is_kept_as_the_cause():
    models.register("mine", _misfit)
    with pytest.raises(SettingError) as caught:
        models.prepare("mine", RunConfig(feature_dim=6), num_classes=3, input_shape=(1, 2, 2))
    assert str(caught.value) == (
        "model 'mine' cannot be built: RuntimeError: mat1 and mat2 shapes cannot be multiplied; its builder "
        f"{__name__}._misfit(num_classes=3, feature_dim=6) raised that, so look in the plugin that registers it"
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("error", [KeyError(), ZeroDivisionError("\n")])
def test_an_error_without_words_is_named_by_its_type(error):
    def build(num_classes):
        raise error

    models.register("mine", functools.partial(build))
    with pytest.raises(SettingError, match=rf"'mine' cannot be built: {type(error).__name__}; .*functools.partial\("):
        models.build("mine", num_classes=3, input_shape=(1, 2, 2))


def test_a_setting_that_a_users_builder_refuses_is_refused_in_its_own_words():
    def build(input_shape):
        raise SettingError("mine takes colour images only")

    models.register("mine", build)
    with pytest.raises(SettingError, match=r"^mine takes colour images only$"):
        models.build("mine", num_classes=3, input_shape=(1, 2, 2))


def test_another_builder_under_a_taken_name_is_refused():
    models.register("mine", Halves)
    for taken in ("mine", "resnet18"):
        with pytest.raises(SettingError, match=f"'{taken}' is already registered with another builder"):
            models.register(taken, lambda: Halves())


def test_a_plugin_may_be_executed_twice():
    plugin = (
        "from fedapp.models import register\n"
        "def build(num_classes):\n    from tests.models.test_registry import _with_submodules as make\n"
        "    return make(num_classes)\n"
        "register('mine', build)\n"
    )
    for _ in range(2):
        exec(plugin, {"__name__": "my_plugin"})
    assert models.build("mine", num_classes=3, input_shape=(1, 2, 2)).head.out_features == 3


def test_the_same_lambda_may_be_registered_twice_but_two_lambdas_differ():
    first, second = (lambda: Halves()), (lambda: Halves())
    models.register("mine", first)
    models.register("mine", first)
    with pytest.raises(SettingError, match="another builder"):
        models.register("mine", second)


@pytest.mark.parametrize("name", ["", "a,b", "a b", "htfe4"])
def test_a_name_that_a_list_of_models_could_not_hold_is_refused(name):
    with pytest.raises(SettingError, match="without comma or space, and not the name of a group"):
        models.register(name, Halves)
