"""Settings of a store and of the query engine that makes it, apart from the engine, so that they load quickly."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from speedyfeed.data.tables import FIELDS
from speedyfeed.errors import InputError
from speedyfeed.ranges import Ranges, check_ranges


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Settings of the query engine that prepares a log."""

    engine: Literal["duckdb", "spark"] = "duckdb"
    """Query engine: duckdb runs inside this process, spark in the active or a local session."""
    memory: int = 3
    """Gigabytes of memory the engine may use before it spills to disk."""
    threads: int = 0
    """Number of worker threads of the engine; 0 uses all cores."""

    workers: int = 0
    """Number of worker processes that tokenize articles and write the arrays of a large log; 0 uses all cores."""

    RANGES: ClassVar[Ranges] = {
        "memory": (1, 1_000_000),
        "threads": (0, 10_000),
        "workers": (0, 10_000),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig:
    """Settings by which texts become tokens."""

    encoder: str = "minilm"
    """Encoder whose tokenizer is used: a name, a folder or a Hub id; give the same one to train."""
    refine: Literal["bm25", "long", "none"] = "bm25"
    """How each text field is shortened: bm25 retains its most informative words; long does so only for texts that
    do not fit their segments, and leaves others as they are; none retains the first tokens."""
    fields: tuple[str, ...] = FIELDS
    """Text fields to read: some of title, abstract and body, in this order."""
    segment_tokens: int = 32
    """Maximum number of tokens of a segment, special tokens included."""
    body_segments: int = 1
    """Maximum number of segments of a body; title and abstract have one each."""
    body_paragraphs: int = 0
    """Number of paragraphs to read from the start of a body; 0 reads all. A line break ends a paragraph."""

    RANGES: ClassVar[Ranges] = {
        "segment_tokens": (1, 1 << 16),
        "body_segments": (1, 10_000),
        "body_paragraphs": (0, 1 << 31),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.fields or not set(self.fields) <= set(FIELDS) or len(set(self.fields)) < len(self.fields):
            raise InputError(f"--fields {' '.join(self.fields)}: expected some of {' '.join(FIELDS)}, each once")

    @property
    def parts(self) -> tuple[int, ...]:
        """Maximum segments of each field."""
        return tuple(self.body_segments if field == "body" else 1 for field in self.fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareConfig(TextConfig):
    """Settings of a store: the format of its logs, and how texts become tokens."""

    format: str | None = None
    """Format of the logs: mind, msnews, speedyrec, ebnerd, adressa, parquet or interactions; by default it is
    recognised by the names of the files."""
    tables: str = ""
    """Files of a log of interactions, where they are not found by name or columns; such as
    items=movies.csv,interactions=ratings.csv."""
    columns: str = ""
    """Names of columns in a log of interactions, where they are not the usual ones; such as
    user=visitor,item=doc,time=when,title=headline,body=text. With time=none, the order of the rows stands in for
    times; with label=none, a column such as clicked is not read and every row is a click."""
    charset: str | None = None
    """Encoding of the text files of a log of interactions, such as latin-1; by default UTF-8."""
    dates: Literal["day-first", "month-first"] | None = None
    """Order of day and month in the dates of a log of interactions, such as 01/02/2026; needed only where no date
    of the log tells it."""
    events: str = ""
    """Events of a log of interactions that are clicks, such as view,purchase; by default all."""
    min_weight: float | None = None
    """Smallest weight or rating of a click in a log of interactions; by default every row is a click."""
    skip_broken: bool = False
    """Leave out and count rows of a log of interactions that cannot be read; by default the first one is an
    error."""
    split: Literal["time", "last"] | None = None
    """How a log of interactions is split: time makes the last interactions dev; last makes each user's last click
    on a new article test and the one before it the validation split. By default time, or last for rows without
    times."""
    dev_from: str | None = None
    """Date or time at which dev begins in a split by time, such as 2026-01-31; by default it has the last tenth of
    the interactions."""
    validation: float | None = None
    """Fraction of the train impressions, 0 to 0.5, that is set aside for validation: the latest ones. By default
    a tenth, but at least 500 and at most 10000 impressions, and never more than a quarter. Unused if the log has a
    validation split."""

    RANGES: ClassVar[Ranges] = {**TextConfig.RANGES, "min_weight": (-1e12, 1e12), "validation": (0, 0.5)}
    """Smallest and largest value of each number."""
