"""Where a model's weights start, and which of them stay: the settings ``init-from`` and ``freeze``."""

from __future__ import annotations

import fnmatch
import functools
import logging
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedapp import paths
from fedapp.config import SettingError, lookup
from fedapp.models import MODELS

TORCHVISION = "torchvision"
PRETRAINED = {
    **{name: name for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "googlenet")},
    **{"mobilenetv2": "mobilenet_v2", "vit-b-16": "vit_b_16", "vit-b-32": "vit_b_32"},
}
"""torchvision's names of the models that it has weights for."""
BODY, HEAD, KEPT = "extractor.", "head.", "model/"
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Where trainers' checkpoints keep the model's state dict."""
PREFIXES = ("module.", "model.", "_orig_mod.")
"""What DataParallel, Lightning and torch.compile put before the name of every entry."""
SHOWN = 40


def initialise(model: nn.Module, source: str, name: str) -> None:
    """Load the weights of ``source`` into a fresh model, in place.

    An entry goes where its own name says, or to that name in the model's ``extractor``, so that torchvision's and
    plain backbones fit. Of ``PREFIXES`` before all names those are left out without which more of them fit. A head
    that does not fit keeps its fresh weights as a whole. What is left out, on either side, is logged by name.

    Args:
        model: The model.
        source: The setting ``init-from``: "" changes nothing; "torchvision" means its pretrained weights, and a model
            that it has none for stays fresh; else a path, in which "{model}" stands for ``name``.
        name: The model's name.

    Raises:
        SettingError: If there is no such file or it holds no weights, if they cannot be had, if none of them belongs
            to the model, if one outside the head has another shape, or if one is not finite.
    """
    if not source:
        return
    if source != TORCHVISION:
        path = Path(paths.resolve(source.replace("{model}", name)))
        _place(model, read(path), str(path), name)
    elif name in PRETRAINED:
        _place(model, _fitted(model, pretrained(name)), f"torchvision's weights of {PRETRAINED[name]}", name)
    else:
        _say(f"init-from = torchvision: torchvision has no weights of {name!r}, which starts afresh")


def read(path: Path) -> dict[str, Tensor]:
    """Return the weights in a safetensors file or a torch checkpoint: a state dict, or one of ``WRAPPERS`` around it.

    Of what a client of an earlier run kept, the model is taken. A torch checkpoint is loaded as data, never as code.

    Raises:
        SettingError: If there is no such file, or it is not of these kinds.
    """
    if not path.is_file():
        raise SettingError(f"init-from: {path} is not a file; give the absolute path of a checkpoint, or torchvision")
    try:
        found = _read(path)
    except Exception as error:  # a file that is no pickle makes torch raise KeyError, IndexError and others
        raise SettingError(
            f"init-from: {path} cannot be read: {_reason(path, error)}; save the model with safetensors' save_file, or "
            "with torch.save(model.state_dict(), path)"
        ) from (None if isinstance(error, pickle.UnpicklingError) else error)  # which advises to run what is inside
    wrapped: list[Any] = [found.get(key) for key in WRAPPERS] if isinstance(found, Mapping) else []
    found = next(filter(_is_state, wrapped), found)
    if not _is_state(found):
        raise SettingError(f"init-from: {path} is no mapping from names to tensors; save model.state_dict() alone")
    kept = {key.removeprefix(KEPT): value for key, value in found.items() if key.startswith(KEPT)}
    return kept or dict(found)


def _is_state(found: Any) -> bool:
    whole = isinstance(found, Mapping) and bool(found)
    return whole and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in found.items())


def _reason(path: Path, error: Exception) -> str:
    """Return why a checkpoint cannot be read, without what torch says about its own inside."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}"
    if not path.stat().st_size:
        return "it is empty"
    if not isinstance(error, pickle.UnpicklingError):
        first = (str(error).splitlines() or [""])[0].split(". ")[0]
        return f"it is damaged, or no checkpoint ({type(error).__name__}{first and ': '}{first})"
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    if named or zipfile.is_zipfile(path):
        what = f", among it {named.group(1)}" if named else ""
        return f"it holds more than tensors{what}, and code in a checkpoint is never loaded"
    return "it is damaged, or no checkpoint"


def _read(path: Path) -> Any:
    if path.suffix != ".safetensors":
        return torch.load(path, map_location="cpu", weights_only=True)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def pretrained(name: str) -> dict[str, Tensor]:
    """Return torchvision's default pretrained weights of a model of ``PRETRAINED``, from its cache or the network.

    Raises:
        SettingError: If they are in neither; names the place and the address.
    """
    from torchvision import models as zoo

    weights = zoo.get_model_weights(PRETRAINED[name]).DEFAULT
    _say(f"init-from = torchvision: {weights.url} is fetched unless torch's cache {torch.hub.get_dir()} has it")
    try:
        found: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise SettingError(
            f"init-from = torchvision: the weights of {name!r} are not in {folder} and cannot be fetched ({error}); "
            f"put {weights.url} there, or give the path of a checkpoint as init-from"
        ) from error
    return found


