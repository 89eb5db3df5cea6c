"""Impressions joined into one click timeline per user, with negatives; as Ibis expressions.

Every impression has a number, its `row` in the log. A user's timeline is the history of the first impression, then
all clicks in time order. The pool of an impression holds the negatives of its clicks: the articles shown but not
clicked. Clicks of the history have no impression (row -1); the user's first impression is the nearest to them:

    impressions of U7                              timeline of U7
    row  time   history  clicked  skipped          news   8  5  3  6
    4    09:05  [8, 5]   [3]      [1, 2]           row   -1 -1  4  9      first 4
    9    09:40  [8, 5]   [6]      [4]              pools: 4 -> [1, 2], 9 -> [4]

`ids` is (news_id, news): the number of every article with text. References to any other article are left out.
"""

from collections.abc import Sequence

import ibis
import ibis.expr.types as ir
from ibis import _


def clicks(impressions: ir.Table, ids: ir.Table) -> ir.Table:
    """(user_id, position, row, first, news) of every click, by user and in time order, histories first."""
    by_time = ibis.window(group_by="user_id", order_by=[_.time, _.row])
    numbered = impressions.select(
        "user_id", "time", "row", "history", "clicked", first=_.row.first().over(by_time)
    )
    # Row -1 sorts a history before the impression it came with, which is the user's first.
    first = numbered.filter(_.row == _.first).mutate(row=ibis.literal(-1, "int64"))
    before = _references(first, "history", "user_id", "time", "row", "first")
    after = _references(numbered, "clicked", "user_id", "time", "row", "first")
    position = ibis.row_number().over(group_by="user_id", order_by=[_.time, _.row, _.position])
    return (
        ibis.union(before, after)
        .join(ids, "news_id")
        .select("user_id", "row", "first", "news", position=position)
        .order_by("user_id", "position")
    )


def pools(impressions: ir.Table, ids: ir.Table) -> ir.Table:
    """(row, news) of the articles shown but not clicked, in impressions with a click, ordered by row."""
    shown = _references(impressions.filter(_.clicked.length() > 0), "skipped", "row")
    return shown.join(ids, "news_id").order_by("row", "position").select("row", "news")


def candidates(impressions: ir.Table, ids: ir.Table) -> ir.Table:
    """(row, news, label) of all candidates, in the order shown.

    The label is 1 for clicked, 0 for shown but not clicked, -1 for unknown. Candidates without text have number 0,
    because a ranking must include them.
    """
    label = ibis.cases((~_.labelled, -1), (_.clicked.contains(_.news_id), 1), else_=0)
    shown = impressions.mutate(
        shown=shown_news(impressions), labelled=(_.clicked.length() + _.skipped.length()) > 0
    )
    return (
        _references(shown, "shown", "row", "clicked", "labelled")
        .left_join(ids, "news_id")
        .select("row", "position", news=_.news.fill_null(0), label=label.cast("int8"))
        .order_by("row", "position")
        .select("row", "news", "label")
    )


def users(impressions: ir.Table) -> ir.Table:
    """Impressions with their `user`: the first row with the same user and history, so that each is stored once."""
    key = impressions.history.join(" ").hash()
    return impressions.mutate(key=key).mutate(user=_.row.min().over(group_by=["user_id", "key"])).drop("key")


def histories(
    users: ir.Table, ids: ir.Table, train_clicks: ir.Table | None, *, use_longer: bool = False
) -> ir.Table:
    """(row, news) of the clicks before the split, once per user, oldest first.

    Where the log gives no history, the user's train timeline is used instead, if there is one; with `use_longer`
    also where the timeline is longer.
    """
    distinct = users.filter(_.row == _.user)
    given = _references(distinct, "history", "row").join(ids, "news_id").select("row", "position", "news")
    if train_clicks is None:
        return given.order_by("row", "position").select("row", "news")
    from_train = (
        distinct.select("user_id", user="row")
        .join(train_clicks.select("user_id", "position", "news"), "user_id")
        .select(row="user", position=_.position.cast("int64"), news="news")
    )
    if use_longer:
        num_given = given.group_by("row").agg(num_given=_.count())
        num_train = from_train.group_by("row").agg(num_train=_.count())
        chosen = num_train.left_join(num_given, "row").filter(_.num_train > _.num_given.fill_null(0)).select("row")
    else:
        chosen = distinct.filter(_.history.length() == 0).select("row")
    used = ibis.union(given.anti_join(chosen, "row"), from_train.semi_join(chosen, "row"))
    return used.order_by("row", "position").select("row", "news")


def shown_news(impressions: ir.Table) -> ir.ArrayValue:
    """Candidates of an impression: as listed, or clicked then skipped where the log has no order."""
    return ibis.coalesce(impressions.candidates, impressions.clicked.concat(impressions.skipped))


def referenced(impressions: ir.Table) -> ir.Table:
    """(news_id) of every article that impressions refer to: in a history, shown or clicked."""
    shown = impressions.mutate(shown=shown_news(impressions))
    ids = [_references(shown, column).select("news_id") for column in ("history", "shown")]
    return ibis.union(*ids, distinct=True)


def first_shown(splits: Sequence[ir.Table]) -> ir.Table:
    """(news_id, first_shown): when the impressions of these splits first showed an article, seconds since 1970."""
    shown = [
        _references(impressions.mutate(shown=shown_news(impressions)), "shown", "time").drop("position")
        for impressions in splits
    ]
    times = ibis.union(*shown) if len(shown) > 1 else shown[0]
    return times.group_by("news_id").agg(first_shown=_.time.min().epoch_seconds().cast("int64"))


def count_references(lists: ir.Table, column: str, ids: ir.Table) -> ir.Table:
    """One row (total, known): the number of ids in a list column, and of those with text."""
    named = _references(lists, column).left_join(ids, "news_id")
    return named.agg(total=_.count(), known=_.news.count())


def _references(table: ir.Table, column: str, *keep: str) -> ir.Table:
    """One row (news_id, position, ...) per entry of a list column."""
    return table.select(*keep, news_id=table[column]).unnest("news_id", offset="position")
