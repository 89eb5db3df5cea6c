"""Turn raw logs into a store the trainer can open in milliseconds.

Example: speedyfeed prepare logs/ store/ --plm minilm
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from speedyfeed.data.store import Store
from speedyfeed.preparation.engine import EngineConfig
from speedyfeed.preparation.prepare import PrepareConfig, prepare
from speedyfeed.progress import progress_bars


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """Folder with train/ and dev/ (and test/), or of another format."""
    store: Annotated[Positional[Path], arg(metavar="STORE")]
    """Folder to make."""
    text: Annotated[PrepareConfig, arg(name="")] = field(default_factory=PrepareConfig)
    engine: Annotated[EngineConfig, arg(name="")] = field(default_factory=EngineConfig)
    json: bool = False
    """Print what was read, kept and dropped as one JSON object."""


def run(arguments: Arguments) -> None:
    with progress_bars() as report:
        prepared = prepare(arguments.logs, arguments.store, arguments.text, arguments.engine, report)
    if arguments.json:
        print(json.dumps(prepared.store.manifest["counts"]))
    else:
        print_summary(prepared.store)
        print(f"{arguments.store} is {'ready' if prepared.is_new else 'up to date'}")


def print_summary(store: Store) -> None:
    """What was read, kept and dropped, split by split."""
    counts, settings = store.manifest["counts"], store.manifest["settings"]
    read, kept, dropped = counts["read"], counts["kept"], counts["dropped"]
    print(f"logs in format {settings['format']}, tokens of {settings['plm']}")
    print(
        f"news: {read['news']:,} read, {kept['news']:,} kept, {dropped['repeated_news']:,} repeated, "
        f"{counts['news_without_words']:,} without a word; a vocabulary of {counts['vocabulary']:,} words"
    )
    for split in store.splits:
        print(f"{split}: {read[split]['impressions']:,} impressions of {read[split]['users']:,} users")
        for name in ("history_clicks", "clicks", "candidates"):
            total, lost = read[split][name], dropped[split][f"{name}_without_text"]
            share = f" ({lost / total:.1%})" if lost else ""
            print(f"  {_plain(name):16}{total:>13,} read {lost:>13,} without text{share}")
        for title, facts in (("kept", kept[split]), ("dropped", dropped[split])):
            rest = [f"{count:,} {_plain(name)}" for name, count in facts.items() if not name.endswith("_text")]
            if rest:
                print(f"  {title}: {', '.join(rest)}")


def _plain(name: str) -> str:
    return name.replace("_", " ")
