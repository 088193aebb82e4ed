from fedapp.node import client_app

from .task import setup


def load(context):
    return setup(context, hidden=(5, 8)[int(context.node_config["partition-id"]) % 2])


app = client_app(load)
