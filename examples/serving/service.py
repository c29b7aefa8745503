"""A web service that tags and parses sentences, with models that `tagger.py` and `transition_parser.py` have trained.

    cd .. && python tagger.py && python transition_parser.py && cd serving
    python service.py --tagger ../runs/tagger --parser ../runs/transition_parser
    curl -d 'The dog barks .' http://127.0.0.1:8000/analyse
    curl http://127.0.0.1:8000/statistics
    curl -X POST http://127.0.0.1:8000/reload                  # after they were trained again

`Analyser` does a sentence as one would do it by hand: tag it, then choose one action of the parser after the other.
The server runs many of them side by side: a request joins those under way at the next step.  `pip install '.[serve]'`
in the clone brings starlette and uvicorn; `client.py` loads the service.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the other examples

import tagger
import transition_parser

import dynet_cy as dy

LONGEST = 200  # words in a sentence
Answer = Callable[[list[str]], Awaitable[dict]]


class Analyser:
    """Tags and parses a sentence."""

    def __init__(self, tagging: tagger.Tagger, parser: transition_parser.Parser) -> None:
        self.tagging, self.parser = tagging, parser

    def __call__(self, words: list[str]) -> dict:
        tags = self.tagging.tag_one(words, {})
        heads, relations = transition_parser.take_best(self.parser.start(words, tags), self.parser.actions)
        return {"words": words, "tags": tags, "heads": heads, "relations": relations}


def load(tagger_file: Path, parser_file: Path) -> Analyser:
    parser = transition_parser.load(parser_file)
    parser.reader.disable_dropout()
    return Analyser(tagger.load(tagger_file), parser)


def application(answer: Answer, statistics: Callable[[], dict], reload: Callable[[], None]) -> Starlette:
    """Return the web application: it asks `answer` for each sentence."""

    async def analyse(request: Request) -> JSONResponse:
        words = (await request.body()).decode(errors="replace").split()
        if not 0 < len(words) <= LONGEST:
            return JSONResponse({"error": f"expected 1 to {LONGEST} words, not {len(words)}"}, 400)
        try:
            return JSONResponse(await answer(words))
        except dy.ServerFull:
            return JSONResponse({"error": "too many requests wait already"}, 503)
        except TimeoutError:
            return JSONResponse({"error": "no answer in time"}, 504)

    async def tell(_: Request) -> JSONResponse:
        return JSONResponse(statistics())

    def load_again(_: Request) -> JSONResponse:  # in a thread of its own, as it is no coroutine: requests go on
        try:
            reload()
        except (OSError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 500)
        return JSONResponse({})

    return Starlette(
        routes=[
            Route("/analyse", analyse, methods=["POST"]),
            Route("/statistics", tell),
            Route("/reload", load_again, methods=["POST"]),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Tag and parse sentences over HTTP.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--tagger", type=Path, metavar="FILE", default=Path("runs/tagger.safetensors"))
    add("--parser", type=Path, metavar="FILE", default=Path("runs/transition_parser.safetensors"))
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--deadline", type=float, default=10.0, help="seconds within which a request must be answered")
    add("--queue", type=int, default=1024, help="requests that may wait; further ones are refused")
    add("--width", type=int, default=256, help="requests under way at once")
    args = parser.parse_args()

    try:
        analyser = load(args.tagger, args.parser)
        with dy.Server(analyser, queue=args.queue, width=args.width, deadline=args.deadline) as server:

            async def answer(words: list[str]) -> dict:
                return await server.call_async(words, wait=False)

            def statistics() -> dict:  # percentiles are nan at first, which JSON does not have
                return {name: None if x != x else x for name, x in server.statistics()._asdict().items()}

            app = application(answer, statistics, lambda: server.reload(load(args.tagger, args.parser)))
            uvicorn.run(app, host=args.host, port=args.port, log_level="warning")
    except (OSError, ValueError) as error:
        sys.exit(f"service.py: {error}")
    except KeyboardInterrupt:
        sys.exit("service.py: interrupted")


if __name__ == "__main__":
    main()
