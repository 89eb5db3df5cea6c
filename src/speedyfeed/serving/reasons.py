"""Why an article was recommended: the clicks that contribute most to its score.

Shapes: K articles, L clicks, D embedding width.
"""

import numpy as np

from speedyfeed.pretrained import Recommender
from speedyfeed.serving.answer import Reason
from speedyfeed.serving.clicks import Clicks
from speedyfeed.serving.live_catalogue import Embeddings

MAX_REASONS = 2
"""Clicks named as reasons for each recommended article, at most."""
MIN_SIMILARITY = 0.35
"""Cosine similarity below which a click is no reason; of articles drawn at random, one pair in 20 reaches it."""


def find_reasons(model: Recommender, news_KD: Embeddings, clicks: Clicks) -> list[list[Reason]]:
    """Clicks that contribute most to the score of each article: attention weight times inner product.

    Under a soft maximum, the exponential of the inner product takes its place. Clicks that are little like the
    article (`MIN_SIMILARITY`) are no reasons.
    """
    clicks = clicks.select(model.config.latest_clicks)
    if not len(clicks.positions):
        return [[] for _ in news_KD]
    attention_L = model.weigh_clicks(clicks.embeddings)
    products_KL = news_KD @ clicks.embeddings.T
    norms_KL = np.linalg.norm(news_KD, axis=1)[:, None] * np.linalg.norm(clicks.embeddings, axis=1)
    cosines_KL = products_KL / np.maximum(norms_KL, 1e-12)
    sharpness = model.config.user.sharpness
    shares_KL = np.exp(sharpness * products_KL) if sharpness and attention_L is not None else products_KL
    contributions_KL = shares_KL if attention_L is None else shares_KL * attention_L
    order_KL = np.argsort(-contributions_KL, axis=1)[:, :MAX_REASONS]
    return [
        [
            Reason(
                click=clicks.positions[click],
                attention=None if attention_L is None else float(attention_L[click]),
                similarity=float(cosines_KL[number, click]),
            )
            for click in order
            if products_KL[number, click] > 0 and cosines_KL[number, click] >= MIN_SIMILARITY
        ]
        for number, order in enumerate(order_KL.tolist())
    ]
