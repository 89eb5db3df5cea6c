import json

from benchmarks.__main__ import main


def test_packed_has_no_padding_and_central_has_less(store, tmp_path, capsys):
    main(["data-efficiency", "--store", str(store.path), "--json", "--out", str(tmp_path)])
    figures = json.loads(capsys.readouterr().out)
    for name in ("packed", "padded", "packed_positions", "padded_positions"):
        assert list(figures[name]) == ["1", "2", "4", "8"]
    assert set(figures["packed"].values()) == set(figures["packed_positions"].values()) == {1.0}
    for buckets, share in figures["padded"].items():
        assert figures["conventional"] < figures["padded_positions"][buckets] < share < 1
    assert (tmp_path / "data-efficiency.png").read_bytes().startswith(b"\x89PNG")
    assert "| packed, central (ours)" in (tmp_path / "data-efficiency.md").read_text()
