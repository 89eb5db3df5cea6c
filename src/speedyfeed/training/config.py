"""Settings of a training run: how long and how fast to learn, and the settings of all its parts."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.errors import InputError
from speedyfeed.models.baselines import WordConfig
from speedyfeed.models.news import NewsEncoderConfig
from speedyfeed.models.recommender import RecommenderConfig
from speedyfeed.models.users import UserConfig
from speedyfeed.ranges import MANY, MAX_SEED, Ranges, check_ranges
from speedyfeed.training.losses import LossConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Length of a run, learning rates, precision, validations and checkpoints."""

    epochs: int = 3
    """Number of passes over all users."""
    steps: int | None = None
    """Maximum number of batches to train on; 0 saves the model untrained."""
    minutes: float | None = None
    """Maximum training time in minutes. Learning rates then follow the clock, so two such runs differ slightly."""
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
    """Initial weights of what is not pretrained: means begins with means of tokens and of clicks, and with the
    principal directions of the articles; random draws the attention queries."""
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
        """Cache of the run: encoded texts of a frozen encoder never expire, and owe it no gradients."""
        if not self.is_frozen or not self.cache.gamma:
            return self.cache
        return replace(self.cache, gamma=MANY, beta=MANY, draw="news", gradients=False)

    @property
    def recommender(self) -> RecommenderConfig:
        """Settings of the model alone."""
        return RecommenderConfig(
            news=self.news, words=self.words, user=self.user, max_clicks=self.batch.max_clicks
        )
