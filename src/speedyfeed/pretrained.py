"""The recommender as users load and save it: texts and article ids in, scores and recommendations out.

texts --news--> news_MD          history --news, user--> user_D          score = user . news

Shapes: V articles of the catalogue, M texts, L clicks, Q queries (the user, then each interest), D embedding
width.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from safetensors.torch import save_model
from torch import Tensor

from speedyfeed import __version__
from speedyfeed.checksums import verify_checksums, write_checksums
from speedyfeed.encoding.inputs import ENCODER, TEXT, Articles, load_packer
from speedyfeed.errors import InputError
from speedyfeed.files import read_json, write_json
from speedyfeed.model_card import CARD, CardFacts, write_card
from speedyfeed.models.base import AbsentNewsEncoder
from speedyfeed.models.catalogue import Catalogue, load_catalogue
from speedyfeed.models.config import (
    USER_DEPENDENT,
    NewsEncoderConfig,
    RecommenderConfig,
    UserConfig,
    WordConfig,
)
from speedyfeed.models.id_maps import UNKNOWN, load_id_maps, lookup_indices
from speedyfeed.models.packed import Article
from speedyfeed.models.recommender import RecommenderModule
from speedyfeed.retrieval.interests import group_clicks
from speedyfeed.retrieval.rerank import Candidates, RerankConfig, UserClicks
from speedyfeed.retrieval.rerank import rerank as rerank_candidates
from speedyfeed.saved_model import CONFIG, WEIGHTS, find_recommender, load_weights, other_version, remedy_for
from speedyfeed.scoring import Users
from speedyfeed.tokenizers import load_tokenizer

MODULES, NEWS_MODULE = "modules.json", "speedyfeed.sentence_transformer.NewsTexts"
"""File by which sentence-transformers loads the news encoder, and the class that it names."""


class SupportsJson(Protocol):
    """A report of an evaluation: means and `<name>_ci95` intervals of metrics, by name."""

    def to_json(self) -> dict[str, Any]:
        """Metrics as plain values."""
        ...


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
    """Score of the article for the user: the match with the history, before re-ranking."""


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

        The embedding is one vector, to search by. Scores are exact: with `sharpness` in the settings of the user
        encoder they compare an article with every click.

        An empty history is a new user; of a long one the latest clicks count, as many as in training. Ids that are
        not in the catalogue raise `InputError`. `user` is the id of the user, for models that use it; an id that
        was not seen in training is an unknown user.
        """
        if isinstance(history, np.ndarray):
            if history.ndim != 2 or history.shape[1] != self.news.dim:
                raise InputError(
                    f"history: found embeddings of shape {history.shape}, expected (clicks, {self.news.dim})"
                )
            users = self._encode_clicks(torch.from_numpy(history.astype(np.float32)), self._user_index(user))
        else:
            users = self._encode_clicks(self._news_for(user)[self._rows(history)], self._user_index(user))
        embedding: NDArray[np.float32] = users.means_BPD[0, 0].numpy()
        return embedding

    def score(
        self, history: Sequence[str], candidates: Sequence[str], *, user: str | None = None
    ) -> NDArray[np.float32]:
        """Score candidates for the user with this history; both are given as ids of articles."""
        rows = self._rows(candidates)
        news_VD = self._news_for(user)
        users = self._encode_clicks(news_VD[self._rows(history)], self._user_index(user))
        scores: NDArray[np.float32] = users.score_all(news_VD[rows])[0, 0].numpy()
        return scores + self._require_catalogue().added[rows]

    def recommend(
        self,
        history: Sequence[str],
        *,
        k: int = 10,
        user: str | None = None,
        seen: Sequence[str] = (),
        rerank: RerankConfig | None = None,
    ) -> list[Recommendation]:
        """Recommend k articles to the user with this history, without those already clicked or `seen`.

        The list is re-ranked (`RerankConfig`) to be varied and to follow the sections of the history; `PLAIN`
        is the order of the scores. It may be shorter than k where near-duplicates are left out.
        """
        if k < 1:
            raise InputError(f"k {k}: expected at least 1")
        config = rerank or RerankConfig()
        catalogue = self._require_catalogue()
        clicked = self._rows(history)
        excluded = [*clicked, *(catalogue.row[one] for one in seen if one in catalogue.row)]
        news_VD = self._news_for(user).numpy()
        users = self.encode_interests(news_VD[clicked], config.interests, user=user)
        scores_VQ = users.score_all(torch.from_numpy(news_VD))[0].numpy().T + catalogue.added[:, None]
        scores_VQ[excluded] = -np.inf
        own = catalogue.sections[clicked[self.config.latest_clicks]]
        reads = UserClicks.from_sections(
            own, catalogue.section_clicks, read_LD=news_VD[excluded], headlines_L=catalogue.headlines[excluded]
        )
        candidates = Candidates(
            embeddings_ND=news_VD,
            scores_NQ=scores_VQ,
            clicks_N=None if catalogue.num_clicks is None else np.asarray(catalogue.num_clicks, np.float64),
            sections_N=catalogue.sections,
            headlines_N=catalogue.headlines,
        )
        chosen = rerank_candidates(candidates, k, config, reads)
        return [
            Recommendation(
                news_id=catalogue.news_ids[row],
                title=catalogue.titles[row],
                category=catalogue.categories[row],
                score=float(scores_VQ[row, 0]),
            )
            for row in chosen.tolist()
        ]

    def encode_interests(
        self, clicks_LD: NDArray[np.float32], max_interests: int, *, user: str | None = None
    ) -> Users:
        """Encode a user by all clicks, and by those of each interest: one user, 1 + interests prefixes, all first.

        A soft maximum over the clicks has all interests in its score: such users are encoded once.
        """
        clicks_LD = clicks_LD[self.config.latest_clicks]
        whole = self._encode_clicks(torch.from_numpy(clicks_LD), self._user_index(user))
        groups = group_clicks(clicks_LD, max_interests) if whole.weights_BPK is None else []
        if len(groups) < 2:
            return whole
        clicked_QL = np.arange(len(clicks_LD)) < np.array([len(group) for group in groups])[:, None]
        clicks_QLD = np.zeros((*clicked_QL.shape, self.news.dim), np.float32)
        clicks_QLD[clicked_QL] = clicks_LD[np.concatenate(groups)]
        user_ids = torch.full((len(groups),), self._user_index(user))
        parts = self.encode_users(torch.from_numpy(clicks_QLD), torch.from_numpy(clicked_QL), user_ids)
        return replace(whole, vectors_BKD=torch.cat([whole.vectors_BKD, parts.vectors_BKD[:, 0][None]], 1))

    def save_pretrained(self, folder: str | Path, *, report: "SupportsJson | None" = None) -> None:
        """Write settings, weights, tokenizer, catalogue and model card into a folder, for `from_pretrained`.

        `report` is what `speedyfeed.evaluate` returned: the card then states its metrics with their intervals.
        """
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
        for name in (CARD, MODULES):  # without checksums: people edit the card, sentence-transformers its modules
            (folder / name).unlink(missing_ok=True)
        write_checksums(folder)
        write_card(folder, self._card_facts(report))
        if not self.news.is_user_dependent:
            write_json(folder / MODULES, [{"idx": 0, "name": "0", "path": "", "type": NEWS_MODULE}])

    @classmethod
    def from_pretrained(cls, path: str | Path, *, with_encoder: bool = True) -> "Recommender":
        """Load a recommender from a finished run, from a folder that `save_pretrained` wrote, or from the Hub.

        Without its news encoder it loads in less than half the time; it recommends the articles of its catalogue
        and encodes no texts. One that encodes articles for each user (npa) is always loaded whole.
        """
        folder = find_recommender(path)
        verify_checksums(folder, remedy_for(folder))
        try:
            facts = read_json(folder / CONFIG)
            config = RecommenderConfig(
                news=NewsEncoderConfig(**facts["news"]),
                words=WordConfig(**facts["words"]),
                user=UserConfig(**facts["user"]),
                max_clicks=facts.get("max_clicks"),  # models of earlier versions have no limit
            )
            id_maps = load_id_maps(folder)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise other_version(folder, f"settings that this one does not know ({error})") from error
        has_catalogue = (folder / "news.parquet").exists()
        if not with_encoder and has_catalogue and config.news.encoder not in USER_DEPENDENT:
            catalogue = _load_catalogue(folder)
            model = cls(config, id_maps=id_maps, news=AbsentNewsEncoder(catalogue.embeddings_VD.size(1)))
            load_weights(model, folder / WEIGHTS, without="news.")
            model.catalogue = catalogue
            return model.eval()
        if not config.uses_words and not (folder / ENCODER / "config.json").exists():
            raise InputError(
                f"{folder}: found the news encoder {config.news.encoder!r} of another package, expected it "
                "registered; call register_word_encoder first"
            )
        from speedyfeed.models.plm import build_encoder, load_config  # imports transformers, which takes seconds

        encoder = None if config.uses_words else build_encoder(load_config(str(folder / ENCODER)))
        model = cls(config, id_maps=id_maps, tokenizer=load_tokenizer(str(folder / ENCODER)), encoder=encoder)
        load_weights(model, folder / WEIGHTS)
        if (folder / TEXT).exists():
            model.news.packer = load_packer(folder)
        if has_catalogue:
            model.catalogue = _load_catalogue(folder)
        return model.eval()

    def push_to_hub(
        self,
        repo_id: str,
        *,
        token: str | None = None,
        private: bool | None = None,
        report: "SupportsJson | None" = None,
        **options: Any,
    ) -> str:
        """Upload the recommender to the Hub; `options` are passed to `huggingface_hub.upload_folder`.

        `report` is what `speedyfeed.evaluate` returned, for the model card.
        """
        from tempfile import TemporaryDirectory

        from huggingface_hub import create_repo, upload_folder

        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, report=report)
            create_repo(repo_id, token=token, private=private, exist_ok=True)
            return str(upload_folder(repo_id=repo_id, folder_path=folder, token=token, **options))

    def _card_facts(self, report: "SupportsJson | None") -> CardFacts:
        parts = {
            name: part for name, part in _plain(dataclasses.asdict(self.config)).items() if isinstance(part, dict)
        }
        if self.config.uses_words:
            parts["news"] = {name: parts["news"][name] for name in ("encoder", "dim")}
        else:
            del parts["words"]
        data = {}
        if isinstance(self.news.packer, Articles):
            text = self.news.packer.text.settings
            data = {
                "format of the log": text.format,
                "text fields": ", ".join(text.fields),
                "refinement": text.refine,
            }
        if self.catalogue is not None:
            data["articles"] = f"{len(self.catalogue):,}"
            if self.catalogue.num_clicks is not None:
                data["clicks"] = f"{sum(self.catalogue.num_clicks):,}"
        return CardFacts(
            version=__version__,
            settings=parts,
            encoder=None if self.config.uses_words else self.config.news.encoder,
            data=data,
            metrics=None if report is None else report.to_json(),
        )

    def encode_clicks(self, clicks: NDArray[np.float32]) -> Users:
        """Encode an unknown user by embeddings of their clicks, oldest first, to score articles by."""
        return self._encode_clicks(torch.from_numpy(clicks), UNKNOWN)

    def _encode_clicks(self, clicks_LD: Tensor, user: int) -> Users:
        clicks_1LD = clicks_LD[self.config.latest_clicks].reshape(1, -1, self.news.dim)
        return self.encode_users(clicks_1LD, user_ids_B=torch.tensor([user]))

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


def _load_catalogue(folder: Path) -> Catalogue:
    catalogue = load_catalogue(folder)
    if not catalogue.embeddings_VD.isfinite().all():
        raise InputError(f"{folder}: article embeddings hold NaN or Inf; {remedy_for(folder)}")
    return catalogue


def _require_list(words: Sequence[str], name: str) -> None:
    """Refuse a single text where several are meant, as its letters would be taken for them."""
    if isinstance(words, str):
        raise InputError(f"{name} {words!r}: found a single text, expected a list; give [{words!r}]")


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Convert a configuration to plain JSON values, paths to text."""
    return json.loads(json.dumps(config, default=str))  # type: ignore[no-any-return]
