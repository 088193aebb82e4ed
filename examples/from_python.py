# %% [markdown]
# # fedapp from Python
# Run it cell by cell, or whole: `python examples/from_python.py`.

# %% Train FedSAF and `local` on four kinds of digits, eight clients, four architectures
import fedapp

common = {"clients": 8, "rounds": 3, "local_epochs": 2, "batch_size": 25, "learning_rate": 0.05}
common |= {"samples_per_client": 200, "out": "fedapp-runs"}
saf = fedapp.run("fedsaf", method_params={"alignment": "gcsa"}, **common)
alone = fedapp.run("local", **common)

# %% The history is data frames
print(saf.rounds[["accuracy", "client_worst"]])
print(saf.clients.groupby("model")["accuracy"].max())

# %% Who gains, who loses against training alone?
last = saf.clients[saf.clients["round"] == 3].set_index("client")["accuracy"]
before = alone.clients[alone.clients["round"] == 3].set_index("client")["accuracy"]
print((last - before).round(3).to_string())

# %% Take one client's model out
client = saf.client("3")
print(client.model)
print(client.evaluate())  # on the client's own test samples

# %% Everything in one page
print(saf.report())
