"""Rank the candidates of each impression and write a leaderboard file; labels are not needed.

--check checks such a file, whoever wrote it, and reports its first bad line.

Example: speedyfeed rank runs/first MINDlarge_test/ prediction.zip
         speedyfeed rank --check prediction.zip --against MINDlarge_test/
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from speedyfeed.data.readers import open_split
from speedyfeed.data.store import PAD_NEWS
from speedyfeed.data.tables import Split
from speedyfeed.errors import InputError
from speedyfeed.evaluation.submission import Shown, check_submission, submission_name, write_submission
from speedyfeed.files import require_new_file
from speedyfeed.progress import progress_bars

PREFER = ("test", "dev")


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path | None], arg(metavar="RUN")] = None
    """Folder of a finished run, or name of a recommender on the Hub."""
    logs: Annotated[Positional[Path | None], arg(metavar="LOGS")] = None
    """Raw logs or store whose impressions are ranked."""
    out: Annotated[Positional[Path | None], arg(metavar="OUT.zip")] = None
    """Zip file to write the ranking to."""
    split: Literal["dev", "test"] | None = None
    """Split to rank; by default test, or dev where there is no test."""
    format: str | None = None
    """Format of raw logs, such as mind or ebnerd; detected by default."""
    check: Annotated[Path | None, arg(metavar="FILE.zip")] = None
    """Leaderboard file to check, instead of writing one."""
    against: Annotated[Path | None, arg(metavar="LOGS")] = None
    """Raw logs that the checked file must match, impression by impression."""
    json: bool = False
    """Print what was ranked or checked as one JSON object."""


def run(arguments: Arguments) -> None:
    if arguments.check is not None:
        facts = _check(arguments, arguments.check)
    elif arguments.run is None or arguments.logs is None or arguments.out is None:
        raise InputError("rank: expected RUN LOGS OUT.zip, or --check FILE.zip; see speedyfeed rank --help")
    elif arguments.against is not None:
        raise InputError("rank: --against goes with --check FILE.zip")
    else:
        facts = _rank(arguments, arguments.run, arguments.logs, arguments.out)
    if arguments.json:
        print(json.dumps(facts))
    elif arguments.check is not None:
        print(f"{arguments.check}: {facts['impressions']:,} lines, all well formed{_scope(arguments)}")
    else:
        print(
            f"{arguments.out}: {facts['file']} ranks {facts['candidates']:,} candidates of "
            f"{facts['impressions']:,} impressions of {facts['split']}; {facts['candidates_without_text']:,} "
            "candidates have no text and come last"
        )


def _rank(arguments: Arguments, run: Path, logs: Path, out: Path) -> dict[str, Any]:
    from speedyfeed.finished_run import open_data, open_finished_run
    from speedyfeed.run_evaluation import score_run

    require_new_file(out)
    finished = open_finished_run(run)
    with (
        progress_bars() as report,
        open_data(
            finished, logs, split=arguments.split, format=arguments.format, prefer=PREFER, report=report
        ) as data,
    ):
        shown = data.impressions
        scores = score_run(finished, data, report=report)
        name = submission_name(data.store.manifest.settings.format)
        write_submission(out, name, data.load_ids().to_pylist(), scores)
        return {
            "file": name,
            "split": data.split,
            "impressions": len(shown.candidates),
            "candidates": len(shown.candidates.values),
            "candidates_without_text": int((shown.candidates.values == PAD_NEWS).sum()),
        }


def _check(arguments: Arguments, path: Path) -> dict[str, Any]:
    if arguments.run is not None:
        raise InputError("rank: --check FILE.zip takes no RUN; give the logs with --against LOGS")
    if arguments.against is None:
        return {"impressions": check_submission(path)}
    logs = open_split(arguments.against, arguments.split, arguments.format, prefer=PREFER)
    split = logs.splits[-1]
    return {"impressions": check_submission(path, _read_shown(split), submission_name(logs.format))}


def _read_shown(split: Split) -> Iterator[Shown]:
    """Read the impressions that a leaderboard file must rank from a raw log."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in split.impressions():
        given = pc.list_value_length(batch["candidates"])
        labelled = pc.add(pc.list_value_length(batch["clicked"]), pc.list_value_length(batch["skipped"]))
        sizes: pa.Array = pc.coalesce(given, labelled)
        for key, size in zip(batch["impression_id"].to_pylist(), sizes.to_pylist(), strict=True):
            yield Shown(impression_id=key, num_candidates=size)


def _scope(arguments: Arguments) -> str:
    if arguments.against is None:
        return " (give the logs with --against to check that none is missing)"
    return f", and they match {arguments.against}"
