"""BatchNorm, ReLU and a convolution as one step that keeps less for its backward pass.

Taken one after the other, they keep what the BatchNorm read and what the convolution read. The second follows from
the first with one multiplication and one addition a number, so that the backward pass can make it anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

aten = torch.ops.aten


def applies(modules: tuple[nn.Module, ...], x: Tensor) -> bool:
    """Return whether a BatchNorm and a convolution, the first and last of ``modules``, may run as one step.

    They may not where somebody listens to a module's output, where nothing is kept anyway, or under autocast.
    """
    norm, conv = modules[0], modules[-1]
    if not isinstance(norm, nn.BatchNorm2d) or not isinstance(conv, nn.Conv2d):
        return False
    usual = norm.affine and norm.momentum is not None and norm.running_mean is not None
    padded = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    trains = norm.training and torch.is_grad_enabled() and not torch.is_autocast_enabled(x.device.type)
    return usual and padded and trains and x.shape[0] > 1 and not any(_observed(module) for module in modules)


def _observed(module: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks)


def norm_relu_conv(norm: Any, conv: Any, x: Tensor) -> Tensor:
    """Return conv(relu(norm(x))) in training mode."""
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    weights = (norm.weight, norm.bias, conv.weight, conv.bias)
    result: Tensor = _NormReluConv.apply(x, *weights, norm, (conv.stride, conv.padding, conv.dilation))
    return result


class _NormReluConv(torch.autograd.Function):
    """y = conv(relu(BN(x))); keeps x and the batch's statistics; backward: makes relu(BN(x)) anew."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Any, norm: Any, way: Any
    ) -> Tensor:
        running = (norm.running_mean, norm.running_var)
        z, mean, scale = torch.native_batch_norm(x, gamma, beta, *running, True, norm.momentum, norm.eps)
        ctx.save_for_backward(x, gamma, beta, weight, mean, scale)
        ctx.bias_sizes = None if bias is None else list(bias.shape)
        ctx.eps, ctx.way = norm.eps, way
        return torch.conv2d(z.relu_(), weight, bias, *way)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, beta, weight, mean, scale = ctx.saved_tensors
        needs = ctx.needs_input_grad
        factor = scale * gamma
        shift = torch.addcmul(beta, mean, factor, value=-1)
        z = (x * factor.view(-1, 1, 1)).add_(shift.view(-1, 1, 1)).relu_()
        wanted = [any(needs[:3]), needs[3], needs[4]]
        pulled, to_weight, to_bias = aten.convolution_backward(
            gradient, z, weight, ctx.bias_sizes, *ctx.way, False, [0, 0], 1, wanted
        )
        to_x = to_gamma = to_beta = None
        if wanted[0]:
            aten.threshold_backward(pulled, z, 0, grad_input=pulled)
            to_x, to_gamma, to_beta = aten.native_batch_norm_backward(
                pulled, x, gamma, None, None, mean, scale, True, ctx.eps, list(needs[:3])
            )
        return to_x, to_gamma, to_beta, to_weight, to_bias, None, None
