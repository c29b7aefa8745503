"""Web applications: answers, numbers, and a status for each error."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import dynet_cy as dy
from dynet_cy.serving import web

pytest.importorskip("starlette", reason="the web service needs the extra [serve]")


def ask(app: Any, method: str, path: str, text: str = "") -> tuple[int, Any]:
    """A request to an ASGI application, without a socket: the status and the JSON of the answer."""
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": text.encode(), "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "root_path": ""}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


@pytest.fixture
def app() -> Any:
    errors = {
        "bad": web.BadRequest("no words"),
        "full": dy.ServerFull(),
        "late": TimeoutError(),
    }

    async def answer(text: str) -> dict:
        if text in errors:
            raise errors[text]
        return {"words": text.split()}

    loads = iter([None, OSError("no file")])

    def reload() -> None:
        error = next(loads)
        if error is not None:
            raise error

    none = dict.fromkeys(dy.ServerStatistics._fields, 0)
    statistics = dy.ServerStatistics(**{**none, "finished": 3, "p50": float("nan")})
    return web.application("analyse", answer, lambda: statistics, reload)


def test_answers_and_errors(app: Any) -> None:
    assert ask(app, "POST", "/analyse", "a çiçek") == (200, {"words": ["a", "çiçek"]})
    assert ask(app, "POST", "/analyse", "bad") == (400, {"error": "no words"})
    assert ask(app, "POST", "/analyse", "full") == (503, {"error": "too many requests wait already"})
    assert ask(app, "POST", "/analyse", "late") == (504, {"error": "no answer in time"})


def test_statistics_and_reload(app: Any) -> None:
    status, numbers = ask(app, "GET", "/statistics")
    assert (status, numbers["finished"], numbers["p50"], numbers["failed"]) == (200, 3, None, 0)
    assert ask(app, "POST", "/reload") == (200, {})
    assert ask(app, "POST", "/reload") == (500, {"error": "no file"})
