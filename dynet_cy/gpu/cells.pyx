"""LSTM cells on a device: all elementwise steps of a cell as one launch.

A cell is three ops: gates of a sum, the state, the output.  Automatic batching makes a batch of gates for each weight
matrix, such as one for each direction, then one of all their states and one of all their outputs: four launches or
more, and copies between them.  If these batches contain nothing else, the batch of outputs (its form is CELL) runs all
elementwise steps in one launch, with the addresses of the numbers of each node in a table, so that nothing is copied
first.  The batches of gates then compute their sums only, and the batch of states (IN_CELL) has no launch.  Backward,
the batch of outputs computes the gradients of state, gates, sums and state before; the batches of gates have only
their products left.  All values and gradients are stored as without cells, so the steps may also run one by one: while
numbers are checked, or if backward begins between the steps.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from dynet_cy.core.tensor cimport rows_of, size_of, total_of
from dynet_cy.execute.gradients cimport contribute
from dynet_cy.execute.walk cimport Form, Walk, allocate, clear_call, settle, settle_gradients
from dynet_cy.gpu.addresses cimport BatchAddress, gradient_there, is_live, stride_of, there
from dynet_cy.gpu.commands cimport (
    CELLS, Command, Pass, add_command, allocate_lines, backward_alone, device_forms, first_of, forward_alone,
    make_table, note_done, on_device, set_lines,
)
from dynet_cy.gpu.driver cimport OUTPUT, STATE, SUMS
from dynet_cy.gpu.registry cimport gpu_op_at, kernel_at, module_at
from dynet_cy.graph.structs cimport (
    CELL, EACH, IN_CELL, KEEPS_ASKED, LIVE, NEEDS_GRAD, NO_BATCH, Batch, Node, args_of, batches_of, nodes_of, order_of,
    state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.schedule.facts cimport PlanFacts, batch_of, count_readers, list_batches, open_facts
from dynet_cy.watch.instruments cimport checking


cdef extern from "dynet_cy/gpu_cells.h" nogil:
    # derived: structs of CellForward = dy_lstm_cell, CellBackward = dy_lstm_cell_back
    ctypedef struct CellForward "dy_lstm_cell":
        float* gates
        const float* bias
        const float* before
        float* c
        float* y

    ctypedef struct CellBackward "dy_lstm_cell_back":
        const float* gates
        const float* before
        const float* c
        const float* dy
        float* dc
        float* dgates
        float* dbefore
        uint8_t has_dc
        uint8_t has_dgates
        uint8_t acc
        uint8_t unused[5]
    # end of structs

cdef int STEPS = module_at(b"steps")        # kernels of cells and products
cdef int CU_CELLS = module_at(b"cells")
cdef int CELL_FORWARD = kernel_at(CU_CELLS, b"lstm_cell_forward")
cdef int CELL_BACKWARD = kernel_at(CU_CELLS, b"lstm_cell_backward")
cdef int FEW_FORWARD = kernel_at(CU_CELLS, b"few_lstm_cells_forward")
cdef int FEW_BACKWARD = kernel_at(CU_CELLS, b"few_lstm_cells_backward")


# ---- finding cells ---------------------------------------------------------------------

cdef struct Cells:
    PlanFacts facts
    uint32_t* readers               # by node, from `facts.lowest` on
    uint32_t* cell                  # by node: the batch of outputs that it was last counted for


# The nodes of a cell, and the state before it.
cdef struct CellNodes:
    uint32_t h
    uint32_t c
    uint32_t gates
    uint32_t before

cdef inline CellNodes cell_at(const Graph* g, const Batch* outputs, uint32_t j) noexcept nogil:
    """Those of output j of a batch."""
    cdef uint32_t h = order_of(g)[outputs.first + j]
    cdef const uint32_t* args = args_of(g, &nodes_of(g)[h])
    return CellNodes(h, args[0], args[1], args_of(g, &nodes_of(g)[args[0]])[0])


cdef inline uint8_t step_of(const Graph* g, const Batch* batch) noexcept nogil:
    return gpu_op_at(first_of(g, batch).op).step


cdef void find_cells(Graph* g, uint32_t first, uint32_t n) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef const Batch* batches = batches_of(g)
    cdef uint32_t b
    cdef Cells c
    cdef bint some = False
    for b in range(first + 1, first + n):
        some = some or step_of(g, &batches[b]) == OUTPUT
    if some and open_cells(&c, g, first, n):
        for b in range(first + 1, first + n):
            if step_of(g, &batches[b]) == OUTPUT:
                find_cell(&c, b)
    arena_rewind(&g.scratch, top)


cdef bint open_cells(Cells* c, Graph* g, uint32_t first, uint32_t n) noexcept nogil:
    """False: there is no memory."""
    cdef size_t bytes
    if not open_facts(&c.facts, g, first, n) or c.facts.batch == NULL and not list_batches(&c.facts):
        return False
    bytes = c.facts.span * sizeof(uint32_t)
    c.readers = count_readers(&c.facts)
    c.cell = <uint32_t*>arena_alloc(&g.scratch, bytes)
    if c.readers == NULL or c.cell == NULL:
        return False
    memset(c.cell, 0xFF, bytes)
    return True


cdef void find_cell(Cells* c, uint32_t number) noexcept nogil:
    """If the outputs of a batch, the states of another and some batches of gates belong together, mark these."""
    cdef Graph* g = c.facts.g
    cdef uint32_t of_states = batch_of(&c.facts, args_of(g, first_of(g, &batches_of(g)[number]))[0])
    if of_states != NO_BATCH and is_cell(c, number, of_states) and bring_behind(&c.facts, of_states, number):
        mark_cell(&c.facts, of_states + 1)


cdef bint is_cell(Cells* of, uint32_t number, uint32_t of_states) noexcept nogil:
    """Whether the outputs of a batch have their states in the other, and gates that nothing else uses."""
    cdef Graph* g = of.facts.g
    cdef Batch* batches = batches_of(g)
    cdef Batch* outputs = &batches[number]
    cdef Batch* states = &batches[of_states]
    cdef const Node* h
    cdef const Node* c
    cdef const Node* gates
    cdef uint32_t j, of_h, of_c, of_gates, k
    if step_of(g, states) != STATE or states.count != outputs.count:
        return False
    for j in range(outputs.count):
        h = &nodes_of(g)[order_of(g)[outputs.first + j]]
        of_h = args_of(g, h)[0]
        if batch_of(&of.facts, of_h) != of_states or of.cell[of_h - of.facts.lowest] == number:
            return False
        of.cell[of_h - of.facts.lowest] = number
        c = &nodes_of(g)[of_h]
        of_gates = args_of(g, c)[1]
        k = batch_of(&of.facts, of_gates)
        # Others that use the gates could do so before their activations are computed.
        if args_of(g, h)[1] != of_gates or k == NO_BATCH or of.readers[of_gates - of.facts.lowest] != 2:
            return False
        gates = &nodes_of(g)[of_gates]
        of_c = args_of(g, c)[0]
        if (gpu_op_at(gates.op).step != SUMS or batches[k].form == EACH or h.dim.bd != c.dim.bd
                or gates.dim.bd != c.dim.bd or batch_of(&of.facts, of_c) == of_states):
            return False
    return True


cdef bint bring_behind(PlanFacts* facts, uint32_t of_states, uint32_t number) noexcept nogil:
    """Move a batch of outputs right behind that of its states; False if what is between them stands in the way."""
    cdef Graph* g = facts.g
    cdef Batch* batches = batches_of(g)
    cdef Batch outputs = batches[number]
    cdef uint32_t* order = order_of(g)
    cdef uint32_t b, j, to = batches[of_states].first + batches[of_states].count
    cdef uint32_t* moved
    if number == of_states + 1:
        return True
    for b in range(of_states + 1, number):
        if batches[b].cell or batches[b].first + batches[b].count != batches[b + 1].first:
            return False
    moved = <uint32_t*>arena_alloc(&g.scratch, outputs.count * sizeof(uint32_t))
    if moved == NULL or batches[of_states + 1].first != to:
        return False
    memcpy(moved, order + outputs.first, outputs.count * sizeof(uint32_t))
    memmove(order + to + outputs.count, order + to, (outputs.first - to) * sizeof(uint32_t))
    memcpy(order + to, moved, outputs.count * sizeof(uint32_t))
    b = number
    while b > of_states + 1:
        batches[b] = batches[b - 1]
        batches[b].first += outputs.count
        b -= 1
    outputs.first = to
    batches[of_states + 1] = outputs
    for b in range(of_states + 1, number + 1):
        for j in range(batches[b].count):
            facts.batch[order[batches[b].first + j] - facts.lowest] = b
    return True


cdef void mark_cell(const PlanFacts* facts, uint32_t number) noexcept nogil:
    """Mark a batch of outputs, that of its states, and those of its gates, unless some of these are of other cells."""
    cdef Graph* g = facts.g
    cdef Batch* batches = batches_of(g)
    cdef Batch* outputs = &batches[number]
    cdef uint32_t j, k, total = 0
    for j in range(outputs.count):
        k = batch_of(facts, cell_at(g, outputs, j).gates)
        if batches[k].cell != number + 1:
            batches[k].cell = number + 1
            total += batches[k].count
    if total == outputs.count:
        batches[number - 1].form = IN_CELL
        batches[number - 1].cell = number + 1
        outputs.form = CELL
        outputs.cell = number + 1
        return
    for k in range(facts.begin, number):        # some of the gates belong to others
        if batches[k].cell == number + 1:
            batches[k].cell = 0


# ---- launches ----------------------------------------------------------------------------

cdef int add_cells(Walk* w, int kernel, int few, const Batch* batch, void* table, uint32_t n,
                   size_t line) noexcept nogil:
    """Append the launch of a kernel over a table with n lines, of so many bytes, or of the one for few lines."""
    cdef Command* c = add_command(<Pass*>w, CELLS)
    if c == NULL:
        return -1
    set_lines(<Pass*>w, c, table, n * line)
    c.i = <uint32_t>(few if c.cols else kernel)
    c.rows = n
    c.n = rows_of(&first_of(w.g, batch).dim)
    c.table = table
    c.back = kernel == CELL_BACKWARD
    (<Pass*>w).modules |= <uint64_t>1 << STEPS
    return 0


cdef uint32_t elements_of(const Graph* g, const Batch* batch) noexcept nogil:
    cdef uint32_t j, n = 0
    for j in range(batch.count):
        n += nodes_of(g)[order_of(g)[batch.first + j]].dim.bd
    return n


# ---- the batch of outputs, forward ----------------------------------------------------------

# The batches of gates of a cell, and where their lines begin in the table.  The lines have the order of the gates, so
# that the columns of their products belong to lines that follow each other (gpu/passes).
cdef struct LineOrder:
    uint32_t[2] batch
    uint32_t[2] first


cdef bint order_lines(const Graph* g, const Batch* outputs, LineOrder* order) noexcept nogil:
    """False if there are more than two batches of gates, whose products would not join the launch, or no numbers."""
    cdef const Node* nodes = nodes_of(g)
    cdef uint32_t j, n = 0, number
    order.batch[0] = order.batch[1] = NO_BATCH
    order.first[0] = 0
    if size_of(&first_of(g, outputs).dim) == 0:
        return False
    for j in range(outputs.count):
        number = nodes[cell_at(g, outputs, j).gates].batch
        if number == order.batch[0] or number == order.batch[1]:
            continue
        if n == 2:
            return False
        order.batch[n] = number
        n += 1
        if n == 2:
            if order.batch[1] < order.batch[0]:
                order.batch[1] = order.batch[0]
                order.batch[0] = number
            order.first[1] = elements_of(g, &batches_of(g)[order.batch[0]])
    return True


cdef inline uint32_t line_of(const Graph* g, const LineOrder* order, const Node* gates) noexcept nogil:
    cdef const Batch* sums = &batches_of(g)[gates.batch]
    return order.first[gates.batch == order.batch[1]] + <uint32_t>((gates.val - sums.y) // size_of(&gates.dim))


cdef int cell_forward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef Pass* s = <Pass*>w
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* h
    cdef const Node* gates
    cdef const Node* bias
    cdef CellNodes cell
    cdef BatchAddress[3] place
    cdef uint32_t j, e, count = elements_of(g, batch)
    cdef CellForward* x
    cdef CellForward* table
    cdef CellForward one
    cdef LineOrder order
    cdef bint ordered
    cdef float* y
    cdef size_t size
    if w.again:
        return forward_alone(w, batch)
    clear_call(batch)
    table = x = <CellForward*>allocate_lines(s, count * sizeof(CellForward))
    if table == NULL or settle(w):
        return -1
    for e in range(3):
        place[e].batch = NO_BATCH
    ordered = order_lines(g, batch, &order)
    y = on_device(s, batch.y)
    s.values_needed = max(s.values_needed, g.values.top)
    for j in range(batch.count):
        cell = cell_at(g, batch, j)
        h = &nodes[cell.h]
        gates = &nodes[cell.gates]
        bias = &nodes[args_of(g, gates)[0]]
        size = size_of(&h.dim)
        one.c = there(s, &place[0], &nodes[cell.c])
        one.gates = there(s, &place[1], gates)
        one.before = there(s, &place[2], &nodes[cell.before])
        # Batches that were too long for one call have computed their activations.
        one.bias = on_device_of(s, bias) if batches_of(g)[gates.batch].form != EACH else NULL
        if ordered:
            x = table + line_of(g, &order, gates)
        for _ in range(h.dim.bd):
            x[0] = one
            x.y = y
            x += 1
            y += size
            one.c += size
            one.gates += 4 * size
            one.before += stride_of(&nodes[cell.before])
            if one.bias != NULL:
                one.bias += stride_of(bias)
    return add_cells(w, CELL_FORWARD, FEW_FORWARD, batch, table, count, sizeof(CellForward))


cdef inline float* on_device_of(Pass* s, const Node* x) noexcept nogil:
    return (<Param*>x.object).device_value if x.val == NULL else on_device(s, x.val)


# ---- the batch of outputs, backward ---------------------------------------------------------

cdef int cell_backward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef Pass* s = <Pass*>w
    cdef const Batch* sums
    cdef CellNodes cell
    cdef uint32_t number = batch.cell - 1, j, n_live = 0
    cdef bint alone = checking != 0
    for j in range(batch.count):
        cell = cell_at(g, batch, j)
        sums = &batches_of(g)[nodes_of(g)[cell.gates].batch]
        n_live += is_live(g, cell.h) or is_live(g, cell.c)
        # They are not side by side, or the program may ask for the gradients of the gates.
        alone = alone or sums.form == EACH or sums.keeps & KEEPS_ASKED
    if alone:
        return backward_alone(w, batch)
    w.n_live = n_live
    w.n_live_in_batch += n_live
    if n_live == 0:
        return 0
    if make_table(s, <void**>&s.cell_of, g.n_nodes * sizeof(uint32_t)) or note_done(s, number - 1, 2):
        return -1
    if settle(w) or settle_gradients(w, number) or settle_gradients(w, number - 1):
        return -1
    for j in range(batch.count):
        cell = cell_at(g, batch, j)
        if (settle_gradients(w, nodes_of(g)[cell.gates].batch)
                or settle_gradients(w, nodes_of(g)[cell.before].batch)):
            return -1
    return list_cells_back(w, batch)


cdef int pass_apart(Walk* w, uint32_t node, const Node* c, CellBackward* x) noexcept nogil:
    """Let a cell write the gradient of the state before to working memory, to be added by moves: several elements
    share the state, or it is a parameter."""
    cdef const Node* before = &nodes_of(w.g)[node]
    cdef size_t size = size_of(&c.dim), n = size * c.dim.bd
    cdef float* at = <float*>allocate(w, n * sizeof(float))
    cdef uint32_t e
    if at == NULL:
        return -1
    w.listing.held = True
    x.dbefore = on_device(<Pass*>w, at)
    x.acc = False
    if before.dim.bd == c.dim.bd:
        return contribute(w, node, x.dbefore, n, 1)
    for e in range(c.dim.bd):
        if contribute(w, node, x.dbefore + e * size, size, 1):
            return -1
    return 0


cdef int place_before(Walk* w, const Batch* batch, uint32_t node, const Node* c, BatchAddress* place,
                      CellBackward* x) noexcept nogil:
    """Say where a cell writes the gradient of the state before, if that needs one."""
    cdef Pass* s = <Pass*>w
    cdef const Node* before = &nodes_of(w.g)[node]
    cdef uint8_t* state = &state_of(w.g)[node]
    cdef bint first = s.cell_of[node] != batch.cell     # of the elements of this cell that have this state
    s.cell_of[node] = batch.cell
    x.dbefore = NULL
    x.acc = False
    if not state[0] & NEEDS_GRAD:
        return 0
    if before.val == NULL or before.dim.bd != c.dim.bd or not first:
        return pass_apart(w, node, c, x)
    x.dbefore = gradient_there(s, place, before)
    x.acc = (state[0] & LIVE) != 0
    state[0] |= LIVE
    return 0 if x.dbefore != NULL else -1


cdef inline void mark_live(const Graph* g, uint32_t node) noexcept nogil:
    if state_of(g)[node] & NEEDS_GRAD:
        state_of(g)[node] |= LIVE


cdef CellBackward* write_lines(CellBackward* x, CellBackward* one, const Node* h, size_t before) noexcept nogil:
    """Write a line for each batch element of a cell; returns the place after them.  `before`: the step of its state."""
    cdef size_t size = size_of(&h.dim)
    for _ in range(h.dim.bd):
        x[0] = one[0]
        x += 1
        one.c += size
        one.gates += 4 * size
        one.before += before
        if one.dy != NULL:
            one.dy += size
        one.dc += size
        one.dgates += 4 * size
        if one.dbefore != NULL:
            one.dbefore += size
    return x


cdef int list_cells_back(Walk* w, const Batch* batch) noexcept nogil:
    """List the backward of a cell, and mark the gradients that it computes."""
    cdef Graph* g = w.g
    cdef Pass* s = <Pass*>w
    cdef const Node* nodes = nodes_of(g)
    cdef CellNodes cell
    cdef const Node* h
    cdef const Node* c
    cdef const Node* gates
    cdef const Node* before
    cdef BatchAddress[3] place
    cdef BatchAddress[3] grad
    cdef uint32_t j, e, count = elements_of(g, batch)
    cdef CellBackward* x
    cdef CellBackward* table
    cdef CellBackward one
    cdef float* dy
    table = x = <CellBackward*>allocate_lines(s, count * sizeof(CellBackward))
    if table == NULL:
        return -1
    for e in range(3):
        place[e].batch = grad[e].batch = NO_BATCH
    memset(&one, 0, sizeof(one))
    dy = on_device(s, batch.dy) if batch.dy != NULL else NULL       # NULL: none of them is live
    for j in range(batch.count):
        cell = cell_at(g, batch, j)
        h, c, gates, before = &nodes[cell.h], &nodes[cell.c], &nodes[cell.gates], &nodes[cell.before]
        one.c = there(s, &place[0], c)
        one.gates = there(s, &place[1], gates)
        one.before = there(s, &place[2], before)
        one.dy = dy if is_live(g, cell.h) else NULL
        one.dc = gradient_there(s, &grad[0], c)
        one.dgates = gradient_there(s, &grad[1], gates)
        if one.dc == NULL or one.dgates == NULL:
            return -1
        one.has_dc = is_live(g, cell.c)
        one.has_dgates = (state_of(g)[cell.gates] & LIVE) != 0
        if place_before(w, batch, cell.before, c, &grad[2], &one):
            return -1
        x = write_lines(x, &one, h, stride_of(before))
        dy += total_of(&h.dim)
        mark_live(g, cell.c)
        mark_live(g, cell.gates)
    return add_cells(w, CELL_BACKWARD, FEW_BACKWARD, batch, table, count, sizeof(CellBackward))


cdef Form* forms = device_forms()
forms[CELL].forward = cell_forward
forms[CELL].backward = cell_backward
