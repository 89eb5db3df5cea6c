import pytest

from speedyfeed.data.readers import FORMATS, open_logs
from speedyfeed.errors import InputError

SAMPLES = {
    "mind": ["train/news.tsv", "train/behaviors.tsv"],
    "msnews": ["news.tsv", "train/users.tsv"],
    "speedyrec": ["DocFeatures.tsv", "traindata/ProtoBuf_0.tsv"],
    "ebnerd": ["articles.parquet", "train/behaviors.parquet", "train/history.parquet"],
    "adressa": ["20170101", "20170102.json"],
    "interactions": ["items.csv", "interactions.jsonl.gz"],
    "parquet": ["train/news.parquet", "train/impressions.parquet"],
}


@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_is_recognised_by_its_file_names(tmp_path, format):
    for name in SAMPLES[format]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    logs = open_logs(tmp_path)
    assert logs.format == format
    assert logs.splits[0].name == "train"
    assert {file.relative_to(tmp_path).as_posix() for split in logs.splits for file in split.files} == set(
        SAMPLES[format]
    )
    assert open_logs(tmp_path, format).splits[0].files == logs.splits[0].files


def test_an_unrecognisable_folder_lists_the_formats_and_their_files(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="found logs of no known format") as error:
        open_logs(tmp_path)
    assert all(f"{format}: " in str(error.value) for format in FORMATS)
    assert "behaviors.tsv" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "kind"),
    [(("manifest.json", "news/x"), "a prepared store"), (("run.json", "metrics.jsonl"), "a training run")],
)
def test_what_was_made_from_logs_is_not_taken_for_logs(tmp_path, names, kind):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=f"found {kind}, expected raw logs"):
        open_logs(tmp_path)


def test_an_unknown_format_lists_the_known_ones(tmp_path):
    with pytest.raises(InputError, match=r"format 'csv': found no such format, expected one of mind: .*; choose"):
        open_logs(tmp_path, "csv")


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_missing_folder_is_an_error(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(
        InputError, match=f"{name}: found no such folder, expected a folder of logs; check the path"
    ):
        open_logs(tmp_path / name)


def test_a_format_that_does_not_fit_the_folder_names_the_missing_file(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(InputError, match=r"train/news\.tsv: found no such file"):
        open_logs(tmp_path, "mind")
