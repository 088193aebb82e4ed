"""The survey of a traced network: what each operation does to the channels that convolutions wrote."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

HALVES = ("features", "head")
WAY_OUT = "change the model there, or train it whole with a method that prunes nothing"

# Kinds of operation, as noted in node.meta["kind"]. "pass" acts on each number by itself and maps 0 to 0, "pool" does
# so on each channel; "restore" mixes neighbours of a feature vector; "dense" reads nothing that a convolution wrote;
# "size" is a number that only a flattening may use.
_MODULES: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], str], ...] = (
    (nn.Conv2d, "conv"),
    ((nn.BatchNorm2d, nn.BatchNorm1d), "norm"),
    (nn.Linear, "linear"),
    (nn.Flatten, "flatten"),
    (nn.AdaptiveAvgPool1d, "restore"),
    ((nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.ELU, nn.Tanh, nn.Hardswish, nn.Hardtanh, nn.PReLU), "pass"),
    ((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d), "pool"),
    ((nn.Identity, nn.Dropout, nn.Dropout2d, nn.AlphaDropout), "pass"),
)
_FUNCTIONS: Mapping[Any, str] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), "add"),
    **dict.fromkeys((torch.flatten, torch.reshape, "flatten", "view", "reshape"), "flatten"),
    **dict.fromkeys((torch.mean, "mean", "squeeze", torch.squeeze), "spatial"),
    **dict.fromkeys(("size", getattr, operator.getitem), "size"),
    **dict.fromkeys((F.relu, torch.relu, "relu", "relu_", torch.relu_, torch.tanh, "tanh", "contiguous"), "pass"),
    **dict.fromkeys((F.relu6, F.leaky_relu, F.silu, F.gelu, F.elu, F.hardswish), "pass"),
    **dict.fromkeys((F.dropout, F.dropout2d), "pass"),
    **dict.fromkeys((F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d), "pool"),
}
_OWN = frozenset({"weight", "bias"})


class UnprunableError(ValueError):
    """A model does something with its channels that no submodel can reproduce; names where, and the way out."""


class _Half(nn.Module):
    """Calls one half of a model, so that methods and submodules are traced alike."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(self.model, self.name)(x)
        return result


class _Tracer(fx.Tracer):
    """Names modules and attributes as the model does, and says where tracing stopped."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or _module_kind(m) not in ("", "pass", "pool")

    def path_of_module(self, mod: nn.Module) -> str:
        return super().path_of_module(mod).removeprefix("model.")

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        own = target.removeprefix("model.") if kind == "get_attr" else target
        return super().create_node(kind, own, *args, **kwargs)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except UnprunableError:
            raise
        except Exception as error:
            raise _untraceable(self.path_of_module(m), error) from error


def _untraceable(where: str, error: Exception) -> UnprunableError:
    return UnprunableError(
        f"{where or 'the model'} cannot be traced ({error}); its forward must be free of control flow that depends on "
        f"data; {WAY_OUT}"
    )


def traced(model: nn.Module, half: str) -> fx.Graph:
    try:
        return _Tracer().trace(_Half(model, half))
    except UnprunableError:
        raise
    except Exception as error:
        raise _untraceable(half, error) from error


def on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of a model without data, in evaluation mode."""
    memo: dict[int, Any] = {id(b): torch.empty_like(b, device="meta") for b in model.buffers()}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False)
    return copy.deepcopy(model, memo).eval().float()


def refuse_tied(model: nn.Module) -> None:
    names: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if names.setdefault(id(tensor), name) != name:
            raise UnprunableError(
                f"{name} and {names[id(tensor)]} are one tensor, which cannot be cut twice; untie them"
            )


