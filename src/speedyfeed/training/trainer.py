"""The trainer: model, loss, optimizer and cache of a run, and one step of training.

Batch --> workflow: encode articles and users, loss --> write fresh rows to the cache --> update

Several ranks take every step together and hold the same weights after it. Building a trainer writes nothing.
Shapes: M articles of a sample, V all articles, E encoded articles, R cache hits, O articles with deferred
gradients, W ranks, H width of encoded texts, D width of embeddings.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from speedyfeed.batching.batches import Batch
from speedyfeed.data.store import Store
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.central import MergedNews
from speedyfeed.encoding.deferred_gradients import DeferredGradients
from speedyfeed.encoding.drift import CacheDrift
from speedyfeed.encoding.ids import id_maps_of
from speedyfeed.encoding.inputs import Articles, open_packed
from speedyfeed.errors import InputError
from speedyfeed.models.config import RecommenderConfig
from speedyfeed.models.id_maps import UNKNOWN
from speedyfeed.models.layers import AdditiveAttention
from speedyfeed.pretrained import Recommender
from speedyfeed.progress import Report, silent
from speedyfeed.random import Stream, random_bits
from speedyfeed.runtime import PRECISIONS, Precision, choose_device, choose_precision, seed_everything
from speedyfeed.tokenizers import checksum_of, load_tokenizer
from speedyfeed.training.artifacts import adds_biases
from speedyfeed.training.config import TrainConfig
from speedyfeed.training.distributed.partition import encode_texts
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from speedyfeed.training.losses import BIAS_RATE, ClickLoss, log_popularity
from speedyfeed.training.run_folder import PrecisionFact, RunFolder
from speedyfeed.training.validation_sample import ValidationSample
from speedyfeed.training.warm_start import warm_start
from speedyfeed.training.workflow import Workflow

PROJECTED_NEWS = 512
"""Number of sampled train articles that the projection of a new run is fitted to."""
INITIALIZE = "initialize"
"""Stage of progress in which a new run is initialized."""
NOT_FINITE = "the last checkpoint is intact. Try a lower --encoder-lr or --lr, or --precision fp32"


class Trainer:
    """Model, loss, optimizer, cache and validation sample of a run, and the steps that train them."""

    def __init__(self, run: RunFolder, store: Store, group: ProcessGroup = SINGLE_PROCESS) -> None:
        run.require_store(store)
        self.run = run
        self.group = group
        self.store = store
        self.config = config = run.config
        self.device = group.local_device(choose_device(config.train.device))
        if group.world > 1 and config.news.frozen_file is not None:
            raise InputError(
                "news.frozen-file can be written by one process only: leave it out, or train with one rank"
            )
        seed_everything(config.train.seed)
        self.model = build_recommender(config.recommender, store).to(self.device)
        if config.is_frozen:
            for parameter in self.model.news.pretrained():
                parameter.requires_grad_(False)
        tokenizer = store.word_tokenizer if self.model.news.uses_words else config.news.encoder
        self.model.news.packer = Articles(
            run.facts.text, document_frequencies=run.document_frequencies, encoder=str(tokenizer)
        )
        loss = config.loss_on(store.train)
        self.loss = ClickLoss(loss, loss.fallback_negatives_weight, num_news=store.num_news).to(self.device)
        if not config.batch.first_click:
            _drop_start(self.model.user)
        self.optimizer = _build_optimizer(self.model, self.loss, config.train)
        self._waiting_weight = 0.0  # summed weight of clicks since the last update
        cache = config.cache_in_use
        self.cache = (
            NewsCache(
                num_news=store.num_news,
                width=self.model.news.width,
                dtype=cache.dtype,
                zeros=group.shared_zeros,
            )
            if cache.max_age
            else None
        )
        self.deferred = (
            DeferredGradients(num_news=store.num_news, width=self.model.news.width)
            if cache.max_age and cache.gradients
            else None
        )
        self.drift = CacheDrift(gamma=cache.max_age)
        self.precision = self._choose_precision()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision.needs_scaling)
        self.news = open_packed(store, word_tokens=self.model.news.uses_words, id_maps=self.model.id_maps)
        self._lengths_V = self.news.lengths_M
        self._num_clicks_V = torch.from_numpy(store.train.count_clicks(store.num_news))
        self.workflow = Workflow(
            self.model,
            self.loss,
            self.news,
            self.cache,
            log_popularity(self._num_clicks_V),
            config.batch,
            group,
            collects_gradients=self.deferred is not None,
        )
        self.validation = ValidationSample.of(
            store, config.train, self.model.id_maps, max_clicks=config.batch.max_clicks
        )
        self._frozen_MH: Tensor | None = None  # texts of the validation sample, once a frozen encoder read them
        seed_everything(config.train.seed)  # a run starts from the same random state, whatever building it drew

    def step(self, batch: Batch, lr_factor: float) -> float:
        """Learn from a batch and return its loss."""
        self._start_step(batch.step)
        with self.precision.autocast():
            learned = self.workflow(batch)
        self._center_gradients(learned.merged.encoded_EH)
        self._write_cache(learned.merged, batch.step)
        # A barrier as well: rows written above are there when the next step of any rank reads them.
        value = self.group.all_reduce(float(learned.loss.detach()))
        if not math.isfinite(value):
            raise InputError(f"the loss became {value} at step {batch.step}; {NOT_FINITE}")
        accumulate = self.config.train.accumulate
        # Accumulated batches count by the weight of their clicks in both losses, as one batch of all would.
        weight = batch.weigh_clicks(self.loss.config.fallback_click_weight) if accumulate > 1 else 1.0
        objective = learned.loss * weight
        self._waiting_weight += weight
        is_last = (batch.step + 1) % accumulate == 0
        if self.deferred is not None and is_last and self._waiting_weight:
            delivered = self.deferred.deliver(learned.merged.encoded_E, learned.merged.encoded_EH)
            objective = objective + delivered * self._waiting_weight  # the update divides by it
        self.scaler.scale(objective).backward()
        self._collect(batch, learned.merged)
        if is_last:
            self.flush(lr_factor)
        return value

    def _write_cache(self, merged: MergedNews, step: int) -> None:
        """Write fresh rows to the cache, and compare them with those that they replace."""
        if self.cache is not None and self.group.is_writer:
            if self.group.is_rank_0:
                self.drift.compare(self.model.news, self.cache, merged.encoded_E, merged.encoded_EH, step)
            self.cache.write(merged.encoded_E, merged.encoded_EH, step)

    def _center_gradients(self, encoded_EH: Tensor) -> None:
        """Have the mean over the articles subtracted from the gradients of their encoded texts, as they arrive."""
        if self.deferred is not None and self.config.cache.center and encoded_EH.requires_grad:
            encoded_EH.register_hook(lambda gradients_EH: gradients_EH - gradients_EH.mean(0))

    def _start_step(self, step: int) -> None:
        self.model.train()
        # Dropout is seeded by step and rank, so checkpoints need no random state.
        (bits,) = random_bits(self.config.train.seed, Stream.DROPOUT, step, np.array([self.group.rank]))
        torch.manual_seed(int(bits))

    def _collect(self, batch: Batch, merged: MergedNews) -> None:
        """Collect the gradients of the cached rows of a batch, after its backward pass."""
        if self.deferred is None:
            return
        gradients_RH = merged.cached_RH.grad
        if gradients_RH is None:  # nothing was read on this rank
            gradients_RH = torch.zeros_like(merged.cached_RH)
        self.deferred.collect(
            batch.step,
            torch.from_numpy(batch.cached_R).long(),
            merged.cached_R,
            gradients_RH / self.scaler.get_scale(),
        )

    def flush(self, lr_factor: float) -> None:
        """Apply the gradients accumulated since the last update, if there are any."""
        if self._waiting_weight:
            self._update(lr_factor)
        elif self.deferred is not None:  # clicks without weight have no gradient
            self.deferred.discard()

    def finish(self, step: int, lr_factor: float) -> None:
        """Apply the gradients that wait after the last step, and deliver those still deferred.

        Pending articles are encoded within the token budget, oldest first: each time one more update.
        """
        self.flush(lr_factor)
        if self.deferred is None:
            return
        for number, ids_E in enumerate(
            self._within_budget(self.deferred.pending(), self.config.batch.tokens_per_batch)
        ):
            self._start_step(step + number)
            self._waiting_weight = 1.0
            if self._deliver(self.deferred, ids_E):
                self._update(lr_factor)
            else:
                self.deferred.settle(1.0)
        self._waiting_weight = 0.0

    def _deliver(self, deferred: DeferredGradients, ids_E: Tensor) -> bool:
        """Encode articles for their deferred gradients alone; return whether any has a text to learn from."""
        with self.precision.autocast():
            encoded_EH = self.workflow.encode_text(ids_E)
        self._center_gradients(encoded_EH)
        delivered = deferred.deliver(ids_E, encoded_EH) * self._waiting_weight
        if delivered.requires_grad:
            self.scaler.scale(delivered).backward()
        return delivered.requires_grad

    def _within_budget(self, ids: Tensor, budget: int) -> Iterator[Tensor]:
        """Split articles, in their order, into parts of about `budget` tokens."""
        if not len(ids):
            return
        lengths = self._lengths_V[ids]
        if self.config.batch.mode == "padded":
            lengths = lengths.max().expand(len(ids))
        part = lengths.cumsum(0) // budget
        yield from ids.split(torch.unique_consecutive(part, return_counts=True)[1].tolist())

    def initialize(self, report: Report = silent) -> None:
        """Initialize a new run: weights of an earlier run, a projection fitted to articles, or random queries."""
        self.loss.start_biases(self._num_clicks_V)
        if self.run.facts.warm_start is not None:
            news_ids = self.store.load_titles()["news_id"].to_pylist()
            num_clicks = self._num_clicks_V[1:].tolist()
            taken = warm_start(self.model, Path(self.run.facts.warm_start), self.loss, news_ids, num_clicks)
            self.group.on_rank_0(lambda: self.run.note(taken_over=asdict(taken)))
        elif self.config.train.init == "random":
            self.model.draw_queries()
        else:
            rng = np.random.default_rng(self.config.train.seed)
            rows = rng.integers(1, self.store.num_train_news + 1, PROJECTED_NEWS)  # articles of train come first
            news = self.model.news
            some = self.news.select(torch.from_numpy(rows)).for_user(UNKNOWN)
            with self.precision.autocast():
                news_MH = news.encode_texts(some, report=_named(INITIALIZE, report))
            news.initialize(news_MH)
        self.group.broadcast_module(self.model)

    def validate(self, report: Report = silent, *, biases_V: Tensor | None = None) -> float:
        """AUC of the validation sample, as rank 0 measures it, by default with the biases learned so far."""
        assert self.validation is not None
        biases_V = self.loss.biases() if biases_V is None else biases_V
        if not adds_biases(self.model, self.store):
            biases_V = None
        if self.config.is_frozen:
            news_MD = self._project_frozen(self.validation, report)
            auc = self.validation.measure_encoded(self.model, news_MD, biases_V)
        else:
            auc = self.validation.measure(
                self.model, self.news, self.precision, self.group, report, biases_V=biases_V
            )
        return self.group.broadcast(auc)

    @torch.no_grad()
    def _project_frozen(self, sample: ValidationSample, report: Report) -> Tensor:
        """Embeddings of the validation sample, news_MD, by an encoder that is frozen: it runs once in a run."""
        news = sample.select(self.news)
        with self.precision.autocast():
            if self._frozen_MH is None:
                self._frozen_MH = encode_texts(self.model.news, news, self.group, report=report)
            return self.model.news.project(self._frozen_MH.to(self.device), news.categories_M).float().cpu()

    def check_cache(self, step: int) -> dict[str, float]:
        """Checksum of the cache rows that later steps can read; raises where the copies of the hosts differ."""
        if self.cache is None or self.group.world == 1:
            return {}
        own = (
            int(self.cache.checksum(step - self.config.cache_in_use.max_age)[:12], 16)
            if self.group.is_writer
            else -1
        )
        copies = [checksum for checksum in self.group.all_gather(own) if checksum >= 0]
        if len(set(copies)) > 1:
            raise RuntimeError(f"the caches of the hosts differ at step {step}: checksums {copies}")
        return {"cache_checksum": copies[0], "cache_copies": len(copies)}

    def deferred_metrics(self) -> dict[str, float]:
        """Share of the reads of the cache whose gradient has reached the encoder, where these are collected."""
        return {} if self.deferred is None else {"gradient_delivered": self.deferred.share_delivered}

    def export_deferred(self) -> dict[str, Tensor]:
        """Deferred gradients of all W ranks for a checkpoint, rows_WOH; empty where none are collected."""
        if self.deferred is None:
            return {}
        exported = self.deferred.export()
        rows_OH, world = exported["rows"], self.group.world
        with torch.no_grad():
            rows = self.group.all_gather_rows(rows_OH, [len(rows_OH)] * world)
        return exported | {"rows": rows.view(world, *rows_OH.shape)}

    def load_deferred(self, exported: dict[str, Tensor]) -> None:
        """Load deferred gradients of a checkpoint; rank 0 takes all if the number of ranks has changed."""
        if self.deferred is None:
            return
        rows_WOH, rank = exported["rows"], self.group.rank
        if len(rows_WOH) == self.group.world:
            rows_OH = rows_WOH[rank]
        else:
            rows_OH = rows_WOH.sum(0) if self.group.is_rank_0 else torch.zeros_like(rows_WOH[0])
        self.deferred.load(exported | {"rows": rows_OH})

    def _update(self, lr_factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * lr_factor
        parameters = self._parameters()
        if self.config.train.accumulate > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= self._waiting_weight
        self.group.all_reduce_gradients(parameters)
        self.scaler.unscale_(self.optimizer)
        length = float(torch.nn.utils.clip_grad_norm_(parameters, self.config.train.clip or math.inf))
        if not math.isfinite(length) and not self.scaler.is_enabled():  # the scaler skips such updates
            raise InputError(f"a gradient became {length}; {NOT_FINITE}")
        if self.deferred is not None:
            if math.isfinite(length):
                self.deferred.settle(self._waiting_weight)
            else:
                self.deferred.discard()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._waiting_weight = 0.0

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _choose_precision(self) -> Precision:
        """Precision that run.json records, or else rank 0's choice: a resumed run must not choose again."""
        names = list(PRECISIONS)
        chosen = self.group.on_rank_0(self._recorded_precision)
        name = names[int(self.group.broadcast(0 if chosen is None else names.index(chosen.name)))]
        return chosen or Precision(name=name, device=self.device, reason="chosen by rank 0")

    def _recorded_precision(self) -> Precision:
        known = self.run.facts.precision
        if known is not None:
            return Precision(name=known.name, device=self.device, reason=known.reason)
        return choose_precision(self.config.train.precision, self.device, self.model.news.trial_step())

    @property
    def precision_fact(self) -> PrecisionFact:
        """Precision of the run for run.json; the device is that of the run's first start."""
        known = self.run.facts.precision
        chosen = self.precision
        return known or PrecisionFact(name=chosen.name, reason=chosen.reason, device=str(self.device))


