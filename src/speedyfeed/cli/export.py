"""Export a trained recommender for other programs: the embeddings of all its articles, with their ids.

Example: speedyfeed export runs/first out/ --embeddings
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError
from speedyfeed.files import new_folder

if TYPE_CHECKING:
    from speedyfeed.models.catalogue import Catalogue

TABLE, ARRAY = "embeddings.parquet", "embeddings.npy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a finished run, or name of a recommender on the Hub."""
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """Folder to make; one that has files already is refused."""
    embeddings: bool = False
    """Export the embeddings of all articles: embeddings.parquet with news_id, category, title and embedding, and
    embeddings.npy with the same rows as a matrix of float32."""
    json: bool = False
    """Print the number and the width of the embeddings as one JSON object."""


def run(arguments: Arguments) -> None:
    if not arguments.embeddings:
        raise InputError("export: found nothing to export, expected --embeddings; add it")
    if arguments.out.is_dir() and any(arguments.out.iterdir()):
        raise InputError(f"{arguments.out}: found files in it, expected a new folder; give another OUT")
    catalogue = _catalogue(arguments.run)
    with new_folder(arguments.out) as folder:
        write_embeddings(folder, catalogue)
    num_news, width = catalogue.embeddings_VD.shape
    if arguments.json:
        print(json.dumps({"news": num_news, "width": width, "files": [TABLE, ARRAY]}))
    else:
        print(f"{num_news:,} embeddings of width {width}: {arguments.out / TABLE}, {arguments.out / ARRAY}")


def write_embeddings(folder: Path, catalogue: "Catalogue") -> None:
    """Write the embeddings of a catalogue as Parquet and as npy, in the same order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    matrix_VD = np.ascontiguousarray(catalogue.embeddings_VD.float().numpy())
    columns = {
        "news_id": pa.array(catalogue.news_ids, pa.string()),
        "category": pa.array(catalogue.categories, pa.string()),
        "title": pa.array(catalogue.titles, pa.string()),
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(matrix_VD.ravel()), matrix_VD.shape[1]),
    }
    pq.write_table(pa.table(columns), folder / TABLE)
    np.save(folder / ARRAY, matrix_VD)


def _catalogue(run: Path) -> "Catalogue":
    from speedyfeed.pretrained import Recommender

    catalogue = Recommender.from_pretrained(run).catalogue
    if catalogue is None:
        raise InputError(f"{run}: found a recommender without articles, expected a finished run; train one")
    if catalogue.texts is not None:
        raise InputError(
            f"{run}: found a model whose embeddings of articles differ for every user, expected one embedding per "
            "article; export another recipe than npa"
        )
    return catalogue
