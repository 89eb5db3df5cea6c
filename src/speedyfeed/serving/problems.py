"""Failed requests: how OpenAPI describes them, and the one line of JSON they are answered with."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match, Route

from speedyfeed.serving.schemas.recommendation import CLICK_ID, CLICK_TEXT
from speedyfeed.serving.schemas.state import Problem

PLAIN_ERRORS = {
    "missing": "is missing",
    "extra_forbidden": "there is no such field",
    "model_attributes_type": "should be a JSON object",
    "model_type": "should be a JSON object",
}
"""Words for errors whose usual message speaks of the validator."""
MAX_ERRORS = 3
"""Errors named in one answer, at most."""
MAX_FIELD = 60
"""Characters of a field's name in an answer, at most: a client chooses the names of unknown fields."""
Responses = dict[int | str, dict[str, Any]]


def _describe(texts: dict[int, str]) -> Responses:
    return {status: {"model": Problem, "description": text} for status, text in texts.items()}


NOT_READY = _describe({503: "The service is not ready, or too busy: try again soon."})
PROBLEMS = (
    _describe(
        {
            400: "The request body is not valid JSON in UTF-8.",
            408: "The request body did not arrive in time.",
            413: "The request body is too long.",
            415: "The content type of the request body is not application/json, or it is compressed.",
            422: "The request does not have the form described here.",
        }
    )
    | NOT_READY
)
WRITE_PROBLEMS = PROBLEMS | _describe(
    {
        401: "The bearer token is missing or wrong.",
        403: "Writes are turned off, or not allowed from this origin.",
        507: "The disk is full or cannot be written.",
    }
)
NOT_FOUND = _describe({404: "There is no article with this id."})
NO_RULE = _describe({404: "There is no rule with this id."})
RELOAD_FAILED = _describe({409: "Another reload is in progress, or the run cannot be loaded."})


def add_problem_handlers(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Answer every failed request with `{"detail": "..."}`: no path, no traceback, no echo of the request."""
    routes = [route for router in routers for route in router.routes]

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        if any(one["type"] == "json_invalid" for one in errors):
            return _answer_unread(request)
        if any(one["type"] == "model_attributes_type" for one in errors) and not _is_json(request):
            return JSONResponse({"detail": "The header Content-Type: should be application/json"}, 415)
        return JSONResponse({"detail": "; ".join(map(_describe_error, errors[:MAX_ERRORS]))}, 422)

    @app.exception_handler(HTTPException)
    async def answer_refused(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:  # only the framework's: text that is not UTF-8, too deep, or no text at all
            return _answer_unread(request)
        headers = dict(error.headers or {})
        if error.status_code == 405:  # the framework names the methods of the first route with that path only
            methods = {method for route in routes for method in _methods(route, request)}
            headers["Allow"] = ", ".join(sorted(methods))
        return JSONResponse({"detail": str(error.detail)}, error.status_code, headers)


def _answer_unread(request: Request) -> JSONResponse:
    """Answer to a body that is no JSON."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        return JSONResponse({"detail": "The header Content-Encoding: should be left out; send plain JSON"}, 415)
    return JSONResponse({"detail": "The request body is not valid JSON in UTF-8."}, 400)


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _describe_error(error: dict[str, Any]) -> str:
    """Where the error is and what was expected there, such as `history.0.title: is missing`."""
    parts = [str(part) for part in error["loc"][1:] if part not in (CLICK_ID, CLICK_TEXT)]
    field = ".".join(part for part in parts if not part.startswith("function-"))[:MAX_FIELD]
    text = PLAIN_ERRORS.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
    return f"{field or 'The request body'}: {text}"


def _methods(route: BaseRoute, request: Request) -> set[str]:
    """Methods that the route has for the path of the request."""
    if not isinstance(route, Route) or route.matches(request.scope)[0] is Match.NONE:
        return set()
    return route.methods or set()
