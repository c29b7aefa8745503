"""Steps of Tree-LSTMs: the nodes of the graph for a node of a tree."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.making cimport apply, apply2
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport DY_BINARY_mul
from dynet_cy.ops.arithmetic cimport BINARY
from dynet_cy.ops.gated cimport GATED, TREE_C, TREE_H, set_gates, set_logistic, set_tree
from dynet_cy.ops.linalg cimport AFFINE

from dynet_cy.ops.arithmetic import esum
from dynet_cy.ops.inputs import zeros


cdef list checked(object builder, object x, object children):
    """The children, after checking them; without x, there must be one."""
    cdef list states = list(children)
    cdef bint is_any = x is not None
    cdef Py_ssize_t i
    kind = builder._state
    for i in range(len(states)):
        state = states[i]
        if state is None:
            continue
        if not isinstance(state, kind):
            raise TypeError(f"{type(builder).__name__}.add_input: argument children: {i} is a {type(state).__name__}, "
                            f"no {kind.__name__}")
        is_any = True
    if not is_any:
        raise ValueError(f"{type(builder).__name__}.add_input: a node needs an input or a child")
    return states


cdef object finished(object builder, object gates, object c):
    return tuple.__new__(builder._state, (apply2(TREE_H, c, gates), c))


def nary_step(builder, x, children):
    """The state of a node of a tree, by an `NaryTreeLSTMBuilder`."""
    cdef list states = checked(builder, x, children)
    cdef uint32_t n = builder.N
    cdef Extra extra
    cdef list terms, cells, u = builder._u
    cdef Py_ssize_t i
    if len(states) > n:
        raise ValueError(
            f"{type(builder).__name__}.add_input: {len(states)} children are given, {n} are possible")
    while states and states[-1] is None:
        states.pop()
    terms = [builder._b]
    if x is not None:
        terms += [builder._w, x]
    cells = [None]
    for i in range(len(states)):
        state = states[i]
        if state is None:
            cells.append(zeros((builder.hidden_dim,)))
        else:
            h, c = <tuple>state
            terms += [u[i], h]
            cells.append(c)
    set_gates(&extra, 3 + n, 2, 1)
    gates = cells[0] = apply(GATED, terms, &extra)
    set_tree(&extra, n)
    return finished(builder, gates, apply(TREE_C, cells, &extra))


def child_sum_step(builder, x, children):
    """The state of a node of a tree, by a `ChildSumTreeLSTMBuilder`."""
    cdef list states = [state for state in checked(builder, x, children) if state is not None]
    cdef Extra extra
    cdef list terms = [builder._b], forget = [builder._b_f], cells
    if x is not None:
        terms += [builder._w, x]
        if states:
            forget = [apply(AFFINE, [builder._b_f, builder._w_f, x], NULL)]
    if states:
        terms += [builder._u, esum([state[0] for state in states])]
    set_gates(&extra, 3, 2, 1)
    gates = apply(GATED, terms, &extra)
    set_tree(&extra, 0)
    cells = [apply(TREE_C, [gates], &extra)]
    set_logistic(&extra)
    u_f = builder._u_f
    for h, c in states:
        cells.append(apply2(BINARY[<int>DY_BINARY_mul], apply(GATED, forget + [u_f, h], &extra), c))
    return finished(builder, gates, esum(cells) if states else cells[0])
