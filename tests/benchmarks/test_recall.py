import json
from itertools import chain

from benchmarks.__main__ import main


def test_the_recall_benchmark_compares_both_searches_in_one_run(capsys):
    small = {"--width": "16", "--queries": "20", "--alone": "2", "--k": "50", "--rounds": "1"}
    main(["recall", "--sizes", "300", "900", *chain(*small.items()), "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert [row["news"] for row in figures["rows"]] == [300, 900]
    for row in figures["rows"]:
        assert row["recall"] >= 0.98
        assert row["parameters"]["graphs"] == 1
        assert min(value for name, value in row.items() if name.endswith(("second", "seconds"))) > 0
