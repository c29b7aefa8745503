"""Descriptions of nodes and shapes, for messages."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.origin cimport place_at
from dynet_cy.graph.structs cimport SHARED, Graph, Node, device_of, nodes_of, origin_of, state_of
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Op, op_at

from dynet_cy.devices import device_name
from dynet_cy.memory.storage import parameter_names


cdef str describe_dim(const Dim* d):
    text = "{" + ",".join([str(d.d[i]) for i in range(d.nd)]) + "}"
    return f"{text} x {d.bd}" if d.bd > 1 else text


cdef list argument_names(const Op* op, uint32_t n):
    names = op.args.decode().split()
    if names and names[-1].endswith("..."):
        stem = names.pop()[:-3]
        names += [f"{stem}[{i}]" for i in range(n - len(names))]
    return names


cdef str source_of_node(const Graph* g, uint32_t index):
    cdef const Node* x = &nodes_of(g)[index]
    if state_of(g)[index] & SHARED:
        return "parameter " + parameter_names.get((<Param*>x.object).id, "?")
    return op_at(x.op).name.decode()


cdef uint32_t made_in(const Graph* g, uint32_t index) noexcept nogil:
    return 0 if state_of(g)[index] & SHARED else origin_of(g, index)        # parameters have names


cdef str made_by(uint32_t origin):
    return f", made{place_at(origin)}" if origin else ""


cdef str made_at(const Graph* g, uint32_t index):
    return made_by(made_in(g, index))


cdef explain(const Op* op, str reason, const uint32_t* args, uint32_t n, Graph* g):
    """The reason, and every argument by name, with its shape, its source and, on a multi-device graph, its device."""
    names = argument_names(op, n)
    shapes, sources = [], []
    for i in range(n):
        shapes.append(describe_dim(&nodes_of(g)[args[i]].dim))
        sources.append(source_of_node(g, args[i]))
        if g.multi_device:
            sources[i] += " on " + device_name(device_of(g, args[i]))
        sources[i] += made_at(g, args[i])
    if n > 12:                                      # long lists: both ends are enough
        shown = list(range(6)) + list(range(n - 6, n))
    else:
        shown = list(range(n))
    name_width = max([len(names[i]) for i in shown], default=0)
    width = max([len(shapes[i]) for i in shown], default=0)
    lines = [f"{op.name.decode()}: {reason}"]
    lines += [f"    {names[i]:{name_width}}  {shapes[i]:{width}}  {sources[i]}" for i in shown]
    return "\n".join(lines)
