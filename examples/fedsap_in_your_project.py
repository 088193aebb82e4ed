"""FedSAP in a Flower project of your own: your model, your data, channel-pruned submodels that suit each device.

Run it as it stands: `python examples/fedsap_in_your_project.py`. In a real project the three parts are your task.py,
client_app.py and server_app.py, and `flwr run .` starts them; on a device, `flower-supernode --node-config
'client-id="pi-kitchen" keep-ratio=0.4'` says how much of the model it can hold.
"""

# %% task.py: a model with `features` and `head`, and data with `x` and `y`. Nothing of it knows fedapp.
from dataclasses import dataclass

import torch
from torch import nn


class Block(nn.Module):
    """A residual block, its shortcut a projection where the width changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(before, after, 1, stride) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the convolutions make of x to its shortcut."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.skip(x))


class CameraNet(nn.Module):
    """A small ResNet for one channel and three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16, 3)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Map pictures to features (B, 16)."""
        return self.blocks(self.stem(x)).mean(dim=(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Score the classes."""
        return self.head(self.features(x))


@dataclass(frozen=True)
class Pictures:
    """Pictures x (N, 1, 8, 8) and what they show, y (N,)."""

    x: torch.Tensor
    y: torch.Tensor


def pictures(camera: int, seed: int, count: int = 60) -> Pictures:
    """Bars: rising, falling or level. Every second camera sees them as negatives, and twice as bright."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    shift = torch.randint(-1, 2, (count, 1, 1), generator=generator)
    lines = torch.stack([columns - rows, columns + rows - 7, rows - 4])[y]
    x = ((lines + shift).abs() < 2).float() + 0.2 * torch.randn(count, 8, 8, generator=generator)
    return Pictures((2 - 2 * x if camera % 2 else x)[:, None], y)


# %% client_app.py
from fedapp.config import TrainingSettings  # noqa: E402
from fedapp.node import Setup, client_app, client_id  # noqa: E402


def load(context) -> Setup:
    camera = int(context.node_config["partition-id"])
    return Setup(
        client=client_id(context),
        model=CameraNet,
        train=pictures(camera, seed=camera),
        test=pictures(camera, seed=100 + camera),
        num_classes=3,
        training=TrainingSettings(learning_rate=0.1, momentum=0.9, batch_size=20, local_epochs=3, device="cpu"),
    )


app = client_app(load)

# %% server_app.py
from flwr.app import ArrayRecord  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402

from fedapp.strategies import FedSAP, FedSAPParams  # noqa: E402

server = ServerApp()


@server.main()
def main(grid, context) -> None:
    torch.manual_seed(0)
    params = FedSAPParams(keep_ratios="1,1,0.6,0.4", warmup=1)
    strategy = FedSAP(params, build=lambda client, name: CameraNet())
    result = strategy.start(grid, ArrayRecord(CameraNet().state_dict()), num_rounds=6)
    print("accuracy of the devices' own small models", result.evaluate_metrics_clientapp[6]["accuracy"])
    for client, told in strategy.describe()["submodels"]["clients"].items():
        print(f"camera {client}: group {told['group']}, {told['parameters']} parameters")
    whole = CameraNet()  # one full model for everybody
    whole.load_state_dict({name: torch.from_numpy(a) for name, a in strategy.consensus().items()}, strict=False)
    torch.save(whole.state_dict(), "camera.pt")


# %% In this process, without `flwr run`
if __name__ == "__main__":
    from flwr.app import Context, RecordDict

    from fedapp.local_grid import LocalGrid

    server(LocalGrid(app, 4), Context(1, 0, {}, RecordDict(), {}))
