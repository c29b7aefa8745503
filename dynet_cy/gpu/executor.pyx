# Used from Cython only.
"""The GPU executor: runs plans forward on a device."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.interrupts cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.execute.anomaly cimport Finding, bad_values, checking, raise_anomaly
from dynet_cy.execute.profile cimport list_batches, profiling
from dynet_cy.execute.walk cimport assign_values, count_as_run, run_forward
from dynet_cy.gpu.commands cimport Pass, begin_pass
from dynet_cy.gpu.gradients cimport backward
from dynet_cy.gpu.graphs cimport DeviceGraph, close, device_graph, fetch
from dynet_cy.gpu.passes cimport raise_pass_failure, run_pass
from dynet_cy.graph.computing cimport value_here
from dynet_cy.graph.hooks cimport ENGINE_GPU, Engine, engine
from dynet_cy.graph.structs cimport (
    COMPUTED, NO_BATCH, SENT, Batch, Graph, Node, args_of, batches_of, nodes_of, release_arguments, state_of,
)
from dynet_cy.graph.table cimport lock_graph, unlock_graph
from dynet_cy.graph.timeline cimport FORWARD_PASS, begin_pass_span, end_span
from dynet_cy.kernels.precision cimport in_bf16
from dynet_cy.memory.arena cimport arena_rewind, out_of_memory
from dynet_cy.schedule.plan cimport drop_plan, plan


# How many batches are sent as one pass.  Signal handlers run between passes.
cdef enum:
    MOST_TOGETHER = 1 << 12


cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    """Compute the values of the targets and all that they need."""
    cdef DeviceGraph* d = device_graph(g, g.device)
    cdef int error
    cdef uint32_t n_batches = 0, ran = g.n_batches, end
    cdef uint64_t span = begin_pass_span(g)
    cdef Interrupts s
    begin_interrupts(&s)
    lock_graph(g)
    try:
        with nogil:
            error = plan(g, targets, n, strategy, checking, &n_batches, &s)
        raise_interrupt(&s)
        if error:
            out_of_memory("the schedule of the graph")
        end = g.n_batches + n_batches
        while g.n_batches < end:
            run_planned(g, d, min(end - g.n_batches, <uint32_t>MOST_TOGETHER))
            with nogil:
                interrupted(&s, batches_of(g)[g.n_batches - 1].bytes)
            if s.raised != NULL:
                drop_plan(g)
                raise_interrupt(&s)
    finally:
        unlock_graph(g)
    end_span(FORWARD_PASS, span)
    if profiling > 1:
        list_batches(g, ran)
    return 0


cdef int run_planned(Graph* g, DeviceGraph* d, uint32_t n_batches) except -1:
    """Run the next planned batches in one pass; after an error the rest of the plan is dropped."""
    cdef Pass s
    cdef int error = 0
    cdef uint32_t before = g.n_batches, number
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef size_t tables_top = g.tables.top
    try:
        if in_bf16:
            raise RuntimeError(
                f"GPU:{d.gpu.number}: precision='bf16' is for the CPU, and products on GPUs are float32; set "
                "precision='float32' to compute there")
        begin_pass(&s, g, d)
        with nogil:
            for number in range(before, before + n_batches):
                if not error:
                    s.walk.number = number
                    error = run_forward(&s.walk, &batches_of(g)[number])
                if not error:
                    assign_values(g, &batches_of(g)[number], number)
        if error:
            raise_pass_failure(&s, "the values of the graph")
        run_pass(&s, "the values of the graph")
        for _ in range(n_batches):
            count_as_run(g)
        if g.check_validity and not checking:       # if checks are on, the pass has checked the values already
            check_values(g, d, before)
        if g.forward_only:
            release(g, before)
            arena_rewind(&g.tables, tables_top)
    except BaseException:
        undo(g, before)
        arena_rewind(&g.values, values_top)
        arena_rewind(&g.scratch, scratch_top)
        arena_rewind(&g.tables, tables_top)
        raise
    return 0


cdef void release(Graph* g, uint32_t before) noexcept nogil:
    """Release values that are no longer needed, now that the batches from number `before` on have run.

    They are released after the pass, not during it, because inputs are still read from the host when the pass is sent.
    """
    cdef uint32_t b
    for b in range(before, g.n_batches):
        release_arguments(g, &batches_of(g)[b])


cdef void undo(Graph* g, uint32_t before) noexcept nogil:
    """Undo the batches from number `before` on, and mark inputs as not sent."""
    cdef uint32_t i
    cdef uint8_t* state = state_of(g)
    for i in range(g.n_nodes):
        state[i] &= <uint8_t>~SENT
        if nodes_of(g)[i].batch != NO_BATCH and nodes_of(g)[i].batch >= before:
            state[i] &= <uint8_t>~COMPUTED
            nodes_of(g)[i].batch = NO_BATCH
            nodes_of(g)[i].val = NULL
    if g.n_batches > before:
        g.n_order = batches_of(g)[before].first
        g.n_batches = before
    drop_plan(g)


cdef int check_values(Graph* g, const DeviceGraph* d, uint32_t first) except -1:
    """Raise an error if a value of the batches from number `first` on is not finite."""
    cdef Finding finding
    cdef Batch* batch
    cdef Node* x
    cdef uint32_t b, i
    memset(&finding, 0, sizeof(Finding))
    for b in range(first, g.n_batches):
        batch = &batches_of(g)[b]
        fetch(g, 1 + d.gpu.number, batch.y, batch.bytes // sizeof(float))
        if not bad_values(g, batch, True, &finding):
            continue
        x = &nodes_of(g)[finding.node]
        for i in range(x.nargs):
            value_here(g, &nodes_of(g)[args_of(g, x)[i]])
        raise_anomaly(g, &finding)
    return 0


cdef Engine* hooks = engine(ENGINE_GPU)
hooks.forward = forward
hooks.backward = backward
hooks.fetch = fetch
hooks.close = close
