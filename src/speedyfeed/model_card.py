"""The model card of a saved recommender: `README.md` with its data, metrics, settings and the encoder's licence.

The head in YAML is what the Hub reads. Nothing is looked up over the network: a licence is known where the folder
of the encoder has a model card of its own, as that of `minilm` has.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speedyfeed.errors import InputError
from speedyfeed.markdown import table
from speedyfeed.tokenizers import find_source, parse_encoder

CARD = "README.md"
_LICENCE = re.compile(r"^licen[sc]e:\s*[\"']?([\w.+-]+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """Facts about a recommender that its card states."""

    version: str
    """Version of the program that saved it."""
    settings: Mapping[str, Mapping[str, Any]]
    """Settings of its parts, by part and name."""
    encoder: str | None
    """Name of the pretrained encoder; None for an encoder over words."""
    data: Mapping[str, str]
    """Facts about its training data, by what they are."""
    metrics: Mapping[str, Any] | None
    """Metrics as a report gives them as JSON; None where it was not evaluated."""


def write_card(folder: Path, facts: CardFacts) -> None:
    """Write the model card into an existing folder."""
    (folder / CARD).write_text(render(facts), encoding="utf-8")


def render(facts: CardFacts) -> str:
    """Text of the model card."""
    licence = None if facts.encoder is None else encoder_licence(facts.encoder)
    head = ["---", "library_name: speedyfeed", "tags: [news-recommendation, recommender-system]"]
    head += [f"license: {licence}"] if licence else []
    settings = [
        (f"{part}.{name}", f"`{value}`")
        for part, values in facts.settings.items()
        for name, value in values.items()
    ]
    parts = [
        "\n".join([*head, "---"]),
        "# News recommender",
        f"Trained with SpeedyFeed {facts.version}. Load it with "
        '`speedyfeed.Recommender.from_pretrained("FOLDER")`.',
        "## Data",
        _table(("fact", "value"), list(facts.data.items())) or "Not known: it was saved without training data.",
        "## Metrics",
        _metrics(facts.metrics),
        "## Encoder",
        _encoder(facts.encoder, licence),
        "## Settings",
        _table(("setting", "value"), settings),
    ]
    return "\n\n".join(parts) + "\n"


def encoder_licence(encoder: str) -> str | None:
    """Licence that the model card in the encoder's folder states; None where there is none at hand."""
    try:
        card = Path(find_source(parse_encoder(encoder))) / CARD
        text = card.read_text("utf-8")
    except (InputError, OSError, UnicodeDecodeError):
        return None
    head = text.split("---")[1] if text.startswith("---") else ""
    found = _LICENCE.search(head)
    return found[1] if found else None


def _encoder(encoder: str | None, licence: str | None) -> str:
    if encoder is None:
        return "None: an encoder over words, whose weights were all learned from the data above."
    known = (
        f"Its licence is {licence}, which these weights inherit."
        if licence
        else ("Its licence is not known here: see where it came from before you pass these weights on.")
    )
    return f"Pretrained encoder `{encoder}`. {known}"


def _metrics(report: Mapping[str, Any] | None) -> str:
    if report is None:
        return "Not evaluated: `model.save_pretrained(folder, report=speedyfeed.evaluate(run))` states them here."
    rows = []
    for name, mean in report.items():
        interval = report.get(f"{name}_ci95")
        if interval is not None and mean is not None:
            rows.append((name, f"{mean:.4f}", f"{interval[0]:.4f} to {interval[1]:.4f}"))
    return f"Means over {report['impressions']:,} impressions.\n\n" + _table(
        ("metric", "mean", "95% interval"), rows
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(names, rows) if rows else ""
