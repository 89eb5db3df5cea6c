"""A step of training, and all that one needs; it can be put down and taken up between any two steps, bit for bit.

Batch --> workflow: encode news, users, loss --> cache rows written --> update

Several ranks take every step together and hold the same weights after it; rank 0 alone writes to the run folder.
"""

import math
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor

from speedyfeed.batching.batches import Batch
from speedyfeed.batching.loader import LoaderState
from speedyfeed.data.store import WORDS, Store
from speedyfeed.encoding.articles import Articles
from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.ids import id_maps_of
from speedyfeed.encoding.tokens import open_packed
from speedyfeed.errors import InputError
from speedyfeed.models.base import InitConfig
from speedyfeed.models.id_maps import UNKNOWN
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.recommender import RecommenderConfig
from speedyfeed.pretrained import Recommender
from speedyfeed.progress import Report, silent
from speedyfeed.random import Stream, random_bits
from speedyfeed.runtime import Precision, choose_device, choose_precision, seed_everything
from speedyfeed.tokenizers import checksum_of, load_tokenizer
from speedyfeed.training.artifacts import save_best
from speedyfeed.training.checkpoint import (
    Progress,
    checkpoint_path,
    load_checkpoint,
    newest_step,
    prune,
    save_checkpoint,
)
from speedyfeed.training.config import TrainConfig
from speedyfeed.training.distributed.partition import weigh
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from speedyfeed.training.interpolation import save_initial
from speedyfeed.training.losses import ClickLoss, log_popularity
from speedyfeed.training.run_folder import RunFolder, open_run
from speedyfeed.training.validation import Validation
from speedyfeed.training.workflow import Workflow

PROJECTED_NEWS = 512
"""News that the projection of a new run is fitted to."""
NOT_FINITE = "the last checkpoint is whole. Try a lower --encoder-lr or --lr, or --precision fp32"


