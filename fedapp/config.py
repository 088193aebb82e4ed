"""Every setting of a run, by group; the engine that declares, checks and parses them is ``settings``."""

from __future__ import annotations

import dataclasses

from fedapp.settings import (
    Scalar,
    SettingError,
    check,
    closest,
    count_of,
    defaults,
    flatten,
    join_pairs,
    json_of,
    key_of,
    keys,
    listed_names,
    lookup,
    parse,
    setting,
    split_pairs,
)

__all__ = [
    "HARMLESS",
    "PARTITIONS",
    "DataSettings",
    "OwnDataSettings",
    "RunConfig",
    "Scalar",
    "ServerSettings",
    "SettingError",
    "TrainingSettings",
    "check",
    "closest",
    "count_of",
    "defaults",
    "flatten",
    "join_pairs",
    "json_of",
    "key_of",
    "keys",
    "listed_names",
    "lookup",
    "parse",
    "setting",
    "split_pairs",
]

PARTITIONS = (
    *("auto", "iid", "dirichlet", "domains", "clients"),
    *("flwr-iid", "flwr-dirichlet", "flwr-inner-dirichlet", "flwr-pathological", "flwr-shard"),
    *("flwr-natural-id", "flwr-grouped-id", "flwr-linear", "flwr-square", "flwr-exponential"),
)


@dataclasses.dataclass(frozen=True)
class OwnDataSettings:
    """How the user's own data are read: the data sets folder, parquet, csv, hf-disk and callable."""

    label_column: str = setting("label", "column of the labels")
    client_column: str = setting("", "column that says whose a row is; for folder: the top folder is the client")
    domain_column: str = setting("", "column that says of which domain a row is")
    columns: str = setting("", "input columns, separated by commas; empty = all others")
    label_names: str = setting("", "names of all classes, as cat,dog or a JSON list; empty = agreed from the data")
    categories: str = setting(
        "", 'values of the columns with categories, as {"colour": ["blue", "red"]}; empty = agreed from the data'
    )
    vocabulary: str = setting("", "file with the words of texts, one a line; empty = agreed from the data")
    most_words: int = setting(
        20_000,
        "most words that are taken from the data, the most frequent ones; devices agree on the words of all",
        low=1,
    )
    text_length: int = setting(200, "words of a text that are kept", low=1)
    image_size: int = setting(32, "side of the square that images are resized to, in pixels", low=1)
    scaling: str = setting(
        "client",
        "how columns of numbers are scaled, always by training rows alone: client = each client by its own, "
        "global = all by the same, none = not at all",
        choices=("client", "global", "none"),
    )
    bad_rows: str = setting("stop", "what a row or file that cannot be read does", choices=("stop", "skip"))
    data_callable: str = setting("", "function that returns inputs and labels, as module:function")


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """What data there is and who holds which part of it."""

    dataset: str = setting("digits4", "name of the data set; `fedapp datasets` lists them")
    data_root: str = setting("", "folder with local copies, tried before the hub")
    partition: str = setting(
        "auto",
        "how samples are shared out; auto = clients if the data say whose each sample is, domains if they have them, "
        "else dirichlet; flwr-... = the partitioners of flwr-datasets",
        choices=PARTITIONS,
    )
    dirichlet_alpha: float = setting(0.1, "concentration of the Dirichlet partition", above=0)
    min_partition_size: int = setting(0, "least samples a client holds under dirichlet; 0 = the papers' rule", low=0)
    classes_per_client: int = setting(2, "classes a client holds under flwr-pathological", low=1)
    shards_per_client: int = setting(2, "shards a client holds under flwr-shard", low=1)
    partition_seed: int = setting(1, "seed of the partition, apart from the training seed", low=0)
    samples_per_client: int | str = setting(
        0,
        "keep at most this many samples of each client, or so many per cent of its training and of its test part, as "
        "10%; 0 or empty = all",
        low=0,
        per_cent=True,
    )
    domain_map: str = setting(
        "cyclic",
        "which client holds which domain: cyclic, drawn, drawn-then-each, or domains by name, as a,b,b or a=6,b=4",
    )
    samples_per_domain: str = setting(
        "", "training samples a client draws from its domain: 600, 1%, or by domain as a=600,b=1%; empty = even shares"
    )
    test_split: str = setting(
        "auto",
        "native = the data set's own test part, dealt out; shared = all of it (or a part set aside) for all clients of "
        "its domain; client = a random part of each client's share; auto = native where sources must stay apart "
        "(shared with test-samples-per-domain), else client",
        choices=("auto", "native", "shared", "client"),
    )
    test_samples_per_domain: int = setting(
        0, "most test samples of a domain, even over classes, for all its clients (test-split=shared); 0 = all", low=0
    )
    train_fraction: float = setting(
        0.75, "share of a client's samples that trains (test-split=client)", above=0, high=1
    )
    validation_fraction: float = setting(0.0, "share of the training part set aside for validation", low=0, high=0.9)
    own: OwnDataSettings = dataclasses.field(default_factory=OwnDataSettings)

    def __post_init__(self) -> None:
        check(self)
        check(self.own)


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """How every method trains on a client. Defaults are the FedSAF paper's."""

    optimizer: str = setting("sgd", "local optimiser", choices=("sgd", "adam", "adamw"))
    learning_rate: float = setting(0.01, "learning rate of the local optimiser", above=0)
    momentum: float = setting(0.0, "momentum of sgd", low=0, high=1)
    weight_decay: float = setting(0.0, "weight decay of the local optimiser", low=0)
    schedule: str = setting(
        "constant", "learning rate over the rounds", choices=("constant", "cosine", "linear", "step")
    )
    clip_norm: float = setting(0.0, "clip the gradient's norm to this; 0 = off", low=0)
    batch_size: int = setting(100, "samples in a batch", low=1)
    local_epochs: int = setting(5, "passes over the local training data in a round", low=1)
    newcomer_epochs: int = setting(
        5,
        "passes of a client that takes no part (leave-domain, leave-clients) over its own training data, afresh in "
        "every evaluated round, before it is evaluated by the name left-out-adapted; 0 = it is not",
        low=0,
    )
    min_local_steps: int = setting(
        0, "least optimiser steps of a client in a round; a client with few samples passes over them more often", low=0
    )
    augment: str = setting("", "changes to training images at random, as crop, crop=8 (pixels) or flip, with commas")
    shuffle: bool = setting(True, "draw new batches every epoch; false = the same batches always (as HtFLlib)")
    drop_last: bool = setting(False, "leave out the last incomplete batch, never the only one")
    precision: str = setting("fp32", "bf16 = autocast of the forward pass", choices=("fp32", "bf16"))
    device: str = setting("auto", "where clients train; auto = cuda if there is one", choices=("auto", "cpu", "cuda"))
    torch_threads: int = setting(1, "threads torch uses in a client or server process", low=1)

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """Who takes part in a round, and how long the server waits."""

    fraction_train: float = setting(1.0, "share of the clients that trains in a round", above=0, high=1)
    fraction_evaluate: float = setting(1.0, "share of the clients that is evaluated; 0 = none", low=0, high=1)
    evaluate_every: int = setting(1, "evaluate after every so many rounds, and after the last", low=1)
    min_replies: int = setting(1, "least usable replies; a round with fewer changes nothing", low=1)
    round_timeout: float = setting(3600.0, "seconds to wait for the replies of one phase of a round", above=0)
    node_timeout: float = setting(180.0, "seconds to wait for the nodes before the first round", above=0)
    min_nodes: int = setting(0, "nodes to wait for; 0 = as many as the simulation announces, at least 1", low=0)
    leave_domain: str = setting(
        "",
        "domains, separated by commas or a JSON list, whose clients take no part in training; what a newcomer reaches "
        "on them is evaluated by the name left-out",
    )
    leave_clients: str = setting(
        "",
        "clients that take no part likewise, by their names in the data (client-column) or else their ids, with commas "
        "or as a JSON list",
    )

    def __post_init__(self) -> None:
        check(self)


