"""Gradients of parameters' expressions, and of expressions that do not depend on a parameter.

Backward adds to the stored gradients of parameters, which also hold those of other passes, and leaves out expressions
that depend on no parameter.  So if such gradients are requested, the pass runs again over all expressions, and writes
parameters' gradients to separate memory.  The other expressions get the same gradients as before.  This needs the same
values as the first pass: a full backward, all of whose gradients may be requested at any time, runs it beforehand.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from dynet_cy.graph.computing cimport doubles_of, full_shape, gradient_of, parameter_here
from dynet_cy.graph.graph cimport ComputationGraph
from dynet_cy.graph.hooks cimport engine_of
from dynet_cy.graph.structs cimport LIVE, NEEDS_GRAD, SHARED, TRAINABLE, Graph, Node, nodes_of, state_of
from dynet_cy.memory.storage cimport Param, Storage


def given(ComputationGraph graph not None, uint32_t index):
    """The gradient of an expression, by its number, from the last backward of its graph.

    Raises:
        RuntimeError: values of parameters have changed since.
    """
    cdef Param* p
    cdef const uint8_t[:] states
    cdef Graph* g = &graph.g
    cdef uint32_t target
    if graph.given is None:
        if graph.values_changed():
            raise RuntimeError(
                "gradient: values of parameters have changed since backward, as by an update; ask for gradients of "
                "parameters' expressions, and of those that no parameter lies behind, before that, or call "
                "backward(full=True)")
        target = <uint32_t>g.backward_from
        g.backward_from = -1                    # if this fails, the gradients of the last backward are lost
        graph.given = run_aside(graph, target, stand_ins(g, target))
        g.backward_from = <int>target
    made, states = graph.given
    if index not in made:
        return gradient_of(&graph.g, index, &states[0])
    storage, number = made[index]
    p = (<Storage>storage).entries[<uint32_t>number]
    return doubles_of(parameter_here(p, True), full_shape(&nodes_of(&graph.g)[index].dim))


def keep_given(ComputationGraph graph not None, uint32_t target):
    """The gradients of a full backward from that node; None if the pass itself computes all of them."""
    made = stand_ins(&graph.g, target)
    return run_aside(graph, target, made) if made else None


cdef tuple run_aside(ComputationGraph graph, uint32_t target, dict made):
    """Run backward from a node for all expressions, leaving parameters and states unchanged.

    Args:
        made: the result of `stand_ins`.

    Returns:
        `made`, whose entries now hold the gradients of parameters' expressions; and the states of all expressions after
        this pass.
    """
    cdef Graph* g = &graph.g
    cdef uint32_t i
    cdef uint8_t marks = <uint8_t>(LIVE | NEEDS_GRAD | TRAINABLE)
    cdef uint8_t* before
    cdef Node* x = nodes_of(g)
    cdef Param* p
    cdef void** objects
    before = <uint8_t*>malloc(g.n_nodes)
    objects = <void**>malloc(g.n_nodes * sizeof(void*))
    try:
        if before == NULL or objects == NULL:
            raise MemoryError(f"gradient: notes of {g.n_nodes} nodes")
        memcpy(before, state_of(g), g.n_nodes)
        for i in range(target + 1):
            objects[i] = x[i].object
            if before[i] & SHARED:
                storage, number = made[i]
                p = (<Storage>storage).entries[<uint32_t>number]
                p.value = (<Param*>x[i].object).value
                p.device_value = (<Param*>x[i].object).device_value
                x[i].object = p
                state_of(g)[i] |= <uint8_t>TRAINABLE
            else:                                   # rows of tables: nothing is added to the table
                state_of(g)[i] &= <uint8_t>~TRAINABLE
        g.aside = 1
        try:
            engine_of(g).backward(g, target, True)
            states = (<char*>state_of(g))[:g.n_nodes]
        finally:
            g.aside = 0
            for i in range(target + 1):
                x[i].object = objects[i]
            for i in range(g.n_nodes):
                state_of(g)[i] = (state_of(g)[i] & <uint8_t>~marks) | (before[i] & marks)
    finally:
        free(before)
        free(objects)
    return made, states


cdef dict stand_ins(Graph* g, uint32_t target):
    """Entries with zero gradients for the expressions of parameters: by expression, a storage and a number in it."""
    cdef Storage storage
    cdef Node* x = nodes_of(g)
    cdef Param* p
    cdef uint32_t i
    storages, made = {}, {}
    for i in range(target + 1):
        if state_of(g)[i] & SHARED:
            p = <Param*>x[i].object
            if p.device not in storages:
                storages[p.device] = Storage(p.device)
            storage = storages[p.device]
            made[i] = storage, storage.add(&x[i].dim, 0, "the gradient of an expression").number
    return made
