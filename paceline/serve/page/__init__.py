"""The page: a chat that shows where every token came from, and a view for whoever runs the
server. Static files and two facts.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from paceline.draft_budget.acceptance_calibration import EDGES, AcceptanceCalibration
from paceline.drafters import available, entry
from paceline.serve.serving import Serving

_PAGES = {"/": "chat.html", "/operator": "operator.html"}
_TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src"
    " 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes(serving: Serving, wants_key: bool = False) -> APIRouter:
    """The page of a server, outside of its schema.

    Args:
        wants_key: requests must have a key, which the chat then asks for.
    """
    router = APIRouter(include_in_schema=False)
    for path, name in {**_PAGES, **{f"/page/{name}": name for name in _names()}}.items():
        router.add_api_route(path, _file(name), methods=["GET"])

    @router.get("/page/about.json")
    async def about() -> Response:
        """What the chat has to know."""
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
        """What the operator's view shows; rates are differences between two of these."""
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
            else steps_of(acceptance_calibration),
        )

    return router


def drafters_for(serving: Serving) -> list[str]:
    """The drafters that a request may name without anything besides: no draft model, file or
    store.
    """
    own = serving.llm.drafter.name
    found = [name for name in available() if name == own or not _needs_more(name)]
    return [own, *(name for name in found if name != own)]


def _needs_more(name: str) -> bool:
    try:
        one = entry(name)
    except Exception:  # an entry point of another package that cannot be imported
        return True
    return one.needs_draft_model or one.needs_trained or one.needs_store


def steps_of(acceptance_calibration: AcceptanceCalibration) -> list[dict[str, float]]:
    """What was predicted and what came true, for each step of confidence that was tried."""
    bounds = [0.0, *EDGES, 1.0]
    steps = []
    for place, trials in enumerate(acceptance_calibration.trials.tolist()):
        if trials > 0:
            predicted, hits = (
                acceptance_calibration.predicted[place] / trials,
                acceptance_calibration.hits[place] / trials,
            )
            steps.append(
                {
                    "from": bounds[place],
                    "to": bounds[place + 1],
                    "predicted": round(float(predicted), 4),
                    "came_true": round(float(hits), 4),
                    "trials": trials,
                }
            )
    return steps


def _names() -> list[str]:
    return sorted(
        one.name for one in files(__name__).iterdir() if one.name.rpartition(".")[2] in _TYPES
    )


def _file(name: str) -> Any:
    content, kind = (files(__name__) / name).read_bytes(), _TYPES[name.rpartition(".")[2]]

    async def give() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return give


def _json(**content: Any) -> Response:
    return JSONResponse(content, headers=HEADERS)
