"""What a failed run under Flower is said to have failed of."""

from fedapp.runner import _cause

LOG = """\x1b[92mINFO \x1b[0m:      Starting Flower Simulation
Traceback (most recent call last):
    raise error
fedapp.environment.CannotRunError: none of 6 nodes can take part
  clients 0, 1: SettingError: data set cifar100 was found neither here nor there
\x1b[91mERROR \x1b[0m:     Exit Code: 700
  For more information
"""


def test_the_reasons_of_the_clients_belong_to_the_cause():
    assert _cause(LOG, "failed").splitlines() == [
        "none of 6 nodes can take part",
        "  clients 0, 1: SettingError: data set cifar100 was found neither here nor there",
    ]


def test_a_cause_of_one_line_ends_where_the_log_goes_on():
    log = LOG.replace("  clients 0, 1: SettingError: data set cifar100 was found neither here nor there\n", "")
    assert _cause(log, "failed") == "none of 6 nodes can take part"
