"""Serve the web page: a chat that shows each token's source, and a dashboard."""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration
from paceline.drafters import available, entry
from paceline.serve.serving import Serving

_PAGES = {"/": "chat.html", "/operator": "operator.html"}
_TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src"
    " 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes(serving: Serving, wants_key: bool = False) -> APIRouter:
    """Build the routes of the web page, which the API schema omits.

    Args:
        serving: Served model.
        wants_key: Whether the API requires a key. If so, the chat page prompts the user for one.
    """
    router = APIRouter(include_in_schema=False)
    for path, name in {**_PAGES, **{f"/page/{name}": name for name in _names()}}.items():
        router.add_api_route(path, _file(name), methods=["GET"])

    @router.get("/page/about.json")
    async def about() -> Response:
        """Return the settings that the chat page needs, such as the list of drafters."""
        return _json(
            model=serving.names[0],
            drafter=serving.llm.drafter.name,
            drafters=drafters_for(serving),
            wants_key=wants_key,
            max_length=serving.llm.max_length,
            plain_seconds=serving.llm.plain_seconds,
        )

    @router.get("/page/operator.json")
    async def operator() -> Response:
        """Return the metrics that the dashboard shows.

        The page computes rates from two successive responses.
        """
        curve, acceptance_calibration = serving.llm.cost_curve, serving.llm.acceptance_calibration
        return _json(
            model=serving.names[0],
            drafter=serving.llm.drafter.name,
            load=asdict(serving.llm.load),
            open=serving.gate.open,
            most_open=serving.settings.max_open,
            max_batch=serving.settings.max_batch,
            origins=serving.meter.tally.rows(),
            curve=None if curve is None else {"rows": curve.rows, "seconds": curve.seconds},
            acceptance_calibration=None
            if acceptance_calibration is None
            else calibration_of(acceptance_calibration),
        )

    return router


def drafters_for(serving: Serving) -> list[str]:
    """Return the names of the drafters that users can select on the web page.

    The list starts with the server's default drafter. The other drafters need no draft model,
    trained weights or datastore, because a request cannot choose files.
    """
    own = serving.llm.drafter.name
    names = [name for name in available() if name == own or not _needs_more(name)]
    return [own, *(name for name in names if name != own)]


def _needs_more(name: str) -> bool:
    try:
        drafter = entry(name)
    except Exception:  # another package has registered a broken entry point
        return True
    return drafter.needs_draft_model or drafter.needs_trained or drafter.needs_store


def calibration_of(acceptance_calibration: AcceptanceCalibration) -> list[dict[str, float]]:
    """Return the predicted and the observed acceptance rate per confidence range."""
    bounds = [0.0, *acceptance_calibration.edges.tolist(), 1.0]
    ranges = []
    for index, trials in enumerate(acceptance_calibration.trials.tolist()):
        if trials > 0:
            predicted, hits = (
                acceptance_calibration.predicted[index] / trials,
                acceptance_calibration.hits[index] / trials,
            )
            ranges.append(
                {
                    "from": bounds[index],
                    "to": bounds[index + 1],
                    "predicted": round(float(predicted), 4),
                    "observed": round(float(hits), 4),
                    "trials": trials,
                }
            )
    return ranges


def _names() -> list[str]:
    return sorted(
        file.name for file in files(__name__).iterdir() if file.name.rpartition(".")[2] in _TYPES
    )


def _file(name: str) -> Any:
    content, kind = (files(__name__) / name).read_bytes(), _TYPES[name.rpartition(".")[2]]

    async def serve_file() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return serve_file


def _json(**content: Any) -> Response:
    return JSONResponse(content, headers=HEADERS)
