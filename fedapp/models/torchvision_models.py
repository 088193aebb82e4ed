"""torchvision's ResNets, GoogLeNet and MobileNetV2 from scratch, with their ImageNet stems unchanged.

As HtFLlib splits them: the classifier is taken away whole, so MobileNetV2 loses its dropout (part of its
``classifier``) while GoogLeNet keeps the one before ``fc``. ReLUs are out of place, so that hooks see what a layer
returned.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models
from torchvision.models.googlenet import BasicConv2d, Inception, InceptionAux

from fedapp.models.split import SplitModel, adapt_channels, require_side, with_linear_head, without

RESNETS = {
    "resnet18": models.resnet18,
    "resnet34": models.resnet34,
    "resnet50": models.resnet50,
    "resnet101": models.resnet101,
    "resnet152": models.resnet152,
}
_fan_out_normal = partial(nn.init.kaiming_normal_, mode="fan_out")
_narrow_normal = partial(nn.init.trunc_normal_, std=0.01)


def build(name: str, num_classes: int, input_shape: tuple[int, int, int], feature_dim: int) -> SplitModel:
    """Build a model of this family; arguments as for :func:`fedapp.models.build`."""
    channels = input_shape[0]
    if name == "googlenet":
        require_side(name, input_shape, 15)
        extractor = _googlenet(channels)
    else:
        extractor = _mobilenet(channels) if name == "mobilenetv2" else _resnet(name, channels)
    for module in extractor.modules():
        if isinstance(module, nn.ReLU | nn.ReLU6):
            module.inplace = False
    return with_linear_head(extractor, num_classes, feature_dim)


def _resnet(name: str, channels: int) -> nn.Module:
    network = RESNETS[name](num_classes=1)
    network.conv1 = adapt_channels(network.conv1, channels, partial(_fan_out_normal, nonlinearity="relu"))
    return without(network, "fc")


def _mobilenet(channels: int) -> nn.Module:
    network = models.mobilenet_v2(num_classes=1)
    stem = network.features[0]
    stem[0] = adapt_channels(stem[0], channels, _fan_out_normal)
    return without(network, "classifier")


class _Convolution(BasicConv2d):  # type: ignore[misc]
    """GoogLeNet's convolution with BatchNorm and a ReLU out of place."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def _googlenet(channels: int) -> nn.Module:
    blocks = [_Convolution, partial(Inception, conv_block=_Convolution), InceptionAux]
    # init_weights=True is what torchvision does by default, and thus HtFLlib, with a warning.
    network = models.GoogLeNet(num_classes=1, aux_logits=False, init_weights=True, blocks=blocks)
    network.conv1.conv = adapt_channels(network.conv1.conv, channels, _narrow_normal)
    return without(network, "fc")
