"""Settings of a training run: how long and how fast to learn, and the settings of all its parts."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.batching.growth import growth_of
from speedyfeed.batching.sample import WithoutNegatives
from speedyfeed.data.store import Timelines
from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig, RecommenderConfig, UserConfig, WordConfig
from speedyfeed.ranges import MANY, MAX_SEED, Ranges, check_ranges

MAX_IN_BATCH = 0.5
"""Largest default weight of the in-batch loss in a log with impressions: above it, articles that are read together
count for more than what users chose from a list, and AUC falls."""

TEMPERATURE = 0.15
"""Default temperature where clicks are compared with what was shown beside them, a few articles."""
IN_BATCH_TEMPERATURE = 0.08
"""Default temperature of the in-batch loss alone, where a click is compared with thousands of articles."""
LASTING_POPULARITY = 0.5
"""Default part of the popularity in the scores of a log without impressions, where popularity lasts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Length of a run, learning rates, precision, validations and checkpoints."""

    epochs: int = 3
    """Number of passes over all users."""
    steps: int | None = None
    """Maximum number of batches to train on, by default unlimited; 0 saves the model untrained."""
    minutes: float | None = None
    """Maximum training time in minutes, by default unlimited. With a maximum, learning rates follow the clock, so
    two such runs differ slightly."""
    encoder_lr: float = 2e-5
    """Peak learning rate of the pretrained encoder; 0 freezes it, and each article is encoded once."""
    lr: float = 1e-3
    """Peak learning rate of all other parameters."""
    warmup: float = 0.1
    """Fraction of the run in which learning rates rise linearly; afterwards they fall linearly to zero."""
    schedule: Literal["linear", "constant"] = "linear"
    """Learning rates in the course of a run: linear rises to the peak and falls to zero, constant is at the peak
    from the first step to the last, without warm-up."""
    weight_decay: float = 0.01
    """AdamW weight decay of matrices; biases and other vectors have none."""
    clip: float = 1.0
    """Maximum norm of the gradient; larger gradients are scaled down. 0 turns clipping off."""
    init: Literal["means", "random"] = "means"
    """Initial weights of the layers that are not pretrained: with means, an article is the mean of its tokens on
    the principal components of all articles, and a user the mean of the clicks; with random, attention is
    random."""
    accumulate: int = 1
    """Number of batches per update of the weights."""
    precision: str = "auto"
    """Precision of forward passes: fp32, bf16, fp16 (CUDA only), or auto to time fp32 against bf16 first."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda or cuda:N."""
    validations: int = 6
    """Number of validations after the initial one, evenly spaced; the best model is saved. 0 turns validation off
    and saves the last model."""
    validation_impressions: int = 2000
    """Number of impressions of the validation split that are sampled for validation."""
    checkpoint_every: int = 200
    """Number of batches between two checkpoints."""
    max_checkpoints: int = 2
    """Number of newest checkpoints to retain; older ones are removed."""
    seed: int = 0
    """Seed of all randomness: initial weights, order of users, negatives, cache lookups and dropout."""

    RANGES: ClassVar[Ranges] = {
        "epochs": (1, MANY),
        "steps": (0, MANY),
        "minutes": (0.001, MANY),
        "encoder_lr": (0, 10),
        "lr": (0, 10),
        "warmup": (0, 0.999),
        "weight_decay": (0, 100),
        "clip": (0, 1e6),
        "accumulate": (1, MANY),
        "validations": (0, MANY),
        "validation_impressions": (1, MANY),
        "checkpoint_every": (1, MANY),
        "max_checkpoints": (1, MANY),
        "seed": (0, MAX_SEED),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.schedule not in ("linear", "constant"):
            raise InputError(f"schedule {self.schedule}: expected linear or constant")
        if self.init not in ("means", "random"):
            raise InputError(f"init {self.init}: expected means or random")


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """Losses that training minimizes, and their weights."""

    fallback_negatives_weight: float = 0.0
    """Weight of clicks with fallback negatives, which have no impression of their own; other clicks weigh 1. With
    0, the default, they are part of histories only. In a log without impressions all clicks weigh 1."""
    in_batch: float | None = None
    """Weight of the in-batch loss, whose negatives are all articles of the batch, against the next-click loss: 0
    is the next-click loss alone, 1 the in-batch loss alone. By default the share of clicks without an impression
    of their own, such as those of histories, which only the in-batch loss learns from, but at most 0.5; 1 in a log
    without impressions, 0 where the articles of a batch are not shared."""
    popularity_correction: float | None = None
    """Correction of the in-batch loss for popular articles, which are in more batches: 0 leaves it to the bias of
    each article, 1 corrects fully. By default 0, and 0.5 in a log without impressions whose popular articles stay
    popular, as items of a shop do: this much of an article's popularity is then part of its score."""
    temperature: float | None = None
    """Temperature that inner products of users and articles are divided by. By default 0.15, and 0.08 in a log
    without impressions, where a click is compared with all articles of the batch."""
    learn_temperature: bool = False
    """Train the temperature, starting from the given value; off by default."""
    article_bias: bool = True
    """A learned bias of each article, on by default, that takes up its popularity while training, so that
    embeddings learn taste alone; evaluate --popularity adds it to the scores. Without it, embeddings learn
    popularity too."""
    bias_start: float | None = None
    """Bias of each article before training, as a multiple of the logarithm of its clicks in the store: a short run
    moves biases only a part of the way. By default as much as is corrected for: popularity_correction."""

    RANGES: ClassVar[Ranges] = {
        "fallback_negatives_weight": (0, 1e6),
        "in_batch": (0, 1),
        "popularity_correction": (0, 1e6),
        "bias_start": (0, 1e6),
        "temperature": (1e-6, 1e6),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def fallback_click_weight(self) -> float:
        """Weight in both losses together of a click without negatives of its own; other clicks weigh 1."""
        in_batch = self.in_batch or 0.0
        return (1 - in_batch) * self.fallback_negatives_weight + in_batch

    @property
    def without_negatives(self) -> WithoutNegatives:
        """Use of clicks without negatives of their own: the in-batch loss needs no other negatives."""
        in_batch = self.in_batch or 0.0
        if self.fallback_negatives_weight > 0 and in_batch < 1:
            return "fallback"
        return "in-batch" if in_batch > 0 else "history"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Settings of a whole run, as a recipe returns them."""

    news: NewsEncoderConfig = field(default_factory=NewsEncoderConfig)
    words: WordConfig = field(default_factory=WordConfig)
    user: UserConfig = field(default_factory=UserConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def is_frozen(self) -> bool:
        """Whether the run trains everything but its pretrained encoder."""
        return self.train.encoder_lr == 0 and not self.recommender.uses_words

    @property
    def cache_in_use(self) -> CacheConfig:
        """Cache of the run: encoded texts of a frozen encoder never expire, and have no deferred gradients."""
        if not self.is_frozen or not self.cache.max_age:
            return self.cache
        return replace(self.cache, gamma=MANY, beta=MANY, draw="news", gradients=False)

    def for_log(self, train: Timelines, num_news: int) -> "RunConfig":
        """Settings of the run on a log with so many articles, where defaults grow with it: batches and gamma."""
        growth = growth_of(train.count_clicks(num_news))
        return replace(self, batch=self.batch.for_log(growth), cache=self.cache.for_log(growth))

    def loss_on(self, train: Timelines) -> LossConfig:
        """Losses on a log, where defaults depend on its impressions: weight of the in-batch loss, temperature."""
        loss = self.loss if train.has_negatives else replace(self.loss, fallback_negatives_weight=1.0)
        if loss.in_batch is None:
            share = train.share_without_negatives if self.batch.shares else 0.0
            loss = replace(loss, in_batch=min(share, MAX_IN_BATCH) if train.has_negatives else share)
        if loss.temperature is None:
            loss = replace(loss, temperature=IN_BATCH_TEMPERATURE if loss.in_batch == 1 else TEMPERATURE)
        if loss.popularity_correction is None:
            is_alone = loss.in_batch == 1 and loss.article_bias and not train.has_negatives
            part = LASTING_POPULARITY if is_alone and train.has_lasting_popularity else 0.0
            loss = replace(loss, popularity_correction=part)
        if loss.bias_start is None:
            loss = replace(loss, bias_start=loss.popularity_correction)
        return loss

    @property
    def recommender(self) -> RecommenderConfig:
        """Settings of the model alone."""
        return RecommenderConfig(
            news=self.news, words=self.words, user=self.user, max_clicks=self.batch.max_clicks
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileConfig:
    """Which run is profiled, and over how many steps."""

    recipe: str = "speed-mini"
    """Recipe of the profiled run; it must have a language model as news encoder."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipe's."""
    precision: str = "fp32"
    """Precision of the computation: fp32, bf16, or fp16 on CUDA."""
    skip: int = 200
    """Steps that are planned but not computed, so that the cache is warm when the profile starts."""
    warmup: int = 2
    """Steps computed before the first one that is timed."""
    steps: int = 12
    """Number of timed training steps."""
    seed: int = 0
    """Seed of the order of users, the negatives and the weights."""

    RANGES: ClassVar[Ranges] = {
        "skip": (0, 1_000_000),
        "warmup": (0, 1_000_000),
        "steps": (1, 1_000_000),
        "seed": (0, MAX_SEED),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)
