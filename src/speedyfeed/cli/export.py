"""Export a trained recommender for other programs: embeddings of all its articles, or its encoders as ONNX.

Example: speedyfeed export runs/first out/ --embeddings --onnx
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, require_new_folder

if TYPE_CHECKING:
    from speedyfeed.models.catalogue import Catalogue
    from speedyfeed.pretrained import Recommender

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
    onnx: bool = False
    """Export the news encoder and the user encoder as ONNX: news.onnx, user.onnx, tokenizer.json and onnx.json;
    prints their sizes, their difference from PyTorch, and the speed of both."""
    json: bool = False
    """Print what was exported as one JSON object."""


def run(arguments: Arguments) -> None:
    if not (arguments.embeddings or arguments.onnx):
        raise InputError("export: found nothing to export, expected --embeddings or --onnx; add one")
    require_new_folder(arguments.out)
    from speedyfeed.pretrained import Recommender

    model = Recommender.from_pretrained(arguments.run)
    catalogue = _catalogue(arguments.run, model)
    facts: dict[str, Any] = {"files": []}
    with new_folder(arguments.out) as folder:
        if arguments.embeddings:
            write_embeddings(folder, catalogue)
            num_news, width = catalogue.embeddings_VD.shape
            facts |= {"news": num_news, "width": width}
        if arguments.onnx:
            from speedyfeed.onnx_export import export_onnx

            facts["onnx"] = [dataclasses.asdict(exported) for exported in export_onnx(model, folder)]
        facts["files"] = sorted(path.name for path in folder.iterdir())
    if arguments.json:
        print(json.dumps(facts))
        return
    if arguments.embeddings:
        shape = f"{facts['news']:,} embeddings of width {facts['width']}"
        print(f"{shape}: {arguments.out / TABLE}, {arguments.out / ARRAY}")
    for one in facts.get("onnx", ()):
        print(
            f"{arguments.out / one['file']}: {one['megabytes']:.1f} MB, differs from PyTorch by at most "
            f"{one['difference']:.1e}, {one['onnx_per_second']:,.0f} a second (PyTorch "
            f"{one['torch_per_second']:,.0f})"
        )


def write_embeddings(folder: Path, catalogue: "Catalogue") -> None:
    """Write the embeddings of a catalogue as Parquet and as npy, in the same order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    matrix = np.ascontiguousarray(catalogue.embeddings_VD.float().numpy())
    columns = {
        "news_id": pa.array(catalogue.news_ids, pa.string()),
        "category": pa.array(catalogue.categories, pa.string()),
        "title": pa.array(catalogue.titles, pa.string()),
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1]),
    }
    pq.write_table(pa.table(columns), folder / TABLE)
    np.save(folder / ARRAY, matrix)


def _catalogue(run: Path, model: "Recommender") -> "Catalogue":
    catalogue = model.catalogue
    if catalogue is None:
        raise InputError(f"{run}: found a recommender without articles, expected a finished run; train one")
    if catalogue.texts is not None:
        raise InputError(
            f"{run}: found a model whose embeddings of articles differ for every user, expected one embedding per "
            "article; export another recipe than npa"
        )
    return catalogue
