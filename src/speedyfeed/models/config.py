"""Settings of the models, apart from the models, so that a command line is read without loading torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

from speedyfeed.errors import InputError
from speedyfeed.ranges import MANY, Ranges, check_ranges

FROM_WORDS = {"nrms", "naml", "lstur", "npa"}
"""Names of the word encoders; `register_word_encoder` adds to them."""
USER_DEPENDENT = {"npa"}
"""Names of those by which an article has a different embedding for every user."""
WITH_CATEGORIES = {"naml", "lstur"}
"""Names of those that learn an embedding of each category."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewsEncoderConfig:
    """Settings of the news encoder, which turns the text of an article into an embedding."""

    encoder: Annotated[str, arg(name="encoder", prefix_name=False)] = "minilm"
    """Pretrained encoder: minilm, a folder, a Hub id, unilm:PATH, half:NAME (half of its layers and width) or
    last:NAME (only its last layer is trained); or an encoder over words, without a language model: nrms, naml,
    lstur or npa. Those have the words options, and of the news options --news.dim alone."""
    dim: int = 256
    """Width of a news embedding, its category included. With 0 the text is not projected: the embedding has the
    encoder's own width, and up to 32 dimensions more for the category."""
    normalize: bool = True
    """Scaling of news embeddings to unit norm; on by default."""
    bus: bool = True
    """Attention between the segments of an article, through their first tokens (BusLM); on by default. Without it,
    each segment is encoded on its own."""
    segment_length: int = 32
    """Maximum length of a segment of raw text, in tokens."""
    segments: bool = True
    """Encoding of title, abstract and body as separate segments (BusLM); on by default. Without it, they are one
    sequence, at a cost quadratic in its length."""
    categories: bool = True
    """Category embeddings in dimensions of their own, a quarter of the embedding but at most 32, where articles
    have categories; on by default."""
    train_layers: int = 0
    """Number of layers to train, counted from the last; 0 trains all layers."""
    frozen_gigabytes: float = 4.0
    """Maximum size of the cache of the frozen layers' outputs, in gigabytes, when only the last layers are
    trained."""
    frozen_file: Path | None = None
    """File to which the cache of the frozen layers is mapped; by default it is held in memory."""
    hidden_dropout: float | None = 0.0
    """Dropout probability of hidden states in training, which cached embeddings then contain; None takes the
    encoder's own."""
    attention_dropout: float | None = 0.0
    """Dropout probability of attention weights in training; None takes the encoder's
    own, without fast kernels."""
    checkpointing: bool = False
    """Recompute activations in the backward pass, for less memory and about a third more time."""
    backend: str = "auto"
    """Implementation of attention: auto, dense (slow reference), grouped, or varlen (CUDA)."""

    RANGES: ClassVar[Ranges] = {
        "dim": (0, 1 << 16),
        "segment_length": (3, 1 << 16),
        "train_layers": (0, 1000),
        "frozen_gigabytes": (0, MANY),
        "attention_dropout": (0, 1),
        "hidden_dropout": (0, 1),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.frozen_file is not None:
            object.__setattr__(self, "frozen_file", Path(self.frozen_file))  # text, from Python or from a file


@dataclass(frozen=True, kw_only=True, slots=True)
class WordConfig:
    """Settings of the news encoders over words, which have no language model: nrms, naml, lstur and npa."""

    width: int = 300
    """Width of the word embeddings."""
    glove: Path | None = None
    """Text file of pretrained word vectors of that width, such as GloVe; by default word vectors are random."""
    vectors: str | None = None
    """Pretrained encoder whose word pieces give the word vectors, such as minilm (up to 384 wide): each word
    starts from the mean of the input embeddings of its pieces."""
    heads: int = 16
    """Number of attention heads over words (nrms); must divide the width of a news embedding."""
    window: int = 3
    """Width of the convolution over words, in words (naml, lstur, npa)."""
    query_width: int = 200
    """Hidden width of the additive attention over words."""
    category_width: int = 32
    """Width of the category embeddings (naml, lstur)."""
    segment_length: int = 32
    """Maximum length of a segment of raw text, in words."""
    dropout: float = 0.2
    """Dropout probability of word embeddings and of what is computed from them, in training."""

    RANGES: ClassVar[Ranges] = {
        "width": (1, 1 << 16),
        "heads": (1, 1 << 16),
        "window": (1, 1000),
        "query_width": (1, 1 << 16),
        "category_width": (1, 1 << 16),
        "segment_length": (1, 1 << 16),
        "dropout": (0, 1),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.glove is not None and self.vectors is not None:
            raise InputError("--words.glove and --words.vectors: words start from one of both; leave one out")
        if self.glove is not None:
            object.__setattr__(self, "glove", Path(self.glove))  # text, from Python or from a file


@dataclass(frozen=True, kw_only=True, slots=True)
class UserConfig:
    """Settings of the user encoder, which turns clicks into a user embedding."""

    name: str = "attentive"
    """Name of the user encoder: attentive, self-attention (nrms), additive (naml), gru, lstur-ini, lstur-con,
    or npa."""
    recency: bool = True
    """Learned weights of clicks by recency, the number of clicks since (attentive); on by default. Without them,
    only the attention weighs clicks."""
    sharpness: float = 6.0
    """Sharpness of the soft maximum over clicks that scores an article (attentive), so that one click on something
    close is enough; 0 scores by the inner product with the mean of the clicks."""
    heads: int = 8
    """Number of attention heads of self-attention; must divide the width of a news embedding."""
    query_width: int = 200
    """Hidden width of the attention in self-attention, additive and npa."""
    id_width: int = 64
    """Width of the embedding of each user id (lstur-ini, lstur-con, npa)."""
    id_dropout: float = 0.5
    """Probability of hiding a user's id during training, so that unknown users are served well."""

    RANGES: ClassVar[Ranges] = {
        "sharpness": (0, 20),
        "heads": (1, 1 << 16),
        "query_width": (1, 1 << 16),
        "id_width": (1, 1 << 16),
        "id_dropout": (0, 1),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def uses_user_ids(self) -> bool:
        """Whether the user encoder learns an embedding of each user id."""
        return self.name in ("lstur-ini", "lstur-con", "npa")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecommenderConfig:
    """Settings of a recommender: its news encoder and its user encoder."""

    news: NewsEncoderConfig = field(default_factory=NewsEncoderConfig)
    words: WordConfig = field(default_factory=WordConfig)
    """Settings of news encoders over words; unused by language models."""
    user: UserConfig = field(default_factory=UserConfig)
    max_clicks: int | None = None
    """Maximum number of clicks, the latest ones, that users are encoded from, as in training; None for all."""

    @property
    def latest_clicks(self) -> slice:
        """Part of a history, oldest click first, that users are encoded from."""
        return slice(None if self.max_clicks is None else -self.max_clicks, None)

    @property
    def uses_words(self) -> bool:
        """Whether the news encoder is over words of a store's vocabulary, not over tokens of a language model."""
        return self.news.encoder in FROM_WORDS

    @property
    def has_unit_norm(self) -> bool:
        """Whether article embeddings have unit norm, so that inner products are cosines."""
        return self.news.normalize and not self.uses_words

    @property
    def uses_user_ids(self) -> bool:
        """Whether it learns an embedding of each user of the train split."""
        return self.user.uses_user_ids or self.news.encoder in USER_DEPENDENT

    @property
    def uses_categories(self) -> bool:
        """Whether it learns an embedding of each category."""
        return self.news.encoder in WITH_CATEGORIES if self.uses_words else self.news.categories