@dataclass
class Found:
    """What the survey collects: convolutions, additions (writers, whether one side is dense), and pairs that meet."""

    convs: list[fx.Node] = field(default_factory=list)
    additions: list[tuple[frozenset[int], bool]] = field(default_factory=list)
    meeting: list[tuple[int, int]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


class Survey(fx.Interpreter):
    """Runs both halves without data and notes each node's kind, shape (without batch) and the layers that write it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, graph=fx.Graph())
        self.found = Found()

    def walk(self, graph: fx.Graph, before: fx.Node | None, value: Any) -> tuple[fx.Node, Any]:
        """Survey one half, whose input is what node ``before`` returned; return its last node and its result."""
        with torch.no_grad():
            self.graph = graph
            self.env = {}
            for node in graph.nodes:
                if node.op == "placeholder":
                    writers = before.meta["writers"] if before else frozenset()
                    node.meta.update(kind="input", writers=writers, shape=tuple(value.shape[1:]), op="")
                    self.env[node] = value
                elif node.op == "output":
                    break
                else:
                    self._visit(node)
        (last,) = node.all_input_nodes
        node.meta.update(last.meta, kind="output", op="")
        return node, self.env[last]

    def _visit(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        written: frozenset[int] = frozenset().union(*(n.meta["writers"] for n in inputs))
        kind = self._kind(node, bool(written))
        try:
            self.env[node] = self._result(node, kind)
        except Exception as error:
            raise UnprunableError(f"{_place(node)} fails on the given input shape ({error})") from error
        shape = tuple(getattr(self.env[node], "shape", ()))[1:]
        node.meta.update(kind=kind, writers=written, shape=shape, op=self._name(node))
        if kind == "conv":
            node.meta["writers"] = frozenset({len(self.found.convs)})
            self.found.convs.append(node)
        elif kind == "linear":
            node.meta["writers"] = frozenset()
        elif kind == "add":
            self._add(node)
        if written and kind not in ("conv", "size", "dense"):
            _check_shapes(node)

    def _result(self, node: fx.Node, kind: str) -> Any:
        """Return a tensor of the shape of what a node returns.

        What convolutions wrote are zeros on the CPU: for most operations without data torch would load its compiler,
        which takes a second.
        """
        if kind in ("norm", "pass", "add"):
            return self.env[node.all_input_nodes[0]]
        if kind == "conv":
            return _convolved(self.fetch_attr(str(node.target)), self.env[node.all_input_nodes[0]])
        if kind == "linear":
            return _projected(self.fetch_attr(str(node.target)), self.env[node.all_input_nodes[0]])
        return self.run_node(node)

    def _kind(self, node: fx.Node, written: bool) -> str:
        """Return what kind of operation a node is; refuses what is none."""
        if node.op == "call_module":
            module = self.fetch_attr(str(node.target))
            kind = _module_kind(module)
            _check_module(str(node.target), module, kind)
            if kind in ("conv", "norm", "linear") and str(node.target) in self.found.used:
                raise UnprunableError(f"{node.target} is called twice, so it cannot be cut to one size; {WAY_OUT}")
            self.found.used.add(str(node.target))
        else:
            kind = _FUNCTIONS.get(node.target, "")
        if not written and kind not in ("conv", "norm", "linear"):
            return "dense"
        sizes = [n for n in node.all_input_nodes if n.meta["kind"] == "size"]
        several = len(node.all_input_nodes) > 1 and kind not in ("add", "flatten")
        misused = bool(sizes) and kind not in ("flatten", "size")
        if not kind or several or misused or (kind == "size" and not _asks_for_size(node)):
            raise UnprunableError(f"{_place(node)} is not known to keep dropped channels apart and at zero; {WAY_OUT}")
        return kind

    def _name(self, node: fx.Node) -> str:
        """Return the name of a module's type or of a function."""
        if node.op == "call_module":
            return type(self.fetch_attr(str(node.target))).__name__
        return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))

    def _add(self, node: fx.Node) -> None:
        operands = node.args
        shapes = [n.meta["shape"] for n in operands if isinstance(n, fx.Node)]
        if len(shapes) != 2 or shapes[0] != shapes[1] or node.kwargs:
            raise UnprunableError(f"{_place(node)} must add two tensors of one shape, without scaling; {WAY_OUT}")
        first = node.all_input_nodes[0]
        if (node.target is operator.iadd or node.target == "add_") and len(first.users) > 1:
            raise UnprunableError(f"{_place(node)} adds in place to what is read elsewhere; write a + b instead")
        widths = {self.found.convs[layer].meta["shape"][0] for layer in node.meta["writers"]}
        if len(widths) > 1:
            raise UnprunableError(f"{_place(node)} adds channels of convolutions of different widths; {WAY_OUT}")
        written = [n.meta["writers"] for n in node.all_input_nodes]
        self.found.additions.append((node.meta["writers"], not all(written)))
        direct = [_direct(n) for n in node.all_input_nodes]
        if len(direct) == 2 and all(n is not None for n in direct):
            self.found.meeting.append((min(written[0]), min(written[1])))


