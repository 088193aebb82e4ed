"""What builds a model: which keywords it takes, calling it, and whether two builders are the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedapp.config import SettingError

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]
# Called with the keywords num_classes: int, input_shape: Shape, feature_dim: int and vocabulary: int, or with those
# of them that its signature takes.
Builder = Callable[..., "nn.Module"]
OFFERED = ("num_classes", "input_shape", "feature_dim", "vocabulary")


def called(name: str, builder: Builder, *sizes: int | Shape) -> nn.Module:
    """Return what a user's builder makes of those sizes that it takes.

    Args:
        name: The model's name.
        builder: The builder.
        sizes: A value for every keyword of ``OFFERED``, in their order.

    Raises:
        SettingError: If the builder raises; names the model, what was raised and the builder.
    """
    taken = keywords(builder)
    chosen = {key: value for key, value in zip(OFFERED, sizes, strict=True) if key in taken}
    try:
        return builder(**chosen)
    except SettingError:
        raise
    except Exception as error:  # whatever a user's code raises, it has to be told whose it is
        reason = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        asked = ", ".join(f"{key}={value}" for key, value in chosen.items())
        raise SettingError(
            f"model {name!r} cannot be built: {reason}; its builder {_place(builder)}({asked}) raised that, so look in "
            "the plugin that registers it"
        ) from error


def _place(builder: Builder) -> str:
    """Return the module and the name of a builder.

    Example:
        >>> _place(keywords)
        'fedapp.models.builders.keywords'
    """
    named = builder if hasattr(builder, "__qualname__") else type(builder)
    return f"{named.__module__}.{named.__qualname__}"


def keywords(builder: Builder) -> tuple[str, ...]:
    """Return the keywords of ``OFFERED`` that a builder takes.

    Raises:
        SettingError: If the builder requires an argument that is not offered.

    Example:
        >>> keywords(lambda num_classes, depth=2: ...)
        ('num_classes',)
    """
    parameters = inspect.signature(builder).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return OFFERED
    by_keyword = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    taken = tuple(parameter.name for parameter in by_keyword if parameter.name in OFFERED)
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if required and parameter.name not in taken:
            raise SettingError(
                f"builder {builder!r} requires {parameter.name!r}, but is called with the keywords "
                f"{', '.join(OFFERED)}, or those of them it takes; give {parameter.name!r} a default"
            )
    return taken


def check_halves(name: str, model: object) -> None:
    """Check that a model is a module with both halves; torch is loaded by now.

    Raises:
        SettingError: If it is no module, or a half is missing.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        raise SettingError(f"model {name!r} must be a torch.nn.Module, got {type(model).__name__}; see its builder")
    missing = [half for half in ("features", "head") if not callable(getattr(model, half, None))]
    if missing:
        raise SettingError(
            f"model {name!r} ({type(model).__name__}) has no callable {' and no callable '.join(missing)}; a model "
            "needs features(x) -> (batch, feature_dim) and head(z) -> (batch, num_classes), as methods or submodules"
        )


def identity(builder: Builder) -> object:
    """Return what tells one builder from another, also when its module has been executed twice.

    Example:
        >>> identity(keywords)
        ('fedapp.models.builders', 'keywords')
    """
    if (inspect.isfunction(builder) or inspect.isclass(builder)) and "<" not in builder.__qualname__:
        return builder.__module__, builder.__qualname__
    return builder  # a lambda, a local function or another callable
