"""The current graph in tasks, contexts, threads and greenlets."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref

import numpy as np
import pytest

import dynet_cy as dy


async def count(n: int) -> float:
    """Add n five times, yielding to other tasks in between."""
    with dy.ComputationGraph() as own:
        x = dy.scalarInput(0)
        for _ in range(5):
            x = x + n
            await asyncio.sleep(0)
            assert dy.cg() is own
        return x.value()


def test_each_task_has_its_own_graph(graph) -> None:
    before = dy.cg()

    async def main() -> list[float]:
        return await asyncio.gather(*map(count, range(10)))

    assert asyncio.run(main()) == [5.0 * n for n in range(10)]
    assert dy.cg() is before
    assert len(before) == 0


def test_tasks_without_a_graph_of_their_own(graph) -> None:
    """Such tasks use the graph of the thread, even while other tasks are inside graphs of their own."""

    async def plain(shared: dy.ComputationGraph) -> None:
        for _ in range(5):
            assert dy.cg() is shared
            await asyncio.sleep(0)

    async def main() -> None:
        shared = dy.cg()
        await asyncio.gather(count(1), plain(shared), count(2), plain(shared))

    asyncio.run(main())
    with dy.ComputationGraph():
        asyncio.run(main())


def test_tasks_begin_with_the_graph_where_they_were_started(graph) -> None:
    async def child(outer: dy.ComputationGraph) -> None:
        assert dy.cg() is outer
        await count(3)
        assert dy.cg() is outer

    async def parent() -> None:
        with dy.ComputationGraph() as outer:
            tasks = [asyncio.ensure_future(child(outer)) for _ in range(3)]
            with dy.ComputationGraph() as inner:
                await asyncio.sleep(0)
                assert dy.cg() is inner
            assert dy.cg() is outer
        await asyncio.gather(*tasks)

    async def main() -> None:
        await asyncio.gather(parent(), parent())

    asyncio.run(main())


def test_graphs_of_tasks_are_closed(graph) -> None:
    graphs: list[weakref.ref[dy.ComputationGraph]] = []

    class Watched(dy.ComputationGraph):
        pass

    async def task() -> None:
        with Watched() as own:
            graphs.append(weakref.ref(own))
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(task(), task())

    asyncio.run(main())
    gc.collect()
    assert [made() for made in graphs] == [None, None]


def test_the_wrong_order(graph) -> None:
    """A graph that was entered in one context cannot be left in another."""
    context = contextvars.copy_context()
    entered = context.run(dy.ComputationGraph().__enter__)
    before = dy.cg()
    assert before is not entered
    assert context.run(dy.cg) is entered
    with pytest.raises(RuntimeError, match="reverse order of entering, in the thread and the task"):
        entered.__exit__()
    with dy.ComputationGraph() as other:
        with pytest.raises(RuntimeError, match="reverse order"):
            context.run(other.__exit__)
        assert context.run(dy.cg) is entered
    context.run(entered.__exit__)
    assert context.run(dy.cg) is dy.cg() is before
    with pytest.raises(RuntimeError, match="reverse order"):
        context.run(entered.__exit__)


def test_contexts_within_a_graph_of_the_thread(graph) -> None:
    def nested(outer: dy.ComputationGraph) -> None:
        assert dy.cg() is outer
        with dy.ComputationGraph() as inner:
            assert dy.cg() is inner
        assert dy.cg() is outer

    with dy.ComputationGraph() as outer:
        context = contextvars.copy_context()
        context.run(nested, outer)
        context.run(nested, outer)
        assert dy.cg() is outer
    context.run(nested, dy.cg())


def test_other_variables_do_no_harm(graph) -> None:
    """A thread has no context until a variable is first set in it; the current graph must survive that."""

    def thread() -> None:
        before = dy.cg()
        with dy.ComputationGraph() as own:
            variable = contextvars.ContextVar[int]("variable")
            variable.set(1)
            with np.errstate(all="ignore"):
                assert dy.cg() is own
            variable.set(2)
            assert dy.cg() is own
        assert dy.cg() is before
        done.append(True)

    done: list[bool] = []
    worker = threading.Thread(target=thread)
    worker.start()
    worker.join()
    assert done


def test_threads_with_a_context(graph) -> None:
    """As with `asyncio.to_thread`: the thread runs in the context of its caller and has the caller's graph."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with dy.ComputationGraph() as own:
            context = contextvars.copy_context()
            assert await loop.run_in_executor(None, context.run, dy.cg) is own
            assert await loop.run_in_executor(None, dy.cg) is not own

    asyncio.run(main())


@pytest.mark.fibers
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_greenlets_share_the_graph(graph, copies: bool, within: bool) -> None:
    """Greenlets with an empty context use the graph of the thread, those with a copied context that of the copy."""
    greenlet = pytest.importorskip("greenlet")

    def fiber(shared: dy.ComputationGraph) -> None:
        assert dy.cg() is shared
        greenlet.getcurrent().parent.switch()
        with np.errstate(all="ignore"):
            dy.tanh(dy.scalarInput(1)).value()
        contextvars.ContextVar[int]("variable").set(1)
        assert dy.cg() is shared
        greenlet.getcurrent().parent.switch()
        with dy.ComputationGraph() as own:
            assert dy.cg() is own
        assert dy.cg() is shared

    def run() -> None:
        shared = dy.cg()
        fibers = [greenlet.greenlet(fiber) for _ in range(3)]
        for f in fibers:
            if copies:
                f.gr_context = contextvars.copy_context()
            f.switch(shared)
        for _ in range(2):
            for f in fibers:
                f.switch()
        assert all(f.dead for f in fibers)
        assert dy.cg() is shared

    if within:
        with dy.ComputationGraph():
            run()
    else:
        run()
