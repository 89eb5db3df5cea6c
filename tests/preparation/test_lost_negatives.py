"""Logs whose skipped ids all lack text, as where a separator is missing."""

import pytest

from speedyfeed.cli.prepare import print_summary
from speedyfeed.preparation.prepare import PrepareConfig, prepare


def write_log(folder, *, skipped, dev_skipped="N2"):
    news = "".join(f"N{number}\tsports\tgolf\tTitle {number} of golf\t\t\n" for number in range(1, 6))
    files = {
        "traindata/DocFeatures.tsv": news,
        "testdata/DocFeatures.tsv": news,
        "traindata/ProtoBuf_0.tsv": "".join(f"U{user}\tN1;N3&{skipped}|N4&{skipped}\n" for user in range(4)),
        "testdata/impressions/ProtoBuf_0.tsv": f"U0\tN1;N3\tN4\t{dev_skipped}\n",
        "testdata/daily_recall/daily_news_1.tsv": "N1\tN2\tN4\n",
        "testdata/daily_recall/history_positive_1.tsv": "U0\tN1\tN4\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("skipped", "reason"),
    [
        ("N2N5", "ids look glued together, e.g. 'N2N5' is 'N2' and 'N5': separate them"),
        ("X1;X2", "e.g. 'X1': check that the news file belongs to these impressions"),
    ],
)
def test_clicks_whose_negatives_all_lack_text_are_said_aloud(tmp_path, capsys, skipped, reason):
    logs = write_log(tmp_path / "logs", skipped=skipped)
    store = prepare(logs, tmp_path / "store", PrepareConfig(validation=0)).store
    assert store.splits == ("train", "dev", "test")
    (note,) = store.manifest.counts.notes
    total = 8 * len(skipped.split(";"))
    assert note == f"warning: train: no click has negatives, all {total} skipped ids lack text; {reason}"
    print_summary(store)
    assert note in capsys.readouterr().out


def test_one_known_negative_is_enough(tmp_path):
    logs = write_log(tmp_path / "logs", skipped="N2N5;N2", dev_skipped="N2N5")
    store = prepare(logs, tmp_path / "store", PrepareConfig(validation=0)).store
    assert [note[:13] for note in store.manifest.counts.notes] == ["warning: dev:"]
