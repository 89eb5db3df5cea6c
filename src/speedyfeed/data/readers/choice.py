"""Which rows of a log are clicks: by their event, their weight, and a label that is 0 for what was only shown.

    item  event     rating  clicked
    N3    view      5       1         a click
    N5    view      4       0         shown, not clicked
    N8    view      1       1         no click with --min-weight 4
    N9    purchase  5       1         no click with --events view

A log of several events, one of which is no click, needs `--events`: nothing is guessed that would teach a model to
recommend what users did not choose.
"""

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.reader_options import NO_COLUMN, ReaderOptions
from speedyfeed.data.readers.parted import PartedTable
from speedyfeed.data.readers.text import quote
from speedyfeed.errors import InputError

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_SHOWN_EVENTS = 8
_CLICKED = pa.array(["1", "1.0", "true", "t"])
_ONLY_SHOWN = pa.array(["0", "0.0", "false", "f"])
_NO_CLICK = re.compile(
    r"impression|impr?s?$|expos(e|ed|ure)|show(n|s|ed)?$|display|view_?(item_?list|search_?results|promotion)"
    r"|remove|dislike|unlike|not_?interested|skip|hide|dismiss|refund|cancel",
    re.IGNORECASE,
)
"""Beginning of an event, after its prefix if it has one, that is no click, or takes one back."""
_SCALE_NAMES = ("rating", "stars", "overall")
_SCALE_VALUES = 50
"""Number of distinct ratings up to which they are a scale with a middle."""
_LOW_SHARE = 0.2
"""Share of rows below the middle of the scale from which the summary warns."""


class Choice:
    """Which rows of a table are clicks, and what to say of the others."""

    def __init__(self, table: PartedTable, columns: Mapping[str, str], options: ReaderOptions) -> None:
        self._table, self._columns = table, columns
        self._events, self._min_weight = options.event_names(), options.min_weight
        self._num_events: Counter[str] = Counter()
        self._num_light = 0
        self._ratings: Counter[str] | None = None
        if self._min_weight is None and columns.get("weight", "").lower() in _SCALE_NAMES:
            self._ratings = Counter()
        for role, option in (("event", self._events), ("weight", self._min_weight)):
            if option not in ((), None) and role not in columns:
                flag = {"event": "--events", "weight": "--min-weight"}[role]
                raise InputError(
                    f"{table.path}: found no {role} column (columns: {', '.join(table.names)}), expected one for "
                    f"{flag}; say which is meant with --columns {role}=COLUMN, or leave {flag} out"
                )

    def choose(self, found: Mapping[str, pa.Array], first_row: int) -> NDArray[np.bool_]:
        """Whether each row of a batch is one that was asked for, by its event and its weight."""
        is_chosen = np.ones(len(found["user"]), np.bool_)
        if "event" in found:
            events = _as_text(found["event"])
            _count(self._num_events, events)
            if self._events:
                is_chosen &= np.isin(events.to_numpy(zero_copy_only=False), self._events)
        if self._ratings is not None:
            _count(self._ratings, _as_text(found["weight"]))
            if len(self._ratings) > _SCALE_VALUES:
                self._ratings = None
        if self._min_weight is not None:
            text = _as_text(found["weight"])
            is_number = pc.match_substring_regex(text, _NUMBER)
            column = self._columns["weight"]
            self._table.check(is_number, first_row, f"a {column} that is no number", "a number", "correct it")
            weights = pc.if_else(is_number, text, "-inf").cast(pa.float64()).to_numpy(zero_copy_only=False)
            self._num_light += int((weights < self._min_weight).sum())
            is_chosen &= weights >= self._min_weight
        return is_chosen

    def read_labels(self, labels: pa.Array, first_row: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each row of a batch was clicked, and whether it has a label at all; one without is an error."""
        text = pc.utf8_lower(pc.utf8_trim_whitespace(_as_text(labels)))
        is_clicked = pc.is_in(text, _CLICKED)
        is_label = pc.or_(is_clicked, pc.is_in(text, _ONLY_SHOWN))
        if not pc.all(is_label).as_py():
            value = quote(labels[pc.index(is_label, False).as_py()])
            self._table.check(
                is_label,
                first_row,
                f"{self._columns['label']} {value}",
                "1 for clicked or 0 for only shown",
                f"name another column with --columns label=COLUMN, take every row as a click with --columns "
                f"label={NO_COLUMN}",
            )
        return _as_mask(is_clicked), _as_mask(is_label)

    def describe(self) -> tuple[str, ...]:
        """What was chosen, for the summary; refuses a choice that leaves no row, or takes others than clicks."""
        return (*self._describe_events(), *self._describe_weights())

    def _describe_events(self) -> tuple[str, ...]:
        counts = self._num_events.most_common()
        if not counts:
            return ()
        shown = ", ".join(f"{name or 'none'} {count:,}" for name, count in counts[:_SHOWN_EVENTS])
        shown += ", ..." if len(counts) > _SHOWN_EVENTS else ""
        name = self._table.name
        if self._events:
            if not any(event in self._num_events for event in self._events):
                raise InputError(
                    f"--events {','.join(self._events)}: found events {shown} in {self._table.path}, expected "
                    "some of those asked for; correct it"
                )
            num_left = sum(count for event, count in counts if event not in self._events)
            return (f"{name}: events {shown}; {num_left:,} rows of other events than --events left out",)
        wrong = [event for event in self._num_events if is_no_click(event)]
        if wrong and len(counts) > 1 and "label" not in self._columns:
            rest = [event for event, _ in counts if event and event not in wrong]
            raise InputError(
                f"{self._table.path}: found events {shown}, expected clicks alone, which "
                f"{', '.join(wrong[:_SHOWN_EVENTS])} are not; name those that are with --events "
                f"{','.join(rest[:_SHOWN_EVENTS]) or 'EVENT,EVENT'}"
            )
        return (f"{name}: events {shown}; all are clicks, --events chooses some of them",)

    def _describe_weights(self) -> tuple[str, ...]:
        name, column = self._table.name, self._columns.get("weight")
        if self._min_weight is not None:
            return (f"{name}: {self._num_light:,} rows with a {column} below {self._min_weight:g} left out",)
        if not self._ratings or not all(re.match(_NUMBER, value) for value in self._ratings):
            return ()
        counts = {float(value): count for value, count in self._ratings.items()}
        middle = (min(counts) + max(counts)) / 2
        share = sum(count for value, count in counts.items() if value < middle) / self._ratings.total()
        if share < _LOW_SHARE:
            return ()
        return (
            f"warning: {name}: {share:.1%} of the rows have a {column} below {middle:g}, the middle of its scale, "
            "and are clicks like all others; --min-weight leaves them out",
        )


def is_no_click(event: str) -> bool:
    """Whether the name of an event says that it is no click: `product.shown`, `remove_from_cart`."""
    return any(_NO_CLICK.match(event, start) for start in (0, *(m.end() for m in re.finditer(r"[\W_]+", event))))


def _count(counts: Counter[str], values: pa.StringArray) -> None:
    for count in pc.value_counts(values).to_pylist():
        counts[count["values"]] += count["counts"]


def _as_text(values: pa.Array) -> pa.StringArray:
    return values.cast(pa.string()).fill_null("")


def _as_mask(values: pa.BooleanArray) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return mask
