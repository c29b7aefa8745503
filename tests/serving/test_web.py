"""Web applications: answers, numbers, and a status for each error."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest

import dynet_cy as dy
from dynet_cy.serving import web

pytest.importorskip("starlette", reason="the web service needs the extra [serve]")


async def request(
    app: Any,
    method: str,
    path: str,
    parts: Iterable[bytes | float] = (b"",),
    headers: Iterable[tuple[bytes, bytes]] = (),
    taken: list[bytes] | None = None,
) -> tuple[int, Any]:
    """A request to an ASGI application, without a socket: the status and the JSON of the answer.

    The body comes in parts; a number is a pause in seconds. `taken` gets the parts that the application has read.
    """
    sent: list[dict] = []
    left = iter(parts)

    async def receive() -> dict:
        for part in left:
            if isinstance(part, bytes):
                if taken is not None:
                    taken.append(part)
                return {"type": "http.request", "body": part, "more_body": True}
            await asyncio.sleep(part)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": ""}
    await app({**scope, "headers": list(headers), "query_string": query.encode()}, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


def ask(app: Any, method: str, path: str, text: str = "", **more: Any) -> tuple[int, Any]:
    return asyncio.run(request(app, method, path, more.pop("parts", (text.encode(),)), **more))


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


LIMITS = web.Limits(body_bytes=100, header_bytes=200, requests=2)
SHORT = LIMITS._replace(body_seconds=0.2, answer_seconds=0.2)


def made(limits: web.Limits = LIMITS, reload: Any = lambda: None, statistics: Any = None) -> Any:
    """An application that evaluates the text, and waits for a time if that is a number."""

    async def answer(text: str) -> Any:
        found = eval(text)
        if isinstance(found, float) and 0 < found < 100:
            await asyncio.sleep(found)
        return found

    return web.application("do", answer, statistics, reload, limits)


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "said"),
    [
        ("POST", "/do", {"parts": [b"1", b" " * 99]}, 200, None),
        ("POST", "/do", {"parts": [b"1", b" " * 100]}, 413, "the body is larger than 100 bytes"),
        ("POST", "/do", {"text": "1", "headers": [(b"content-length", b"101")]}, 413, "the body is larger"),
        ("POST", "/do", {"text": "1", "headers": [(b"Content-Length", b"9" * 40)]}, 413, "the body is larger"),
        ("POST", "/do", {"text": "1", "headers": [(b"content-length", b"-1")]}, 400, "content-length is not a number"),
        ("POST", "/reload", {"headers": [(b"content-length", b"101")]}, 413, "the body is larger"),
        ("GET", "/statistics", {"headers": [(b"content-length", b"101")]}, 413, "the body is larger"),
        ("POST", "/do", {"text": "1", "headers": [(b"x", b"x" * 200)]}, 431, "the headers are larger than 200 bytes"),
        ("POST", "/do", {"text": "1", "headers": [(b"x", b"x")] * 101}, 431, "the headers are larger"),
        ("POST", "/do", {"text": "1", "headers": [(b"x", b"x")] * 99}, 200, None),
        ("POST", "/do?" + "x" * 200, {"text": "1"}, 414, "the path is longer than 200 bytes"),
        ("GET", "/" + "x" * 200, {}, 414, "the path is longer"),
        ("POST", "/do", {"parts": [b"1", 5.0], "limits": SHORT}, 408, "the body was not complete after 0.2 s"),
        ("POST", "/do", {"parts": [b" ", 0.05] * 50, "limits": SHORT}, 408, "the body was not complete"),
        ("POST", "/do", {"text": "5.0", "limits": SHORT}, 504, "no answer in time"),
        ("POST", "/do", {"text": "float('nan')"}, 500, "JSON cannot hold the answer: Out of range"),
        ("POST", "/do", {"text": "{'a': [float('-inf')]}"}, 500, "JSON cannot hold the answer: Out of range"),
        ("POST", "/do", {"text": "{1, 2}"}, 500, "JSON cannot hold the answer: Object of type set"),
        ("POST", "/do", {"text": "'\\ud800'"}, 500, "JSON cannot hold the answer: 'utf-8'"),
        ("GET", "/do", {}, 405, "Method Not Allowed"),
        ("GET", "/other", {}, 404, "Not Found"),
    ],
)
def test_limits(method: str, path: str, more: dict, status: int, said: str | None) -> None:
    found = ask(made(more.pop("limits", LIMITS)), method, path, **more)
    assert found[0] == status
    assert found[1] == 1 if said is None else said in found[1]["error"]


def test_a_body_that_is_too_large_is_not_read() -> None:
    taken: list[bytes] = []
    assert ask(made(), "POST", "/do", parts=[b"x" * 60] * 1000, taken=taken)[0] == 413
    assert len(taken) == 2


def test_errors_of_a_service_are_json() -> None:
    """A server logs them: they are raised after the answer."""
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    async def receive() -> dict:
        return {"type": "http.request", "body": b"1 / 0", "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/do", "headers": [], "query_string": b"", "root_path": ""}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(made()(scope, receive, send))
    assert (sent[0]["status"], json.loads(sent[1]["body"])) == (500, {"error": "ZeroDivisionError in the service"})


def test_a_client_that_leaves_is_no_error() -> None:
    async def receive() -> dict:
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/do", "headers": [], "query_string": b"", "root_path": ""}
    asyncio.run(made()(scope, receive, send))


def test_so_many_requests_at_once() -> None:
    async def several() -> list[int]:
        app = made()
        slow = [request(app, "POST", "/do", [b"1", 0.1]) for _ in range(3)]
        found = [status for status, _ in await asyncio.gather(*slow)]
        return [*found, (await request(app, "POST", "/do", [b"1"]))[0]]

    assert asyncio.run(several()) == [200, 200, 503, 200]


def test_one_reload_at_a_time() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def reload() -> None:
        begun.set()
        assert go_on.wait(600)

    async def several() -> list[int]:
        app = made(reload=reload)
        first = asyncio.create_task(request(app, "POST", "/reload"))
        assert await asyncio.to_thread(begun.wait, 600)
        second = await request(app, "POST", "/reload")
        go_on.set()
        return [(await first)[0], second[0], (await request(app, "POST", "/reload"))[0]]

    assert asyncio.run(several()) == [200, 503, 200]


@pytest.mark.parametrize("name", web.Limits._fields)
def test_limits_are_greater_than_0(name: str) -> None:
    for value in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=f"application: limits: {name} must be greater than 0, not {value}"):
            made(LIMITS._replace(**{name: value}))
