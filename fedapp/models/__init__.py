"""The models of a federation: an explicit table, the papers' groups, and who gets which.

A model is an ``nn.Module`` with ``features(x) -> (B, D)`` and ``head(z) -> (B, C)``. This module imports neither
torch nor torchvision, so that names can be listed quickly; a family's file is imported when a model is built.

One sample is an image (float32, channels x height x width), a text (int64, a row of token ids of fixed length: 0 =
padding, 1 = unknown) or a row or array of numbers (float32). The shape and the vocabulary tell which.

FedSAF's models (2605.05959, section V) follow HtFLlib's split: the classifier of a network becomes
``AdaptiveAvgPool1d(feature_dim)`` over its native feature vector, and the head is new. Hence features are
*pooled or repeated*, not projected: ResNet-4, 6 and 8 live in fixed subspaces of 64, 128 and 256 dimensions.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedapp.config import SettingError, lookup
from fedapp.models.builders import Builder, Shape, called, check_halves, identity, keywords

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor, nn

    from fedapp.config import RunConfig

IMAGES, TOKENS, NUMBERS = "images", "tokens", "numbers"
SUITED = {IMAGES: "small4", TOKENS: "small3-txt", NUMBERS: "tabular3"}
"""A small group for each kind of input."""


class Model(Protocol):
    """What every model offers beside being an ``nn.Module``."""

    def features(self, x: Shaped[Tensor, "B ..."], /) -> Float[Tensor, "B D"]:
        """Return the features of a batch of samples."""

    def head(self, z: Float[Tensor, "B D"], /) -> Float[Tensor, "B C"]:
        """Return the logits of features."""


@dataclass(frozen=True)
class ModelEntry:
    """One row of the model table.

    Attributes:
        name: The name that settings use.
        build: Makes the model.
        summary: One line for listings.
        native_dim: Length of the feature vector before it is pooled to ``feature_dim``; None if unknown.
        takes: The kinds of input it takes, of ``IMAGES``, ``TOKENS`` and ``NUMBERS``; all of them if empty.
    """

    name: str
    build: Builder
    summary: str
    native_dim: int | None = None
    takes: tuple[str, ...] = ()


def _entry(family: str, name: str, native_dim: int, summary: str, *takes: str) -> ModelEntry:
    """Return the row of a model of the file ``family``, which is imported when the model is built."""

    def build(num_classes: int, input_shape: Shape, feature_dim: int, vocabulary: int) -> nn.Module:
        module = importlib.import_module(f"fedapp.models.{family}")
        further = (vocabulary,) if TOKENS in takes else ()
        model: nn.Module = module.build(name, num_classes, input_shape, feature_dim, *further)
        return model

    return ModelEntry(name, build, summary, native_dim, takes or (IMAGES,))


_ROWS = (
    _entry("cnn", "fedavgcnn", 512, "two 5x5 convolutions, one hidden layer, no BatchNorm (HtFLlib's FedAvgCNN)"),
    _entry("resnet", "resnet4", 64, "ImageNet stem and one BasicBlock"),
    _entry("resnet", "resnet6", 128, "ImageNet stem and two stages of one BasicBlock"),
    _entry("resnet", "resnet8", 256, "ImageNet stem and three stages of one BasicBlock"),
    _entry("resnet", "resnet10", 512, "ImageNet stem and four stages of one BasicBlock"),
    _entry("resnet", "resnet10-cifar", 512, "ResNet-10 with a 3x3 stem and no pooling after it (FedSAP's)"),
    _entry("resnet", "resnet10-cifar-quarter", 128, "resnet10-cifar with a quarter of its width"),
    _entry("resnet", "resnet18-cifar", 512, "ResNet-18 with a 3x3 stem and no pooling after it (FedSAP's)"),
    _entry("torchvision_models", "resnet18", 512, "torchvision's ResNet-18, from scratch"),
    _entry("torchvision_models", "resnet34", 512, "torchvision's ResNet-34, from scratch"),
    _entry("torchvision_models", "resnet50", 2048, "torchvision's ResNet-50, from scratch"),
    _entry("torchvision_models", "resnet101", 2048, "torchvision's ResNet-101, from scratch"),
    _entry("torchvision_models", "resnet152", 2048, "torchvision's ResNet-152, from scratch"),
    _entry("torchvision_models", "googlenet", 1024, "torchvision's GoogLeNet without auxiliary classifiers"),
    _entry("torchvision_models", "mobilenetv2", 1280, "torchvision's MobileNetV2 of width 1"),
    _entry("vit", "vit-b-16", 768, "ViT-B with 16x16 patches and a two-layer head"),
    _entry("vit", "vit-b-32", 768, "ViT-B with 32x32 patches and a two-layer head"),
    _entry("cnn", "small-cnn", 128, "two strided convolutions and one hidden layer, no BatchNorm"),
    _entry("resnet", "small-resnet", 64, "three BasicBlocks of 16, 32 and 64 channels"),
    _entry("separable_cnn", "separable-cnn", 128, "three depthwise-separable convolutions with BatchNorm"),
    _entry("mlp", "mlp", 128, "two hidden layers on the flat image or row", IMAGES, NUMBERS),
    _entry("mlp", "bow-linear", 100, "one layer on a bag of words (HtFLlib's AmazonMLPs)", NUMBERS),
    _entry("mlp", "bow-200", 100, "a hidden layer of 200 on a bag of words", NUMBERS),
    _entry("mlp", "bow-500", 100, "a hidden layer of 500 on a bag of words", NUMBERS),
    _entry("mlp", "bow-1000-500", 100, "two hidden layers on a bag of words", NUMBERS),
    _entry("mlp", "bow-1000-500-200", 100, "three hidden layers on a bag of words", NUMBERS),
    _entry("mlp", "tabular-wide", 256, "one hidden layer of 256 on a row of numbers", NUMBERS),
    _entry("mlp", "tabular-medium", 128, "two hidden layers of 128 on a row of numbers", NUMBERS),
    _entry("mlp", "tabular-deep", 64, "four hidden layers of 64 on a row of numbers", NUMBERS),
    _entry("text", "fasttext", 512, "mean of the words' embeddings and a linear layer", TOKENS),
    _entry("text", "lstm", 512, "two LSTM layers, the state after the last word", TOKENS),
    _entry("text", "bilstm", 512, "an LSTM layer in each direction and a linear layer", TOKENS),
    _entry("text", "transformer", 512, "two encoder layers of 8 heads, the output at the first word", TOKENS),
    _entry("text", "text-logreg", 512, "mean of the words' embeddings: logistic regression with the head", TOKENS),
    _entry("text", "gru", 512, "two GRU layers, the state after the last word", TOKENS),
    _entry("text", "fasttext-legacy", 512, "fasttext with log_softmax over the features, as in HtFLlib", TOKENS),
    _entry("text", "lstm-legacy", 512, "lstm with log_softmax over the features, as in HtFLlib", TOKENS),
    _entry("text", "text-logreg-legacy", 512, "text-logreg with log_softmax over the features, as in HtFLlib", TOKENS),
    _entry("text", "gru-legacy", 512, "gru with log_softmax over the features, as in HtFLlib", TOKENS),
    _entry("text", "small-fasttext", 64, "fasttext of width 64", TOKENS),
    _entry("text", "small-gru", 64, "gru of width 64", TOKENS),
    _entry("text", "small-transformer", 64, "transformer of width 64, with 4 heads", TOKENS),
    _entry("text", "char-lstm", 256, "two LSTM layers of 256 over characters (LEAF's for Shakespeare)", TOKENS),
)
MODELS: dict[str, ModelEntry] = {entry.name: entry for entry in _ROWS}

_HTFE4 = ("fedavgcnn", "googlenet", "mobilenetv2", "resnet18")
_HTFE8 = (*_HTFE4, "resnet34", "resnet50", "resnet101", "resnet152")
GROUPS: dict[str, tuple[str, ...]] = {
    "htfe2": ("fedavgcnn", "resnet18"),
    "htfe4": _HTFE4,
    "htfe8": _HTFE8,
    "htfe9": (
        *("resnet4", "resnet6", "resnet8", "resnet10"),
        *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    ),
    "htm4": ("fedavgcnn", "mobilenetv2", "resnet18", "vit-b-16"),
    "htm10": (*_HTFE8, "vit-b-16", "vit-b-32"),
    "small4": ("small-cnn", "small-resnet", "separable-cnn", "mlp"),
    "htfe6-txt": ("fasttext", "lstm", "bilstm", "transformer", "text-logreg", "gru"),
    "htfe6-txt-legacy": (
        *("fasttext-legacy", "lstm-legacy", "bilstm", "transformer"),
        *("text-logreg-legacy", "gru-legacy"),
    ),
    "small3-txt": ("small-fasttext", "small-gru", "small-transformer"),
    "mlp-bow": ("bow-linear", "bow-200", "bow-500", "bow-1000-500", "bow-1000-500-200"),
    "tabular3": ("tabular-wide", "tabular-medium", "tabular-deep"),
}


def build(name: str, *, num_classes: int, input_shape: Shape, feature_dim: int = 512, vocabulary: int = 0) -> nn.Module:
    """Build a model with fresh weights, drawn from torch's global generator: the caller seeds it.

    Args:
        name: A name of ``MODELS``.
        num_classes: C, the length of the logits.
        input_shape: Shape of one sample: (channels, height, width) of an image, (length,) of a text or a row.
        feature_dim: D, the length of the features.
        vocabulary: Number of token ids, padding and unknown included; 0 if samples are not texts.

    Returns:
        A module with ``features(x) -> (B, D)`` and ``head(z) -> (B, C)``.

    Raises:
        SettingError: If the name is unknown, the model cannot take such samples, or a user's model cannot be built or
            lacks a half.

    Example:
        >>> import torch
        >>> model = build("mlp", num_classes=10, input_shape=(1, 28, 28), feature_dim=256)
        >>> z = model.features(torch.zeros(5, 1, 28, 28))
        >>> z.shape, model.head(z).shape
        (torch.Size([5, 256]), torch.Size([5, 10]))
    """
    entry = lookup(MODELS, name, "model")
    if not input_shape or min(*input_shape, num_classes, feature_dim) < 1:
        raise SettingError(
            f"model {name!r} needs num_classes, feature_dim and every entry of input_shape to be at least 1, got "
            f"{num_classes}, {feature_dim} and {tuple(input_shape)}"
        )
    _check_kind(entry, input_shape, vocabulary)
    sizes = (num_classes, tuple(input_shape), feature_dim, vocabulary)
    model: nn.Module = entry.build(*sizes) if entry in _ROWS else called(name, entry.build, *sizes)
    check_halves(name, model)
    return model


def prepare(name: str, config: RunConfig, *, num_classes: int, input_shape: Shape, vocabulary: int = 0) -> nn.Module:
    """Build a model as a run's settings want it: of ``feature-dim``, started from ``init-from``, frozen by ``freeze``.

    Args:
        name: A name of ``MODELS``.
        config: The run's settings.
        num_classes: As for :func:`build`.
        input_shape: As for :func:`build`.
        vocabulary: As for :func:`build`.

    Raises:
        SettingError: As :func:`build`, :func:`fedapp.models.start.initialise` and :func:`fedapp.models.start.freeze`.
    """
    model = build(
        name, num_classes=num_classes, input_shape=input_shape, feature_dim=config.feature_dim, vocabulary=vocabulary
    )
    if config.init_from or config.freeze:
        import fedapp.models.start as start

        start.initialise(model, config.init_from, name)
        start.freeze(model, config.freeze, name)
    return model


def kind_of(input_shape: Shape, vocabulary: int) -> str:
    """Return what samples are: ``TOKENS``, ``IMAGES`` or ``NUMBERS``.

    Example:
        >>> kind_of((80,), 82), kind_of((3, 32, 32), 0), kind_of((80,), 0)
        ('tokens', 'images', 'numbers')
    """
    if vocabulary:
        return TOKENS
    return IMAGES if len(input_shape) == 3 else NUMBERS


def suited(images: str, input_shape: Shape, vocabulary: int = 0, own: str = "") -> str:
    """Return what stands for a group of image models, or for one of them, where samples may be of another kind.

    Args:
        images: A group, or the name of one model where all clients need the same.
        input_shape: Shape of one sample.
        vocabulary: Number of token ids, 0 for what is no text.
        own: The group that the data set names for itself (:attr:`fedapp.datasets.Source.models`); "" = by kind.

    Example:
        >>> suited("small4", (3, 32, 32)), suited("small4", (14,)), suited("small-resnet", (14,))
        ('small4', 'tabular3', 'tabular-wide')
        >>> suited("small4", (14,), own="mlp-bow"), suited("small-resnet", (14,), own="mlp-bow")
        ('mlp-bow', 'bow-linear')
    """
    kind = kind_of(input_shape, vocabulary)
    if kind == IMAGES and not own:
        return images
    group = own or SUITED[kind]
    return group if len(resolve(images)) > 1 else resolve(group)[0]


def _check_kind(entry: ModelEntry, input_shape: Shape, vocabulary: int) -> None:
    """Check that a model takes samples of this kind.

    Raises:
        SettingError: Naming both kinds and models that fit; or if there are too few token ids.
    """
    kind = kind_of(input_shape, vocabulary)
    if entry.takes and kind not in entry.takes:
        lacking = ", and no vocabulary, which texts have" if TOKENS in entry.takes else ""
        raise SettingError(
            f"model {entry.name!r} takes {' or '.join(entry.takes)}, the data set has {kind} of shape "
            f"{tuple(input_shape)}{lacking}; choose models for {kind}, such as models = {SUITED[kind]!r}"
        )
    if kind == TOKENS and (vocabulary < 2 or len(input_shape) != 1):
        raise SettingError(
            f"model {entry.name!r} needs texts of shape (length,) and a vocabulary of at least 2 ids (0 = padding, "
            f"1 = unknown), got {tuple(input_shape)} and {vocabulary}"
        )


def register(name: str, build: Builder, *, summary: str = "") -> None:
    """Add a model of one's own to ``MODELS``, as a plugin module does when it is imported.

    The same builder may be registered again, so that a plugin can be imported twice: a named function or class of
    a module counts as the same when module and qualified name agree, anything else when it is the same object.

    Args:
        name: The name that settings will use: no comma, no space, not a group's name.
        build: Called with the keywords ``num_classes``, ``input_shape`` (of one sample), ``feature_dim`` and
            ``vocabulary`` (number of token ids, 0 if samples are not texts), or with those of them that its signature
            takes. Returns an ``nn.Module`` with ``features(x) -> (B, D)`` and ``head(z) -> (B, C)``, as methods or
            submodules.
        summary: One line for listings.

    Raises:
        SettingError: If the name is malformed or taken by another builder, or the builder requires other arguments.

    Example:
        >>> def tiny(num_classes, input_shape): ...
        >>> register("tiny-example", tiny, summary="a small one")
        >>> MODELS.pop("tiny-example").summary
        'a small one'
    """
    if not name or name in GROUPS or any(letter == "," or letter.isspace() for letter in name):
        raise SettingError(
            f"model name {name!r} must be non-empty, without comma or space, and not the name of a group "
            f"({', '.join(GROUPS)}); choose another name"
        )
    if name in MODELS and identity(MODELS[name].build) != identity(build):
        raise SettingError(f"model {name!r} is already registered with another builder; choose another name")
    keywords(build)
    MODELS[name] = ModelEntry(name, build, summary)


def resolve(models: str) -> tuple[str, ...]:
    """Return the model names that the setting ``models`` stands for.

    Args:
        models: Names of models or groups, separated by commas; a group stands for its models in order.

    Raises:
        SettingError: If a name is neither a model nor a group; lists both and the closest name.

    Example:
        >>> resolve("htfe2")
        ('fedavgcnn', 'resnet18')
        >>> resolve("resnet4, resnet6")
        ('resnet4', 'resnet6')
    """
    table = {**{name: (name,) for name in MODELS}, **GROUPS}
    parts = [part.strip() for part in models.split(",") if part.strip()]
    if not parts:
        raise SettingError(f"models is empty; give a group ({', '.join(GROUPS)}) or model names such as resnet4,mlp")
    return tuple(name for part in parts for name in lookup(table, part, "model or model group"))


def assign(models: str, assignment: str, index: int, num_clients: int) -> str:
    """Return the name of the model that client ``index`` trains.

    Args:
        models: As for :func:`resolve`.
        assignment: "cyclic" (client i takes name i mod X of the X names, the papers' way) or "list" (client i takes
            the i-th name, one name for each client).
        index: The client's place in the order of stable client ids, in [0, num_clients).
        num_clients: K, the number of clients.

    Raises:
        SettingError: If the index or the assignment is not valid, or a list is not as long as there are clients.

    Example:
        >>> assign("htfe2", "cyclic", 3, 20)
        'resnet18'
    """
    names = resolve(models)
    if not 0 <= index < num_clients:
        raise SettingError(f"client index must be in [0, {num_clients}), got {index}; check num-clients")
    sizes = {"cyclic": len(names), "list": num_clients}
    size = lookup(sizes, assignment, "model assignment")
    if size != len(names):
        raise SettingError(
            f"assignment list needs one model for each of the {num_clients} clients, got {len(names)} in {models!r}; "
            "name one model per client or use assignment cyclic"
        )
    return names[index % size]
