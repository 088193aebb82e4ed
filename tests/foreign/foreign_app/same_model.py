"""The same project with one model for all, averaged as Flower users know it."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from fedapp.node import client_app
from fedapp.strategies import FedAvg

from .task import SensorNet, setup

client = client_app(lambda context: setup(context, hidden=6))
server = ServerApp()


@server.main()
def main(grid, context):
    initial_arrays = ArrayRecord(SensorNet(6).state_dict())
    result = FedAvg().start(grid=grid, initial_arrays=initial_arrays, num_rounds=6)
    SensorNet(6).load_state_dict(result.arrays.to_torch_state_dict())
    print("accuracy", result.evaluate_metrics_clientapp[6]["accuracy"])
