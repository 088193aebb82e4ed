from flwr.serverapp import ServerApp

from fedapp.strategies import FedSAF, FedSAFParams

app = ServerApp()


@app.main()
def main(grid, context):
    FedSAF(FedSAFParams(alignment="rcsa")).start(grid, num_rounds=2)
