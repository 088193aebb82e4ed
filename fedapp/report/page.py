"""The page around the sections: one file that loads nothing, and reads on a phone, on a desk and on paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedapp.report import analyses, costs, evaluations, sections, submodels
from fedapp.report.markup import Html, join, tag
from fedapp.report.records import Records, load

NAME = "report.html"
STYLE = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:16px;font:16px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;
 overflow-wrap:break-word}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.25rem;margin:2.5rem 0 .75rem;padding-top:.5rem;border-top:2px solid #1a1a1a}
h3{font-size:1.05rem;margin:1.75rem 0 .5rem}
ul{columns:2 420px;column-gap:2rem;padding-left:1.2rem}
li{margin:0 0 .5rem;break-inside:avoid}
dd details{margin:0}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.9rem}
a{color:#00497a}
.headline{font-size:1.2rem;line-height:1.45;border-left:5px solid #0072b2;padding:.25rem 0 .25rem .9rem;margin:1rem 0}
.note{color:#404040;font-size:.92rem}
.warning{border:2px solid #8a3b00;border-left-width:8px;padding:.5rem .75rem;font-weight:600}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) minmax(0,1fr);gap:.3rem 1rem;margin:0}
dt{color:#595959}
dd{margin:0;overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f4f4f4;border:1px solid #bbb;border-radius:4px;
 padding:.75rem;margin:.25rem 0 1rem;user-select:all}
code{font:.88rem/1.5 ui-monospace,monospace}
details{margin:.75rem 0}
summary{cursor:pointer;color:#00497a}
.scroll{overflow-x:auto;max-width:100%;margin:.5rem 0}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem .25rem 0;text-align:right;border-bottom:1px solid #ddd;vertical-align:top}
th[scope=row],thead th:first-child,caption{text-align:left}
td{white-space:nowrap}
th[scope=row]{font-weight:400;max-width:18rem}
td.w{white-space:normal;min-width:4.5rem}
td.w:last-child{min-width:15rem}
table .w{text-align:left}
thead th{border-bottom:1.5px solid #595959}
.figures{columns:2 420px;column-gap:2rem;margin:1rem 0}
figure{margin:0 0 1.75rem;max-width:620px;break-inside:avoid}
.figures>.wide{column-span:all;max-width:none}
figcaption{font-size:.92rem;margin-bottom:.5rem;color:#404040}
figcaption b{display:block;color:#1a1a1a;font-size:1rem}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:#1a1a1a}
svg .axis{fill:#404040;font-weight:600}
svg text[fill="#fff"]{fill:#fff}
svg .halo{font-weight:600;paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}
svg .sign text{fill:inherit;font-weight:600;text-anchor:middle}
svg .s12 text{font-size:12px}svg .s10 text{font-size:10px}svg .s8 text{font-size:8px}
footer{margin:3rem 0 1rem;color:#595959;font-size:.85rem}
@media (max-width:600px){.terms{grid-template-columns:minmax(0,1fr);gap:0}.terms dt{margin-top:.6rem;font-weight:600}}
@media print{nav{display:none}body{max-width:none;font-size:11pt}h2,h3{break-after:avoid}.scroll{overflow:visible}
 .scroll>div{min-width:0!important;max-width:none!important}
 .figures{columns:2 240px;column-gap:1.2rem}}
"""


def page(title: str, body: Sequence[Html]) -> str:
    """Return a whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    foot = tag("footer", "Made by fedapp from the run's records alone. This page loads nothing and sends nothing.")
    return Html("<!doctype html>\n") + tag("html", head, tag("body", *body, foot), lang="en") + "\n"


def contents(entries: Sequence[tuple[str, str]]) -> Html:
    """Return the way to the sections.

    Example:
        >>> contents([("a", "A")])
        '<nav><a href="#a">A</a></nav>'
    """
    return tag("nav", *(tag("a", title, href=f"#{name}") for name, title in entries))


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run's folder, from its records alone, and return its path.

    Parts that the folder lacks (a run that has not finished, no evaluation, no prototypes) are said to be missing.

    Args:
        folder: A run's folder: config.yaml, and what there is of rounds.jsonl, clients.csv, summary.json and
            prototypes.safetensors.

    Raises:
        SettingError: If it is no run's folder.
    """
    records = load(Path(folder))
    path = Path(folder) / NAME
    path.write_text(render(records), encoding="utf-8")
    return path


def render(records: Records) -> str:
    """Return the page of one run."""
    entries = (
        ("what", "What ran", sections.what_ran),
        ("accuracy", "Accuracy", sections.accuracy),
        ("evaluations", "Evaluations", evaluations.named),
        ("submodels", "Submodels", submodels.submodels),
        ("clients", "Clients", sections.clients),
        ("training", "Losses and alignment", analyses.training),
        ("prototypes", "Prototypes", analyses.prototypes),
        ("bytes", "Bytes", costs.traffic),
        ("time", "Time", costs.time_spent),
        ("failures", "Failures", costs.failures),
        ("rounds", "All rounds", costs.all_rounds),
    )
    built = [(name, title, build(records)) for name, title, build in entries]
    shown = [entry for entry in built if entry[2]]  # what a method has nothing to say about is left out
    top = [
        tag("h1", f"{records.summary['method']} on {records.settings.get('dataset', 'unknown data')}"),
        tag("p", f"Run {records.name}", class_="note"),
        sections.state(records),
        submodels.warnings(records),
        sections.headline(records, evaluations.in_a_sentence(records)),
        contents([(name, title) for name, title, _ in shown]),
    ]
    return page(f"{records.name}: report", [join(top), *(body for _, _, body in shown)])
