"""Check: does every model take the data's shape and give what the rest counts on?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedapp import models
from fedapp.client_app import group_of
from fedapp.client_update import arrays_of
from fedapp.config import SettingError
from fedapp.doctor.base import Case, Finding, ModelFacts, UnwellError
from fedapp.payload import ClientInfo, layout
from fedapp.seeds import seeded
from fedapp.strategies.roster import misfits

TRAINED, EVALUATED = 2, 1  # samples in a batch: the least that BatchNorm trains on, and the least there is


class MisfitError(ValueError):
    """A model's output is not what the rest counts on."""


def look(case: Case) -> str:
    """Build every model of the setting, run it forwards and backwards, and compare those that clients get."""
    findings, classes = [], case.source.classes
    group = group_of(case.config, case.source.shape, case.source.vocabulary)
    for name in dict.fromkeys(models.resolve(group)):
        try:
            case.models[name] = facts(name, case)
        except Exception as error:  # whatever a model raises, the user has to hear it
            why = str(error) if isinstance(error, MisfitError) else f"{type(error).__name__}: {error}"
            findings.append(Finding(f"{name}: {why}", f"mend the model, or leave {name} out of models"))
    if findings:
        raise UnwellError(*findings)
    names = [models.assign(group, case.config.model_assignment, index, case.clients) for index in range(case.clients)]
    case.assigned = [case.models[name] for name in names]
    infos = {str(index): fact.info for index, fact in enumerate(case.assigned)}
    if case.method and (text := misfits(case.method.name, case.method.strategy.requires, infos)):
        raise SettingError(text)
    widths = sorted({fact.info.feature_dim for fact in case.models.values()})
    return (
        f"{', '.join(case.models)}: features (B, {' or '.join(map(str, widths))}) and scores (B, "
        f"{classes}) in float32, trained on 2 samples and evaluated on 1"
    )


def facts(name: str, case: Case) -> ModelFacts:
    """Build one model and run it.

    Raises:
        MisfitError: If shape, dtype, finiteness or gradients are not as they should be.
    """
    source = case.source
    with seeded(0):
        shapes: Any = {"input_shape": source.shape, "vocabulary": source.vocabulary}
        model: Any = models.prepare(name, case.config, num_classes=source.classes, **shapes)
        width = dry_run(model, source.shape, source.classes, source.vocabulary)
    arrays = arrays_of(model)
    info = ClientInfo(
        client=name,
        model=name,
        num_classes=source.classes,
        feature_dim=width,
        model_layout=layout(arrays),
        head_layout=layout(arrays_of(model.head)) if isinstance(model.head, torch.nn.Module) else "",
    )
    return ModelFacts(info, sum(array.nbytes for array in arrays.values()))


def dry_run(model: Any, shape: tuple[int, ...], classes: int, vocabulary: int = 0) -> int:
    """Train ``model`` on two random samples and evaluate it on one, and return the width of its features.

    Raises:
        MisfitError: If an output or a gradient is not as it should be.
    """
    model.train()
    z = model.features(_drawn(TRAINED, shape, vocabulary))
    width = check_output("features", z, TRAINED, None, "training")
    logits = model.head(z)
    check_output("head", logits, TRAINED, classes, "training")
    logits.sum().backward()
    if not any(parameter.grad is not None for parameter in model.parameters()):
        raise MisfitError("no parameter gets a gradient from head(features(x)); do not detach the features")
    model.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad():
        z = model.features(_drawn(EVALUATED, shape, vocabulary))
        check_output("features", z, EVALUATED, width, "evaluation")
        check_output("head", model.head(z), EVALUATED, classes, "evaluation")
    return width


def _drawn(count: int, shape: tuple[int, ...], vocabulary: int) -> Tensor:
    return torch.randint(1, vocabulary, (count, *shape)) if vocabulary else torch.randn(count, *shape)


def check_output(half: str, output: Any, rows: int, width: int | None, mode: str) -> int:
    """Check that an output is a finite float32 tensor (rows, width), and return its width.

    Raises:
        MisfitError: Saying what came and what should have come.

    Example:
        >>> check_output("features", torch.zeros(2, 5), 2, None, "training")
        5
    """
    rule = f"{half}(x) must be a float32 tensor ({rows}, {'D' if width is None else width}) in {mode}"
    if not isinstance(output, Tensor):
        raise MisfitError(f"{rule}, got {type(output).__name__}")
    fits = output.ndim == 2 and output.shape[0] == rows and width in (None, output.shape[1])
    if not fits or output.dtype != torch.float32:
        raise MisfitError(f"{rule}, got {tuple(output.shape)} of {str(output.dtype).removeprefix('torch.')}")
    if not bool(output.isfinite().all()):
        raise MisfitError(f"{half}(x) holds values that are not finite in {mode}")
    return int(output.shape[1])