def build_recommender(config: RecommenderConfig, store: Store) -> Recommender:
    """Untrained recommender for a store: a pretrained encoder, or one for the words of the store."""
    tokenizer = load_tokenizer(str(store.word_tokenizer) if config.uses_words else config.news.encoder)
    settings = store.manifest.settings
    if not config.uses_words and checksum_of(tokenizer) != settings.tokenizer:
        raise InputError(
            f"{store.path}: holds tokens of encoder {settings.encoder!r}, but {config.news.encoder!r} needs "
            f"others; prepare the log again with --encoder {config.news.encoder}"
        )
    return Recommender(config, id_maps=id_maps_of(store, config), tokenizer=tokenizer)


def _named(stage: str, report: Report) -> Report:
    """Progress callback whose stages are all called alike."""
    return lambda _, done, total, note="": report(stage, done, total, note)


def _drop_start(user: torch.nn.Module) -> None:
    """Leave the start vector of a user encoder at zero, where it has one."""
    start = getattr(user, "start", None)
    if isinstance(start, torch.nn.Parameter):
        start.requires_grad_(False)


def _build_optimizer(model: Recommender, loss: ClickLoss, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW with a learning rate for the pretrained encoder, one for the rest and one for the biases of articles.

    Vectors do not decay. The rate of biases is a multiple of that of the rest, and not their unit a multiple of a
    logit: their gradients would then dominate the norm by which all gradients are clipped.
    """
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    pretrained = set(model.news.pretrained())
    if config.init == "random":  # pooling that was drawn at random is no more pretrained than the head
        pooling = (part for part in model.news.modules() if isinstance(part, AdditiveAttention))
        pretrained -= {parameter for part in pooling for parameter in part.parameters()}
    for parameter in (*model.parameters(), *loss.parameters()):
        if parameter.requires_grad:
            rate = config.encoder_lr if parameter in pretrained else config.lr
            if parameter is loss.bias_V:
                rate *= BIAS_RATE
            decay = config.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "lr": rate, "peak_lr": rate, "weight_decay": decay}
            for (rate, decay), parameters in groups.items()
        ],
        fused=True,
    )