class Trainer:
    """A run and everything one of its steps needs."""

    def __init__(self, run: RunFolder, store: Store, ranks: ProcessGroup = SINGLE_PROCESS) -> None:
        run.require_store(store)
        self.run = run
        self.ranks = ranks
        self.store = store
        self.config = config = run.config
        self.device = ranks.local_device(choose_device(config.train.device))
        if ranks.world > 1 and config.news.frozen_file is not None:
            raise InputError("news.frozen-file is written by one process: leave it out, or train with one rank")
        seed_everything(config.train.seed)
        self.model = build_recommender(config.recommender, store).to(self.device)
        tokenizer = store.path / WORDS if self.model.news.reads_words else config.news.encoder
        self.model.news.packer = Articles(run.facts["text"], words=run.words, plm=str(tokenizer))
        fallback_negatives_weight = config.loss.fallback_negatives_weight if store.train.has_negatives else 1.0
        self.loss = ClickLoss(config.loss, fallback_negatives_weight).to(self.device)
        self.optimizer = _build_optimizer(self.model, self.loss, config.train)
        self._waiting_weight = 0.0  # of what was learned since the last update
        self.cache = (
            NewsCache(
                num_news=store.num_news,
                width=self.model.news.width,
                dtype=config.cache.dtype,
                zeros=ranks.shared_zeros,
            )
            if config.cache.gamma
            else None
        )
        self.precision = self._choose_precision()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision.needs_scaling)
        self.news = open_packed(store, words=self.model.news.reads_words, id_maps=self.model.id_maps)
        self.workflow = Workflow(
            self.model,
            self.loss,
            self.news,
            self.cache,
            log_popularity(torch.from_numpy(store.train.count_clicks(store.num_news))),
            config.batch,
            ranks,
        )
        self.validation = Validation.of(store, config.train, self.model.id_maps)
        seed_everything(config.train.seed)  # a run starts alike, whatever was drawn to build it

    def step(self, batch: Batch, lr_factor: float) -> float:
        """Learn from a batch; returns the loss."""
        self.model.train()
        # What dropout draws follows from the step and the rank: there is nothing to save, and nothing to lose.
        (bits,) = random_bits(self.config.train.seed, Stream.DROPOUT, batch.step, np.array([self.ranks.rank]))
        torch.manual_seed(int(bits))
        with self.precision.autocast():
            learned = self.workflow(batch)
        if self.cache is not None and self.ranks.is_writer:
            self.cache.write(learned.merged.encoded_E, learned.merged.encoded_EH, batch.step)
        # No rank is past this before all have come here: what was written above is there when the next step reads.
        value = self.ranks.all_reduce(float(learned.loss.detach()))
        if not math.isfinite(value):
            raise InputError(f"the loss became {value} at step {batch.step}; {NOT_FINITE}")
        accumulate = self.config.train.accumulate
        # Batches of one update learn as one batch of all their clicks would: each by what its clicks weigh.
        weight = weigh(batch, self.loss.fallback_negatives_weight)[0] if accumulate > 1 else 1.0
        self.scaler.scale(learned.loss * weight).backward()
        self._waiting_weight += weight
        if (batch.step + 1) % accumulate == 0:
            self.flush(lr_factor)
        return value

    def flush(self, lr_factor: float) -> None:
        """Update with what was learned since the last update: at the end it may be less than one takes."""
        if self._waiting_weight:
            self._update(lr_factor)

    def restore(self) -> tuple[Progress, LoaderState | None]:
        """Where the newest checkpoint stands, everything put back; the very start where there is none."""
        saved = self.ranks.broadcast(newest_step(self.run.checkpoints))
        if saved < 0:
            vectors = self.model.news.load_vectors()
            self.ranks.on_rank_0(lambda: self.run.note(**vectors))
            return Progress(), None
        restored = load_checkpoint(
            checkpoint_path(self.run.checkpoints, int(saved)),
            model=self.model,
            loss=self.loss,
            optimizer=self.optimizer,
            scaler=self.scaler,
            cache=self.cache if self.ranks.is_writer else None,
        )
        self.ranks.barrier()  # until every host has the rows
        return restored

    def initialize(self, report: Report = silent) -> float:
        """Begin where it validates best, of all starts the encoder has; returns that AUC, 0 without a validation.

        Texts are read once for all starts. User-dependent encoders, which are costly to validate, take the first.
        """
        news = self.model.news
        rows = np.random.default_rng(self.config.train.seed).integers(1, self.store.num_news + 1, PROJECTED_NEWS)
        sample_MH = news.encode_texts(self.news.select(torch.from_numpy(rows)).for_user(UNKNOWN))
        best, auc = news.init_candidates[0], 0.0
        if self.validation is not None and not news.is_user_dependent:
            shown = self.validation.select(self.news)
            with self.precision.autocast():
                shown_MH = news.encode_texts(shown, report=report)
            aucs = {start: self._try(start, sample_MH, shown_MH, shown) for start in news.init_candidates}
            best = max(aucs, key=lambda start: aucs[start])
            auc = aucs[best]
        news.initialize(best, sample_MH)
        self.ranks.broadcast_module(self.model)
        if self.validation is not None and news.is_user_dependent:
            auc = self.validate()
        self.ranks.on_rank_0(lambda: self.run.note(start=asdict(best)))
        if self.interpolates:
            self.ranks.on_rank_0(lambda: save_initial(self.run.initial_weights, self.model))
        return auc

    @torch.no_grad()
    def _try(self, start: InitConfig, sample_MH: Tensor, shown_MH: Tensor, shown: PackedNews) -> float:
        """AUC of the validation sample if the run began there."""
        assert self.validation is not None
        self.model.train(False)
        self.model.news.initialize(start, sample_MH)
        with self.precision.autocast():
            news_MD = self.model.news.project(shown_MH.to(self.device), shown.categories_M).float().cpu()
        return self.ranks.broadcast(self.validation.measure_encoded(self.model, news_MD))

    def validate(self) -> float:
        """AUC of the validation sample, as rank 0 finds it."""
        assert self.validation is not None
        return self.ranks.broadcast(self.validation.measure(self.model, self.news, self.precision, self.ranks))

    @property
    def interpolates(self) -> bool:
        """Whether the end of the run is blended with its start: only a pretrained start is worth it."""
        return self.validation is not None and any(True for _ in self.model.news.pretrained())

    def save_best(self, step: int, alpha: float | None = None) -> None:
        """Keep the model of this step as the best so far; of a blend, the share is the end's."""
        name = f"step-{step:08d}" + ("" if alpha is None else f"-alpha-{alpha}")
        self.ranks.on_rank_0(lambda: save_best(self.run, self.model, name))

    def save(self, progress: Progress, loader: LoaderState) -> None:
        """A checkpoint; older ones go when it is whole."""
        self.ranks.on_rank_0(lambda: self._save(progress, loader))

    def check_cache(self, step: int) -> dict[str, float]:
        """A checksum of what a plan can still read after so many steps; every host must hold the same."""
        if self.cache is None or self.ranks.world == 1:
            return {}
        own = int(self.cache.checksum(step - self.config.cache.gamma)[:12], 16) if self.ranks.is_writer else -1
        copies = [checksum for checksum in self.ranks.all_gather(own) if checksum >= 0]
        if len(set(copies)) > 1:
            raise RuntimeError(f"the caches of the hosts differ at step {step}: checksums {copies}")
        return {"cache_checksum": copies[0], "cache_copies": len(copies)}

    def _save(self, progress: Progress, loader: LoaderState) -> None:
        self.run.require_store(self.store)
        save_checkpoint(
            self.run.checkpoints,
            progress=progress,
            model=self.model,
            loss=self.loss,
            optimizer=self.optimizer,
            scaler=self.scaler,
            loader=loader,
            cache=self.cache,
            oldest_row=progress.step - self.config.cache.gamma,
        )
        prune(self.run.checkpoints, self.config.train.max_checkpoints)

    def _update(self, lr_factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * lr_factor
        parameters = self._parameters()
        if self.config.train.accumulate > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= self._waiting_weight
        self.ranks.all_reduce_gradients(parameters)
        self.scaler.unscale_(self.optimizer)
        length = float(torch.nn.utils.clip_grad_norm_(parameters, self.config.train.clip))
        if not math.isfinite(length) and not self.scaler.is_enabled():  # which leaves out such an update
            raise InputError(f"a gradient became {length}; {NOT_FINITE}")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._waiting_weight = 0.0

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _choose_precision(self) -> Precision:
        """As the run began: a resumed run must not choose again."""
        self.ranks.on_rank_0(self._note_precision)
        known = open_run(self.run.path).facts["precision"]
        return Precision(name=known["name"], device=self.device, reason=known["reason"])

    def _note_precision(self) -> None:
        if "precision" not in self.run.facts:
            chosen = choose_precision(self.config.train.precision, self.device, self.model.news.trial_step())
            self.run.note(precision={"name": chosen.name, "reason": chosen.reason}, device=str(self.device))


def build_recommender(config: RecommenderConfig, store: Store) -> Recommender:
    """An untrained recommender for a store: pretrained where it can be, the store's words and names elsewhere."""
    tokenizer = load_tokenizer(str(store.path / WORDS) if config.reads_words else config.news.encoder)
    settings = store.manifest["settings"]
    if not config.reads_words and checksum_of(tokenizer) != settings["tokenizer"]:
        raise InputError(
            f"{store.path}: holds tokens of encoder {settings['plm']!r}, and those of {config.news.encoder!r} are "
            f"others; prepare the log again with --plm {config.news.encoder}"
        )
    return Recommender(config, id_maps=id_maps_of(store, config), tokenizer=tokenizer)


def _build_optimizer(model: Recommender, loss: torch.nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW, one rate for the pretrained encoder and one for what starts from nothing; vectors do not decay."""
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    pretrained = set(model.news.pretrained())
    for parameter in (*model.parameters(), *loss.parameters()):
        if parameter.requires_grad:
            rate = config.encoder_lr if parameter in pretrained else config.lr
            decay = config.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "lr": rate, "peak_lr": rate, "weight_decay": decay}
            for (rate, decay), parameters in groups.items()
        ],
        fused=True,
    )
