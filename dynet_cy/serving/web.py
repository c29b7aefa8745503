"""A web application around a function from text to text, such as a `serving.Server`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dynet_cy.serving.server import ServerFull, ServerStatistics

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["BadRequest", "Limits", "application"]


class BadRequest(ValueError):
    """A text that a service cannot answer; the message is for the client.

    Example:
        >>> from dynet_cy.serving import web
        >>> web.BadRequest("no words").args
        ('no words',)
    """


class Limits(NamedTuple):
    """Limits for clients of a web application. A request beyond one of them is refused and takes no memory.

    Example:
        >>> from dynet_cy.serving import web
        >>> web.Limits(body_bytes=4096).requests
        2048
    """

    body_bytes: int = 1 << 18
    """Of the body; the status is 413. No more than this is read."""
    header_bytes: int = 1 << 14
    """Of all headers, status 431; and of the path with the query, status 414."""
    body_seconds: float = 30.0
    """From the beginning of the request until its body is complete, status 408; and for each part of the answer to be
    taken, after which the connection is closed."""
    answer_seconds: float = 60.0
    """From the complete body to the answer; the status is 504."""
    requests: int = 2048
    """Under way at once; the status is 503. They hold `requests` times `body_bytes` at most."""


def application(
    name: str,
    answer: Callable[[str], Awaitable[Any]],
    statistics: Callable[[], ServerStatistics],
    reload: Callable[[], Any],
    limits: Limits | None = None,
) -> Any:
    """A web application (ASGI) that answers texts in JSON; it needs starlette (``pip install 'dynet_cy[serve]'``).

    ``POST /NAME`` answers the text of the request, ``GET /statistics`` tells its numbers (null for one that is not
    finite, which JSON does not have), ``GET /metrics`` the same in Prometheus' text format, and ``POST /reload`` loads
    the model again while other requests go on.

    Errors are ``{"error": message}`` with a status: 400 after a `BadRequest`; 503 after a `ServerFull`, and while the
    model is loaded already; 504 after a `TimeoutError`; 500 if the model cannot be loaded (`OSError`, `ValueError`), if
    JSON cannot hold the answer, such as one that is NaN, and after any other error, which the server logs; those of
    `Limits`.

    Args:
        name: that of the answers
        answer: a coroutine function from a text to something that JSON can write
        statistics: a function that returns the numbers, such as the method of a `Server`
        reload: a function that loads the model again
        limits: what is refused; None: the defaults of `Limits`. The program that runs the application has limits of its
            own, such as for headers that never end

    Returns:
        A ``starlette.applications.Starlette``, which servers such as uvicorn run.

    Raises:
        ImportError: starlette is not installed
        ValueError: a limit is not greater than 0

    Example:
        >>> from dynet_cy.serving import web
        >>> async def count(text):
        ...     return {"words": len(text.split())}
        >>> app = web.application("count", count, server.statistics, lambda: None)  # doctest: +SKIP
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route

    most = Limits() if limits is None else limits
    for which, limit in most._asdict().items():
        if not limit > 0:
            raise ValueError(f"application: limits: {which} must be greater than 0, not {limit!r}")
    loading = False

    async def answered(request: Request) -> Response:
        return await _answered(request, answer, most)

    async def told(_: Request) -> Response:
        numbers = statistics()._asdict()
        return JSONResponse({key: value if math.isfinite(value) else None for key, value in numbers.items()})

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(statistics().prometheus(), media_type="text/plain; version=0.0.4")

    async def reloaded(_: Request) -> Response:
        nonlocal loading
        if loading:
            return _error(503, "the model is being loaded already")
        loading = True
        try:
            await run_in_threadpool(reload)  # other requests go on
        except (OSError, ValueError) as reason:
            return _error(500, reason)
        finally:
            loading = False
        return JSONResponse({})

    async def refused(_: Request, reason: Exception) -> Response:
        assert isinstance(reason, HTTPException)
        found = _error(reason.status_code, reason.detail)
        found.headers.update(reason.headers or {})
        return found

    async def failed(_: Request, reason: Exception) -> Response:
        return _error(500, f"{type(reason).__name__} in the service")

    async def left(_: Request, reason: Exception) -> Response:
        return _error(400, "the client has left")  # nobody reads it

    return Starlette(
        routes=[
            Route(f"/{name}", answered, methods=["POST"]),
            Route("/statistics", told),
            Route("/metrics", metrics),
            Route("/reload", reloaded, methods=["POST"]),
        ],
        middleware=[Middleware(_Limited, limits=most)],
        exception_handlers={HTTPException: refused, ClientDisconnect: left, Exception: failed},
    )


def _error(status: int, message: object) -> Response:
    from starlette.responses import JSONResponse

    # What is left of the request is not read, so the connection cannot be used again.
    headers = {"connection": "close"} if status in (408, 413) else {"retry-after": "1"} if status == 503 else None
    return JSONResponse({"error": str(message)}, status, headers)


async def _text_of(request: Request, limits: Limits) -> str:
    from starlette.exceptions import HTTPException

    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > limits.body_bytes:
            raise HTTPException(413, _too_large(limits))
    return found.decode(errors="replace")


async def _answered(request: Request, answer: Callable[[str], Awaitable[Any]], limits: Limits) -> Response:
    from starlette.responses import JSONResponse

    try:
        text = await asyncio.wait_for(_text_of(request, limits), limits.body_seconds)
    except asyncio.TimeoutError:
        return _error(408, f"the body was not complete after {limits.body_seconds:g} s")
    try:
        found = await asyncio.wait_for(_awaited(answer(text)), limits.answer_seconds)
    except BadRequest as reason:
        return _error(400, reason)
    except ServerFull:
        return _error(503, "too many requests wait already")
    except (TimeoutError, asyncio.TimeoutError):
        return _error(504, "no answer in time")
    try:
        return JSONResponse(found)
    except (TypeError, ValueError, RecursionError) as reason:
        return _error(500, f"JSON cannot hold the answer: {reason}")


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _too_large(limits: Limits) -> str:
    return f"the body is larger than {limits.body_bytes} bytes"


class _Limited:
    """An application that refuses requests by what is known before they are read."""

    def __init__(self, app: Any, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.under_way = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_in_time(message: Any) -> None:
            await asyncio.wait_for(send(message), self.limits.body_seconds)

        refusal = self._refusal(scope)
        app = self.app if refusal is None else _error(*refusal)
        self.under_way += 1
        try:
            await app(scope, receive, send_in_time)
        finally:
            self.under_way -= 1

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        """The status and the reason, if a request is refused."""
        limits, headers = self.limits, scope["headers"]
        if self.under_way >= limits.requests:
            return 503, f"{limits.requests} requests are under way already"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > limits.header_bytes:
            return 414, f"the path is longer than {limits.header_bytes} bytes"
        if sum(len(key) + len(value) for key, value in headers) > limits.header_bytes:
            return 431, f"the headers are larger than {limits.header_bytes} bytes"
        for key, value in headers:
            if key.lower() == b"content-length":
                if not value.isdigit():
                    return 400, "the content-length is not a number"
                if len(value) > 18 or int(value) > limits.body_bytes:
                    return 413, _too_large(limits)
        return None
