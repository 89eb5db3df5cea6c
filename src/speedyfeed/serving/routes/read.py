"""Routes that anyone may call: recommendations, articles, the map, and what is served."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from speedyfeed import __version__
from speedyfeed.retrieval.rerank import RerankConfig
from speedyfeed.serving.dependencies import Context, NewsId, OpenFeed
from speedyfeed.serving.live_catalogue import Embeddings
from speedyfeed.serving.problems import NOT_FOUND, PROBLEMS
from speedyfeed.serving.query import Query as FeedQuery
from speedyfeed.serving.schemas.fields import MAX_HISTORY, MAX_K
from speedyfeed.serving.schemas.news import ListAnswer, RankedNews, StoryAnswer
from speedyfeed.serving.schemas.recommendation import RecommendAnswer, RecommendBody, WhyAnswer
from speedyfeed.serving.schemas.state import AboutAnswer

MAX_MAP = 2000
AS_RECOMMEND = "As in the request for recommendations."

router = APIRouter(tags=["read"], responses=PROBLEMS)


@router.post("/v1/recommend", response_model=RecommendAnswer)
async def recommend(body: RecommendBody, feed: OpenFeed, context: Context) -> Response:
    """Recommend the best articles for a user, who is described by the articles clicked so far."""
    query = body.to_query()
    rules = context.service.rules()
    texts = [click for click in query.history if not isinstance(click, str)]
    embeddings: Embeddings | None = None
    if texts:
        embeddings = await asyncio.wrap_future(feed.encode(texts))

    def answer() -> str:
        return RecommendAnswer.from_answer(feed.recommend(query, embeddings, rules)).model_dump_json()

    # As text: the framework would validate an answer that is right by construction, on the event loop.
    # While articles are written a search may have to wait for them, and the event loop must not.
    text = answer() if context.is_quiet and feed.is_quick(query, rules) else await context.reads.run(answer)
    return Response(text, media_type="application/json")


@router.get("/v1/news/{news_id:path}/similar", responses=NOT_FOUND)
async def similar(
    news_id: NewsId,
    feed: OpenFeed,
    k: Annotated[int, Query(ge=1, le=MAX_K, description="Maximum number of articles in the answer.")] = 10,
) -> ListAnswer:
    """List the articles most similar to this one, best first; scores are cosine similarities."""
    ranked = await run_in_threadpool(feed.similar, news_id, k)
    if ranked is None:
        raise HTTPException(404, "No such article.")
    return ListAnswer(news=[RankedNews.from_ranked(one) for one in ranked])


# After the route above, which it would match too: an id may hold slashes.
@router.get("/v1/news/{news_id:path}", responses=NOT_FOUND)
async def get_news(news_id: NewsId, feed: OpenFeed) -> StoryAnswer:
    """Get one article with its full text by its id, in which a slash may be written as it is or as %2F."""
    ranked, news = await run_in_threadpool(lambda: (feed.rank_one(news_id), feed.full_news(news_id)))
    if ranked is None or news is None:
        raise HTTPException(404, "No such article.")
    return StoryAnswer.from_ranked(ranked, news.body)


@router.get("/v1/why", responses=NOT_FOUND)
async def why(
    news: Annotated[str, Query(min_length=1, max_length=2000, description="Id of the article.")],
    feed: OpenFeed,
    context: Context,
    history: Annotated[
        list[str],
        Query(max_length=MAX_HISTORY, description="Ids of clicks, oldest first; repeat for several."),
    ] = [],  # noqa: B006
    k: Annotated[int, Query(ge=1, le=MAX_K, description="Length of the list in which it is looked for.")] = 10,
    diversity: Annotated[float, Query(ge=0, le=1, description=AS_RECOMMEND)] = RerankConfig().diversity,
    popularity: Annotated[float, Query(ge=0, le=1, description=AS_RECOMMEND)] = 0.0,
    freshness: Annotated[float, Query(ge=0, le=100, description=AS_RECOMMEND)] = 0.0,
) -> WhyAnswer:
    """Explain why an article is where it is in the answer to `POST /v1/recommend`, or why it is not there."""
    rules = context.service.rules()
    rerank = RerankConfig(diversity=diversity, popularity=popularity, freshness=freshness)
    query = FeedQuery(history=history, k=k, rerank=rerank)
    found = await context.reads.run(lambda: feed.why(news, query, rules))
    if found is None:
        raise HTTPException(404, "No such article.")
    return WhyAnswer.from_why(found)


@router.get("/v1/map")
async def get_map(
    feed: OpenFeed,
    limit: Annotated[int, Query(ge=1, le=MAX_MAP, description="Maximum number of articles in the answer.")] = 1000,
) -> ListAnswer:
    """List an even sample of all articles with their map positions, to draw a map; scores are 0."""
    ranked = await run_in_threadpool(feed.sample, limit)
    return ListAnswer(news=[RankedNews.from_ranked(one) for one in ranked])


@router.get("/v1/about")
async def about(feed: OpenFeed, context: Context) -> AboutAnswer:
    """Describe what is served: version, model, number of articles, categories, and who may write."""
    newest = feed.catalogue.newest()
    return AboutAnswer(
        version=__version__,
        model=feed.fingerprint,
        news=len(feed.catalogue),
        categories=feed.catalogue.categories(),
        knows_popularity=feed.catalogue.knows_popularity,
        newest=None if newest is None else datetime.fromtimestamp(newest, UTC),
        others=list(context.others),
        writes=context.write_access.state,
    )