def _fitted(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Interpolate a vision transformer's positions to the size of the model's images."""
    positions = "encoder.pos_embedding"
    wanted = model.state_dict().get(BODY + positions)
    if wanted is None or wanted.shape == weights[positions].shape:
        return weights
    from torchvision.models.vision_transformer import interpolate_embeddings

    extractor: Any = model.extractor
    fitted: dict[str, Tensor] = interpolate_embeddings(
        extractor.image_size, extractor.patch_size, {positions: weights[positions]}
    )
    return {**weights, **fitted}


def _place(model: nn.Module, weights: Mapping[str, Tensor], source: str, name: str) -> None:
    """Copy weights into the entries of the model that they belong to, in place."""
    state = model.state_dict()
    weights = _unwrapped(weights, state)
    placed = {key if key in state else BODY + key: tensor for key, tensor in weights.items()}
    misfits = {key for key, tensor in placed.items() if key in state and tensor.shape != state[key].shape}
    if body := [key for key in misfits if not key.startswith(HEAD)]:
        shapes = [f"{key} {tuple(placed[key].shape)}, not {tuple(state[key].shape)}" for key in sorted(body)]
        raise SettingError(
            f"init-from: {source} does not fit model {name!r}: {_listed(shapes, 4)}; take a checkpoint of this model "
            "for samples of this shape, or leave these entries out of it"
        )
    if misfits:
        placed = {key: tensor for key, tensor in placed.items() if not key.startswith(HEAD)}
    chosen = {key: tensor for key, tensor in placed.items() if key in state}
    if not chosen:
        raise SettingError(
            f"init-from: {source} has no entry of model {name!r}; it holds {_listed(weights, 4)}, the model has "
            f"{_listed(state, 4)}"
        )
    if wrong := [key for key, tensor in chosen.items() if _spoils(tensor, state[key])]:
        raise SettingError(
            f"init-from: {source} for model {name!r} has values that are not finite (NaN or infinite) in "
            f"{_listed(wrong, 4)}; take a checkpoint from before the training diverged"
        )
    with torch.no_grad():
        for key, tensor in chosen.items():
            state[key].copy_(tensor)
    left = [key for key in weights if key not in chosen and BODY + key not in chosen]
    fresh = [key for key in state if key not in chosen and not key.endswith("num_batches_tracked")]
    for what, names in (("entries left out", left), ("entries of the model that stay fresh", fresh)):
        if names:
            _say(f"init-from: {source} for model {name!r}: {what}: {_listed(names)}")


def _unwrapped(weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return weights without the prefixes that all names have, as far as more of them fit without.

    Example:
        >>> value = torch.zeros(1)
        >>> list(_unwrapped({"module.a": value, "module.b": value}, {"a": value}))
        ['a', 'b']
        >>> list(_unwrapped({"module.a": value, "module.b": value}, {"module.a": value}))
        ['module.a', 'module.b']
    """
    tried = [weights]
    while prefix := _shared(tried[-1]):
        tried.append({key.removeprefix(prefix): tensor for key, tensor in tried[-1].items()})
    return max(tried, key=lambda names: sum(key in state or BODY + key in state for key in names))


def _shared(names: Iterable[str]) -> str:
    """Return which of ``PREFIXES`` all names have; "" if none, or if there are no names."""
    every = list(names)
    return next((prefix for prefix in PREFIXES if every and all(name.startswith(prefix) for name in every)), "")


def _spoils(tensor: Tensor, fresh: Tensor) -> bool:
    """Return whether a floating tensor brings values that are not finite to where an entry has finite ones."""
    if not tensor.is_floating_point():
        return False
    brought = tensor.to(fresh.dtype if fresh.is_floating_point() else torch.float64)  # too large counts, too
    return bool((~brought.isfinite() & fresh.isfinite()).any())  # a mask of -inf is what the model has itself


def freeze(model: nn.Module, patterns: str, name: str) -> None:
    """Let the parameters that patterns match take no gradient, in place.

    A BatchNorm layer whose parameters are all frozen keeps its statistics, too: training leaves it in evaluation mode
    (:func:`fedapp.client_update.set_to_train`). Dropout inside frozen layers stays at work.

    Args:
        model: The model.
        patterns: The setting ``freeze``: shell patterns over parameter names, separated by commas. One with a model's
            name and a colon before it ("resnet18:extractor.layer1.*") is for that model alone.
        name: The model's name.

    Raises:
        SettingError: If a pattern matches no parameter, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        scope, _, rest = pattern.rpartition(":")
        if scope and lookup(MODELS, scope, "model").name != name:
            continue
        matched = [key for key in parameters if fnmatch.fnmatchcase(key, rest)]
        if not matched:
            raise SettingError(
                f"freeze: {pattern!r} matches no parameter of model {name!r}, which has {_listed(parameters)}; for one "
                'model of several write its name before the pattern, as "resnet18:extractor.conv1.*"'
            )
        for key in matched:
            parameters[key].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise SettingError(f"freeze = {patterns!r} leaves nothing of model {name!r} to train; freeze less of it")


def _listed(names: Iterable[str], most: int = SHOWN) -> str:
    """Return names in one line, the first ``most`` of them.

    Example:
        >>> _listed("abcde", 3)
        'a, b, c and 2 more'
    """
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


@functools.lru_cache(maxsize=256)
def _say(text: str) -> None:
    """Log a line once in this process: a hundred clients of one model have nothing new to say."""
    logging.getLogger("flwr").info(text)
