"""A news encoder and a user encoder together: what training makes, a folder holds and a service loads.

texts --news--> news_MD          history --news, user--> user_D          score = user . news
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from speedyfeed import __version__
from speedyfeed.errors import InputError
from speedyfeed.folders import write_json
from speedyfeed.models.catalogue import Catalogue, load_catalogue
from speedyfeed.models.names import load_tokenizer
from speedyfeed.models.news import NewsEncoder, NewsEncoderConfig
from speedyfeed.models.plm import build_encoder, load_config
from speedyfeed.models.users import UserConfig, build_user_encoder, weigh_clicks

CONFIG = "recommender.json"
WEIGHTS = "model.safetensors"
ENCODER = "encoder"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecommenderConfig:
    """What a recommender is made of."""

    news: NewsEncoderConfig = field(default_factory=NewsEncoderConfig)
    user: UserConfig = field(default_factory=UserConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """One news for one reader."""

    news_id: str
    title: str
    category: str
    score: float


class Recommender(nn.Module):
    """Texts and histories in, scores and recommendations out."""

    def __init__(self, config: RecommenderConfig, news: NewsEncoder | None = None) -> None:
        """Loads the pretrained encoder that `config` names, unless a news encoder is given."""
        super().__init__()
        self.config = config
        self.news = news or NewsEncoder(config.news)
        self.user = build_user_encoder(config.user, dim=self.news.dim)
        self.catalogue: Catalogue | None = None
        """News it can recommend, where it was saved with some."""

    def encode_news(self, texts: Sequence[str | Sequence[str]]) -> NDArray[np.float32]:
        """One row per text; a text is a string, or its title, abstract and body."""
        return self.news.encode(texts)

    @torch.no_grad()
    def encode_user(self, history: Sequence[str] | NDArray[np.float32]) -> NDArray[np.float32]:
        """The reader after these clicks, oldest first: ids of the catalogue, or rows of embeddings.

        An empty history gives the learned start. Ids that are not in the catalogue are an error.
        """
        if isinstance(history, np.ndarray):
            clicks_LD = torch.from_numpy(history)
        else:
            catalogue = self._require_catalogue()
            unknown = [news_id for news_id in history if news_id not in catalogue.row]
            if unknown:
                raise InputError(
                    f"news {', '.join(unknown)}: not among the {len(catalogue):,} this recommender knows"
                )
            clicks_LD = catalogue.embeddings_VD[[catalogue.row[news_id] for news_id in history]]
        users_1D = self.encode_users(clicks_LD.reshape(1, -1, self.news.dim))
        return users_1D[0].numpy()

    @torch.no_grad()
    def encode_users(self, clicks_BLD: Tensor, clicked_BL: Tensor | None = None) -> Tensor:
        """users_BD after all their clicks, in host memory; `clicked_BL` is False at padding."""
        was_training = self.training
        if was_training:
            self.train(False)
        if clicked_BL is None:
            clicked_BL = torch.ones(clicks_BLD.shape[:2], dtype=torch.bool)
        device = next(self.parameters()).device
        users_BPD: Tensor = self.user(clicks_BLD.to(device), clicked_BL.to(device))
        if was_training:
            self.train(True)
        return users_BPD[:, -1].float().cpu()

    @torch.no_grad()
    def weigh_clicks(self, clicks: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Each click's share of the reader; the learned start has the rest. None: it cannot be told.

        With user encoders that sum clicks as they are (attentive, additive), a score is the sum of each click's
        share times its inner product with the candidate.
        """
        weights_L = weigh_clicks(self.user, torch.from_numpy(clicks).to(next(self.parameters()).device))
        return None if weights_L is None else weights_L.cpu().numpy()

    def score(self, history: Sequence[str], candidates: Sequence[str]) -> NDArray[np.float32]:
        """How well each candidate suits the reader of that history; both as ids of the catalogue."""
        catalogue = self._require_catalogue()
        unknown = [news_id for news_id in candidates if news_id not in catalogue.row]
        if unknown:
            raise InputError(f"news {', '.join(unknown)}: not among the {len(catalogue):,} this recommender knows")
        rows = [catalogue.row[news_id] for news_id in candidates]
        scores: NDArray[np.float32] = catalogue.embeddings_VD[rows].numpy() @ self.encode_user(history)
        return scores

    def recommend(self, history: Sequence[str], *, k: int = 10) -> list[Recommendation]:
        """The k best news of the catalogue for the reader of that history, without those already read."""
        catalogue = self._require_catalogue()
        scores_V = catalogue.embeddings_VD @ torch.from_numpy(self.encode_user(history))
        scores_V[[catalogue.row[news_id] for news_id in history]] = -torch.inf
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
        """Write all that `from_pretrained` needs: configs, weights, tokenizer, and the catalogue if any."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, {"speedyfeed": __version__} | _plain(dataclasses.asdict(self.config)))
        save_model(self, str(folder / WEIGHTS))
        self.news.encoder.config.save_pretrained(folder / ENCODER)
        self.news.tokenizer.save_pretrained(folder / ENCODER)
        if self.catalogue is not None:
            self.catalogue.save(folder)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Recommender":
        """A recommender from its folder, from a run folder, or from the Hub."""
        folder = _find(path)
        try:
            facts = json.loads((folder / CONFIG).read_text("utf-8"))
            config = RecommenderConfig(news=NewsEncoderConfig(**facts["news"]), user=UserConfig(**facts["user"]))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: holds no recommender of this version ({error})") from error
        encoder = build_encoder(load_config(str(folder / ENCODER)))
        news = NewsEncoder(config.news, encoder=encoder, tokenizer=load_tokenizer(str(folder / ENCODER)))
        model = cls(config, news)
        load_model(model, str(folder / WEIGHTS))
        if (folder / "news.parquet").exists():
            model.catalogue = load_catalogue(folder)
        return model.eval()

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the saved folder to the Hub; options as `huggingface_hub.upload_folder` takes them."""
        from tempfile import TemporaryDirectory

        from huggingface_hub import create_repo, upload_folder

        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            create_repo(repo_id, exist_ok=True)
            return str(upload_folder(repo_id=repo_id, folder_path=folder, **options))

    def _require_catalogue(self) -> Catalogue:
        if self.catalogue is None:
            raise InputError("this recommender was saved without news; give embeddings, or load a finished run")
        return self.catalogue


def _find(path: str | Path) -> Path:
    """The folder itself, the `model` folder of a run, or a download from the Hub."""
    folder = Path(path)
    if (folder / "model" / CONFIG).exists():
        return folder / "model"
    if folder.exists():
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path)))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: no such folder, and no such model on the Hub (or it cannot be reached)"
        ) from error


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Paths as text."""
    return json.loads(json.dumps(config, default=str))  # type: ignore[no-any-return]
