"""Routes of the editor, which need the bearer token: feedback of users, its log, and rules."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path

from speedyfeed.serving.dependencies import WRITE_ACCESS, Context, OpenFeed
from speedyfeed.serving.problems import NO_RULE, WRITE_PROBLEMS
from speedyfeed.serving.schemas.feedback import ExportAnswer, FeedbackBody
from speedyfeed.serving.schemas.rules import RuleAnswer, RuleBody, RulesAnswer
from speedyfeed.serving.schemas.state import StateAnswer

router = APIRouter(tags=["editor"], responses=WRITE_PROBLEMS, dependencies=[WRITE_ACCESS])


@router.post("/v1/feedback", status_code=201)
async def give_feedback(body: FeedbackBody, _: OpenFeed, context: Context) -> StateAnswer:
    """Record what a user did with articles: on disk once answered, and clicks count as popularity at once."""
    feedback = body.to_feedback()
    await context.writes.run(lambda: context.service.give_feedback(feedback))
    return StateAnswer(status="recorded")


@router.post("/v1/feedback/export", status_code=201)
async def export_feedback(_: OpenFeed, context: Context) -> ExportAnswer:
    """Write all feedback as a log that speedyfeed prepare reads, into the data folder of the service."""
    exported = await context.writes.run(context.service.export_feedback)
    return ExportAnswer(folder=exported.folder.name, impressions=exported.impressions)


@router.get("/v1/rules")
async def list_rules(context: Context) -> RulesAnswer:
    """List the boosts and bans in force."""
    return RulesAnswer(rules=[RuleAnswer.from_rule(rule) for rule in context.service.rules().all])


@router.post("/v1/rules", status_code=201)
async def make_rule(body: RuleBody, context: Context) -> RuleAnswer:
    """Boost or ban an article or a category for some hours; in force and on disk once answered."""
    rule = body.to_rule()
    await context.writes.run(lambda: context.service.set_rule(rule))
    return RuleAnswer.from_rule(rule)


@router.delete("/v1/rules/{rule_id}", responses=NO_RULE)
async def end_rule(
    rule_id: Annotated[str, Path(description="Id of the rule to end.")], context: Context
) -> StateAnswer:
    """End a boost or a ban before its time."""
    if not await context.writes.run(lambda: context.service.remove_rule(rule_id)):
        raise HTTPException(404, "No such rule.")
    return StateAnswer(status="ended")
