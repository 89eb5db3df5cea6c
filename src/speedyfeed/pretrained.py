"""The recommender as users load and save it: texts and article ids in, scores and recommendations out.

texts --news--> news_MD          history --news, user--> user_D          score = user . news

Shapes: V articles of the catalogue   M texts   L clicks   D embedding width
"""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from speedyfeed import __version__
from speedyfeed.checksums import damaged, verify_checksums, write_checksums
from speedyfeed.encoding.inputs import ENCODER, TEXT, load_packer
from speedyfeed.errors import InputError, command
from speedyfeed.files import write_json
from speedyfeed.models.catalogue import Catalogue, load_catalogue
from speedyfeed.models.config import NewsEncoderConfig, RecommenderConfig, UserConfig, WordConfig
from speedyfeed.models.id_maps import UNKNOWN, load_id_maps, lookup_indices
from speedyfeed.models.packed import Article
from speedyfeed.models.plm import build_encoder, load_config
from speedyfeed.models.recommender import RecommenderModule
from speedyfeed.tokenizers import load_tokenizer

CONFIG = "recommender.json"
"""File that holds the settings of a saved recommender."""
WEIGHTS = "model.safetensors"
"""File that holds its weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """One recommended article and its score for the user."""

    news_id: str
    """Id of the article in the log."""
    title: str
    """Title of the article."""
    category: str
    """Category of the article; empty if it has none."""
    score: float
    """Inner product of the user and the article; higher is better."""


class Recommender(RecommenderModule):
    """A trained recommender: texts and histories in, scores and recommendations out.

    >>> model = Recommender.from_pretrained("runs/first")
    >>> model.recommend(["N1", "N2"], k=5)
    """

    catalogue: Catalogue | None = None
    """Articles that it can recommend; None if it was saved without any."""

    def encode_news(
        self, texts: Sequence[Article], categories: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Encode texts, (texts, dim); a text is a string, or title, abstract and body in order or by name.

        Texts are prepared like the training data. `categories` are their categories, one each; "" is none.

        >>> model.encode_news(["Late goal wins the cup", {"title": "Rain", "body": "All week."}])
        """
        if categories is not None:
            _require_list(categories, "categories")
            if len(categories) != len(texts):
                raise InputError(
                    f"categories: found {len(categories)} for {len(texts)} texts, expected one for each text"
                )
        if categories is None or not self.id_maps.categories:
            return self.news.encode(texts)
        indices = lookup_indices(pa.array(categories, pa.string()), self.id_maps.categories)
        return self.news.encode(texts, categories_M=torch.from_numpy(indices))

    def encode_user(
        self, history: Sequence[str] | NDArray[np.float32], *, user: str | None = None
    ) -> NDArray[np.float32]:
        """Encode a user by their clicks, oldest first, given as ids of articles or as rows of embeddings.

        An empty history is a new user; of a long one the latest clicks count, as many as in training. Ids that are
        not in the catalogue raise `InputError`. `user` is the id of the user, for models that use it; an id that
        was not seen in training is an unknown user.
        """
        if isinstance(history, np.ndarray):
            if history.ndim != 2 or history.shape[1] != self.news.dim:
                raise InputError(
                    f"history: found embeddings of shape {history.shape}, expected (clicks, {self.news.dim})"
                )
            return self._encode_clicks(torch.from_numpy(history.astype(np.float32)), self._user_index(user))
        return self._encode_clicks(self._news_for(user)[self._rows(history)], self._user_index(user))

    def score(
        self, history: Sequence[str], candidates: Sequence[str], *, user: str | None = None
    ) -> NDArray[np.float32]:
        """Score candidates for the user with this history; both are given as ids of articles."""
        rows = self._rows(candidates)
        news_VD = self._news_for(user)
        user_D = self._encode_clicks(news_VD[self._rows(history)], self._user_index(user))
        scores: NDArray[np.float32] = news_VD[rows].numpy() @ user_D
        return scores

    def recommend(self, history: Sequence[str], *, k: int = 10, user: str | None = None) -> list[Recommendation]:
        """Recommend the k best articles for the user with this history, without those already clicked."""
        if k < 1:
            raise InputError(f"k {k}: expected at least 1")
        catalogue = self._require_catalogue()
        clicked = self._rows(history)
        news_VD = self._news_for(user)
        scores_V = news_VD @ torch.from_numpy(self._encode_clicks(news_VD[clicked], self._user_index(user)))
        scores_V[clicked] = -torch.inf
        best = scores_V.topk(min(k, len(catalogue) - len(set(history))))
        return [
            Recommendation(
                news_id=catalogue.news_ids[row],
                title=catalogue.titles[row],
                category=catalogue.categories[row],
                score=score,
            )
            for score, row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write settings, weights, tokenizer and catalogue into a folder, for `from_pretrained`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, {"speedyfeed": __version__} | _plain(dataclasses.asdict(self.config)))
        save_model(self, str(folder / WEIGHTS))
        self.news.save(folder / ENCODER)
        self.id_maps.save(folder)
        if self.news.packer is not None:
            self.news.packer.save(folder)
        if self.catalogue is not None:
            self.catalogue.save(folder)
        write_checksums(folder)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Recommender":
        """Load a recommender from a finished run, from a folder that `save_pretrained` wrote, or from the Hub."""
        folder = find_recommender(path)
        verify_checksums(folder, remedy_for(folder))
        try:
            facts = json.loads((folder / CONFIG).read_text("utf-8"))
            config = RecommenderConfig(
                news=NewsEncoderConfig(**facts["news"]),
                words=WordConfig(**facts["words"]),
                user=UserConfig(**facts["user"]),
                max_clicks=facts.get("max_clicks"),  # models of earlier versions have no limit
            )
            id_maps = load_id_maps(folder)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise _other_version(folder, f"settings that this one does not know ({error})") from error
        encoder = None if config.uses_words else build_encoder(load_config(str(folder / ENCODER)))
        model = cls(config, id_maps=id_maps, tokenizer=load_tokenizer(str(folder / ENCODER)), encoder=encoder)
        load_weights(model, folder / WEIGHTS)
        if (folder / TEXT).exists():
            model.news.packer = load_packer(folder)
        if (folder / "news.parquet").exists():
            model.catalogue = load_catalogue(folder)
            if not model.catalogue.embeddings_VD.isfinite().all():
                raise InputError(f"{folder}: article embeddings hold NaN or Inf; {remedy_for(folder)}")
        return model.eval()

    def push_to_hub(
        self, repo_id: str, *, token: str | None = None, private: bool | None = None, **options: Any
    ) -> str:
        """Upload the recommender to the Hub; `options` are passed to `huggingface_hub.upload_folder`."""
        from tempfile import TemporaryDirectory

        from huggingface_hub import create_repo, upload_folder

        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            create_repo(repo_id, token=token, private=private, exist_ok=True)
            return str(upload_folder(repo_id=repo_id, folder_path=folder, token=token, **options))

    def _encode_clicks(self, clicks_LD: Tensor, user: int) -> NDArray[np.float32]:
        clicks_1LD = clicks_LD[self.config.latest_clicks].reshape(1, -1, self.news.dim)
        users_1D = self.encode_users(clicks_1LD, user_ids_B=torch.tensor([user]))
        return users_1D[0].numpy()

    def _user_index(self, user: str | None) -> int:
        return 1 + self.id_maps.users.index(user) if user in self.id_maps.users else UNKNOWN

    def _news_for(self, user: str | None) -> Tensor:
        """Embeddings of the catalogue, for this user if the model is user-dependent."""
        catalogue = self._require_catalogue()
        if catalogue.texts is None:
            return catalogue.embeddings_VD
        return self.news.encode_all(catalogue.texts.for_user(self._user_index(user)))

    def _rows(self, news_ids: Sequence[str]) -> list[int]:
        catalogue = self._require_catalogue()
        _require_list(news_ids, "articles")
        unknown = [news_id for news_id in news_ids if news_id not in catalogue.row]
        if unknown:
            raise InputError(
                f"news {', '.join(map(str, unknown))}: not among the {len(catalogue):,} articles of the catalogue"
            )
        return [catalogue.row[news_id] for news_id in news_ids]

    def _require_catalogue(self) -> Catalogue:
        if self.catalogue is None:
            raise InputError(
                "this recommender was saved without articles; give embeddings, or load a finished run"
            )
        return self.catalogue


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights that `save_pretrained` wrote; a file that cannot be read, or holds NaN or Inf, is refused."""
    try:
        missing, unexpected = load_model(model, str(path), strict=False)
    except SafetensorError as error:
        raise damaged(path, remedy_for(path.parent)) from error
    except RuntimeError as error:
        raise _other_version(path.parent, "weights of other shapes") from error
    if missing or unexpected:
        found = [f"no weights {name}" for name in sorted(missing)] + [f"weights {name}" for name in unexpected]
        raise _other_version(path.parent, found[0])
    if not all(bool(value.isfinite().all()) for value in model.parameters()):
        raise InputError(f"{path}: holds NaN or Inf; {remedy_for(path.parent)}")


def _other_version(folder: Path, found: str) -> InputError:
    """Error for an intact recommender that this version cannot load."""
    try:
        version = json.loads((folder / CONFIG).read_text("utf-8"))["speedyfeed"]
    except (OSError, KeyError, TypeError, ValueError):
        version = "of an unknown version"
    return InputError(
        f"{folder}: was saved by speedyfeed {version}, this is {__version__}: found {found}; train it again, or "
        "use it with the version that saved it"
    )


def _require_list(words: Sequence[str], name: str) -> None:
    """Refuse a single text where several are meant, as its letters would be taken for them."""
    if isinstance(words, str):
        raise InputError(f"{name} {words!r}: found a single text, expected a list; give [{words!r}]")


def remedy_for(folder: Path) -> str:
    """Advice on how to get a damaged recommender back: a run can write its model again."""
    if folder.name == "model" and (folder.parent / "run.json").exists():
        return f"remove {shlex.quote(str(folder))}, then: {command('train', 'STORE', folder.parent, '--resume')}"
    return "save or download it again"


def find_recommender(path: str | Path) -> Path:
    """Find the folder of a recommender: the `model` folder of a run, the folder itself, or a download."""
    folder = Path(path)
    if (folder / "model" / CONFIG).exists():
        return folder / "model"
    if (folder / "run.json").exists() and not (folder / "model").exists():
        raise InputError(
            f"{path}: the run has not finished; resume: {command('train', 'STORE', path, '--resume')}"
        )
    if (folder / CONFIG).exists():
        return folder
    if folder.exists():
        raise InputError(f"{path}: holds no recommender ({CONFIG}); give a finished run or a saved recommender")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path)))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: no such folder, and no such model on the Hub (or it cannot be reached)"
        ) from error


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Convert a configuration to plain JSON values, paths to text."""
    return json.loads(json.dumps(config, default=str))  # type: ignore[no-any-return]
