"""The files of the web page."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response

PAGE = Path(__file__).parent.parent / "page"

router = APIRouter(include_in_schema=False)
_files = StaticFiles(directory=PAGE, html=True)


@router.get("/compare")
async def get_comparison(request: Request) -> Response:
    """Send the page that shows two runs side by side."""
    return await _files.get_response("compare.html", request.scope)


# Not mounted: a mount at the root would answer for the methods that other routes do not have.
@router.get("/")
@router.get("/{file}")
async def get_page(request: Request, file: str = ".") -> Response:
    """Send one file of the page, index.html by default."""
    return await _files.get_response(file, request.scope)