def _convolved(conv: Any, x: Tensor) -> Tensor:
    if x.ndim != 4 or x.shape[1] != conv.in_channels:
        raise ValueError(f"it takes {conv.in_channels} channels of an image, got {tuple(x.shape[1:])}")
    sides = []
    for axis, side in enumerate(x.shape[2:]):
        reach = conv.dilation[axis] * (conv.kernel_size[axis] - 1)
        around = {"same": reach, "valid": 0}[conv.padding] if isinstance(conv.padding, str) else 2 * conv.padding[axis]
        sides.append((side + around - reach - 1) // conv.stride[axis] + 1)
    return torch.zeros(len(x), conv.out_channels, *sides)


def _projected(linear: Any, x: Tensor) -> Tensor:
    if x.shape[-1] != linear.in_features:
        raise ValueError(f"it takes {linear.in_features} numbers, got {x.shape[-1]}")
    return torch.empty(*x.shape[:-1], linear.out_features, device="meta")


def _direct(node: fx.Node) -> fx.Node | None:
    """Return the convolution that alone, or through its BatchNorm, is what a node returns."""
    while node.meta["kind"] == "norm":
        node = node.all_input_nodes[0]
    return node if node.meta["kind"] == "conv" else None


def _module_kind(module: nn.Module) -> str:
    return next((kind for types, kind in _MODULES if isinstance(module, types)), "")


def _check_module(path: str, module: nn.Module, kind: str) -> None:
    """Refuse convolutions that mix or scatter channels, and layers whose weights are not simply theirs."""
    if isinstance(module, _ConvNd) and kind != "conv":
        raise UnprunableError(f"{path} is a {type(module).__name__}; only Conv2d can be pruned; {WAY_OUT}")
    if isinstance(module, nn.Conv2d) and module.groups != 1:
        raise UnprunableError(
            f"{path} is a convolution in {module.groups} groups, whose channels are not independent; {WAY_OUT}"
        )
    bases = {"conv": nn.Conv2d, "norm": _BatchNorm, "linear": nn.Linear}
    base: Any = bases.get(kind)
    own = {name for name, _ in module.named_parameters()}
    if base and (type(module).forward is not base.forward or not own <= _OWN):
        raise UnprunableError(
            f"{path} is not a plain {base.__name__.strip('_')} (its forward or weights differ); {WAY_OUT}"
        )
    shifts = isinstance(module, nn.Hardtanh) and not bool(module.min_val <= 0 <= module.max_val)
    if shifts or (isinstance(module, nn.PReLU) and module.num_parameters > 1) or isinstance(module, nn.AlphaDropout):
        raise UnprunableError(f"{path} does not treat all channels alike and map 0 to 0; {WAY_OUT}")


def _asks_for_size(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return bool(node.all_input_nodes[0].meta["kind"] == "size")
    return bool(node.target == "size" or node.args[1] == "shape")


def _check_shapes(node: fx.Node) -> None:
    """Check that channels lie on the axis that their kind of operation expects and leave them on."""
    source = node.all_input_nodes[0].meta["shape"]
    shape, kind = node.meta["shape"], node.meta["kind"]
    fits = {
        "linear": len(source) == 1,
        "restore": len(source) == 1,
        "flatten": len(source) >= 1 and shape in ((math.prod(source),), source),
        "spatial": len(source) == 3 and shape[:1] == source[:1] and all(axis in (2, 3, -1, -2) for axis in _axes(node)),
    }
    if not fits.get(kind, bool(shape) and shape[:1] == source[:1]):
        raise UnprunableError(f"{_place(node)} moves channels from shape {source} to {shape}; {WAY_OUT}")


def _axes(node: fx.Node) -> tuple[Any, ...]:
    axes: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def _place(node: fx.Node) -> str:
    """Say where an operation stands: its module path, or its name and the module it is called in."""
    if node.op == "call_module":
        return f"{node.target}"
    function: str | Callable[..., Any] = node.target
    name = function if isinstance(function, str) else getattr(function, "__name__", str(function))
    stack = list(node.meta.get("nn_module_stack", {}))
    return f"operation {name!r}" + (f" in {stack[-1]}" if stack else "")