HARMLESS = (
    "num-server-rounds", "out", "run-name", "resume", "patience", "max-failures", "save-client-models", "report",
    "track", "round-timeout", "node-timeout", "workers", "client-gpus",
)  # fmt: skip
"""Settings that may differ when a run is continued: they leave its numbers as they are."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Every setting of a run: the keys of ``[tool.flwr.app.config]``."""

    method: str = setting("fedsaf", "the method; `fedapp methods` lists them")
    method_params: str = setting("", 'the method\'s own settings, as "alignment=gcsa proto-weight=10"')
    num_server_rounds: int = setting(10, "communication rounds; 0 only evaluates the initial models", low=0)
    seed: int = setting(0, "seed of weights, batches and sampling", low=0, high=2**63 - 1)
    models: str = setting(
        "auto",
        "a model group, or names separated by commas (`fedapp models` lists them); auto = what suits data and method: "
        "a group for the data set (small4 for images), or one model of it where the method needs equal models",
    )
    model_assignment: str = setting(
        "cyclic", "who gets which: cyclic, or list = client i the i-th name", choices=("cyclic", "list")
    )
    feature_dim: int = setting(512, "width of the features (d) that models share", low=1)
    shared_init: bool = setting(False, "clients of one architecture start from the same weights (as HtFLlib)")
    init_from: str = setting(
        "",
        "checkpoint that models start from: a .safetensors file or a torch state dict ({model} in the path stands for "
        "the model's name), or torchvision = its pretrained weights; a head that does not fit starts afresh",
    )
    freeze: str = setting(
        "",
        "parameters that do not train: patterns over their names, separated by commas, as extractor.layer1.*; after "
        "a model's name and a colon, of that model alone",
    )
    plugins: str = setting("", "modules of your own, separated by commas, imported on server and clients")
    out: str = setting("fedapp-runs", "folder for results; relative = to the directory you run from")
    run_name: str = setting("", "name of the results folder; empty = made of method, data set, seed and time")
    preset: str = setting(
        "", "data protocol that the settings are of, for the records alone: `--preset` sets both, this sets no other"
    )
    resume: str = setting("", "folder of a run to continue; `fedapp run --resume` sets it, with the run's own settings")
    patience: int = setting(0, "stop when the best accuracy is this many evaluations old; 0 = never", low=0)
    max_failures: int = setting(0, "stop the run, as failed, after this many client failures; 0 = never", low=0)
    save_client_models: int = setting(
        0,
        "keep all client models of every k-th evaluated round and of the best one; 0 = only the last three rounds",
        low=0,
    )
    workers: int = setting(0, "clients that train at once under `fedapp run`; 0 = one a core", low=0)
    client_gpus: float = setting(0.0, "share of a GPU that each client takes under `fedapp run`", low=0)
    report: bool = setting(True, "write report.html beside the results at the end")
    track: str = setting("", "trackers separated by commas: tensorboard, wandb, mlflow, trackio")
    device_tiers: str = setting("", 'simulated devices, as "fast; pi slowdown=4 memory-mib=512 drop-out=0.1"')
    data: DataSettings = dataclasses.field(default_factory=DataSettings)
    training: TrainingSettings = dataclasses.field(default_factory=TrainingSettings)
    server: ServerSettings = dataclasses.field(default_factory=ServerSettings)

    def __post_init__(self) -> None:
        check(self)
