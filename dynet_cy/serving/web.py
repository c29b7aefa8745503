"""A web application around a function that answers texts, such as that of a `serving.Server`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dynet_cy.serving.server import ServerFull, ServerStatistics

__all__ = ["BadRequest", "application"]


class BadRequest(ValueError):
    """A text that a service cannot answer; the message is for the client.

    Example:
        >>> from dynet_cy.serving import web
        >>> web.BadRequest("no words").args
        ('no words',)
    """


def application(
    name: str,
    answer: Callable[[str], Awaitable[Any]],
    statistics: Callable[[], ServerStatistics],
    reload: Callable[[], Any],
) -> Any:
    """A web application (ASGI) that answers texts in JSON; it needs starlette (``pip install 'dynet_cy[serve]'``).

    ``POST /NAME`` answers the text of the request, ``GET /statistics`` tells its numbers (null for nan, which JSON does
    not have), ``GET /metrics`` the same in Prometheus' text format, and ``POST /reload`` loads the model again while other requests go on. Errors are ``{"error": message}`` with
    the status 400 after a `BadRequest`, 503 after a `ServerFull`, 504 after a `TimeoutError`, and 500 if the model
    cannot be loaded (`OSError`, `ValueError`).

    Args:
        name: that of the answers
        answer: a coroutine function from a text to something that JSON can write
        statistics: a function that returns the numbers, such as the method of a `Server`
        reload: a function that loads the model again

    Returns:
        A ``starlette.applications.Starlette``, which servers such as uvicorn run.

    Raises:
        ImportError: starlette is not installed

    Example:
        >>> from dynet_cy.serving import web
        >>> async def count(text):
        ...     return {"words": len(text.split())}
        >>> app = web.application("count", count, server.statistics, lambda: None)  # doctest: +SKIP
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route

    def error(status: int, message: object) -> JSONResponse:
        return JSONResponse({"error": str(message)}, status)

    async def answered(request: Request) -> JSONResponse:
        try:
            return JSONResponse(await answer((await request.body()).decode(errors="replace")))
        except BadRequest as reason:
            return error(400, reason)
        except ServerFull:
            return error(503, "too many requests wait already")
        except TimeoutError:
            return error(504, "no answer in time")

    async def told(_: Request) -> JSONResponse:
        return JSONResponse({key: None if value != value else value for key, value in statistics()._asdict().items()})

    async def metrics(_: Request) -> PlainTextResponse:
        return PlainTextResponse(statistics().prometheus(), media_type="text/plain; version=0.0.4")

    def reloaded(_: Request) -> JSONResponse:  # runs in a thread, as it is not a coroutine: requests continue
        try:
            reload()
        except (OSError, ValueError) as reason:
            return error(500, reason)
        return JSONResponse({})

    return Starlette(
        routes=[
            Route(f"/{name}", answered, methods=["POST"]),
            Route("/statistics", told),
            Route("/metrics", metrics),
            Route("/reload", reloaded, methods=["POST"]),
        ]
    )
