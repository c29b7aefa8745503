"""Gradients of parameters' expressions, and of expressions that do not depend on a parameter.

Backward adds to the gradients of parameters where they are stored, together with what other passes gave them, and
leaves out what no parameter needs.  So if more gradients are asked for, the pass runs again, over everything, and adds
to gradients of its own instead.  Other expressions get the same numbers as before.  This needs the values that the pass
had: a full backward, whose gradients may all be asked for at any time, runs it before the pass itself.
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
    """The gradients that a full backward from that node will give; None if the pass itself gives all of them."""
    made = stand_ins(&graph.g, target)
    return run_aside(graph, target, made) if made else None


cdef tuple run_aside(ComputationGraph graph, uint32_t target, dict made):
    """Run backward from a node for all expressions, without a trace in parameters or states.

    Args:
        made: what `stand_ins` has made for it.

    Returns:
        By number of a parameter's expression, storage and number there of its gradient; the states of all expressions
        that this pass has left.
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
    """Entries with gradients of zero for the expressions of parameters: their storage and number there."""
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
