# Used from Cython only.
"""Passes over a graph on a device: sends the listed tables and runs the listed commands."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.tensor cimport total_of
from dynet_cy.core.threads cimport Number, now
from dynet_cy.execute.walk cimport Collected, raise_failure
from dynet_cy.gpu.commands cimport (
    BACKWARD, BEGIN, CELLS, FILL, FORWARD, MOVES, PRODUCT, SUMS_ONLY, Command, Move, end_commands,
)
from dynet_cy.gpu.driver cimport (
    MAX_KERNELS, MOST_GPUS, Address, GpuOp, beginning_of, enter, failed, fetch_bytes, fill, gemm, kernel_names, launch,
    launch_each, leave, raise_error, value_at, wait,
)
from dynet_cy.gpu.graphs cimport (
    ARENAS, SCRATCH, TABLES, VALUES, begin_listing, device_ptr, extend_mirrors, run_listed,
)
from dynet_cy.gpu.memory cimport (
    Mirror, Range, address_in, continues_part, note_shortage, note_uses, out_of_device_memory, poison_mirror,
    send_ranges,
)
from dynet_cy.gpu.registry cimport Axes, contract, gpu_op_at, kernel_at, load, loaded, module_at, strided
from dynet_cy.graph.structs cimport (
    LIVE, NEEDS_GRAD, NO_BATCH, TRAINABLE, Batch, Graph, Node, args_of, batches_of, gradient_of_node, nodes_of,
    order_of, state_of,
)
from dynet_cy.memory.arena cimport ALIGN, Arena, Segment, array_push, segment_at
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.custom cimport is_custom
from dynet_cy.ops.registry cimport Op, op_at
from dynet_cy.watch.instruments cimport (
    WEIGHT_GRADIENTS, bad_collected, bad_gradients, bad_values, checking, note, note_call, profiling, raise_anomaly,
)
from dynet_cy.watch.usage cimport raise_with_largest

cdef enum:
    NO_MEMBER = 0xFFFFFFFF

cdef int BASE = module_at(b"base")
cdef int MOVE = kernel_at(BASE, b"move_floats")
cdef int MOVE_FEW = kernel_at(BASE, b"move_few")


cdef int raise_pass_failure(Pass* s, str what) except -1:
    """Raise the error that stopped the walk that lists a pass."""
    cdef const Op* op
    if s.missing:
        op = op_at(s.missing - 1)
        advice = ("give custom_op its kernels by `cuda`" if is_custom(op) else "docs/gpu.md lists what is not")
        raise NotImplementedError(
            f"{op.name.decode()}: {'its gradient' if s.missing_gradient else 'it'} is not implemented on "
            f"GPU:{s.d.gpu.number} yet; {advice}, and to_device(x, 'CPU') lets it run on the CPU")
    raise_failure(s.walk.g, what, &s.walk.failure)


cdef int load_moves(Gpu* gpu) except -1:
    if not loaded(gpu)[0] >> BASE & 1:
        load(gpu, <uint64_t>1 << BASE)
    return 0


cdef int run_pass(Pass* s, str what) except -1:
    """Run a listed pass: load the kernels, allocate device memory, upload tables and inputs, run the commands."""
    cdef Gpu* gpu = s.d.gpu
    cdef int error = 0, failure, k
    cdef size_t needed = 0
    if end_commands(s):
        raise_pass_failure(s, what)
    s.modules |= <uint64_t>1 << BASE
    if s.modules & ~loaded(gpu)[0]:
        if s.modules >> GROUPS & 1:
            note_kernels()
        load(gpu, s.modules)
    with nogil:
        for k in range(ARENAS):
            if k != SCRATCH:                    # which is rewound: the walk has noted it
                note_uses(&s.walk.g.arenas[k], &s.d.mirrors[k])
        if not enter(gpu):
            error = extend_all(s, &needed)
            if not error and not upload(s):
                run_commands(s)
        gpu.items = NULL
        failure = leave(gpu)
    if error:
        note_shortage(gpu)
        try:
            out_of_device_memory(gpu, error, needed, what)
        except MemoryError as short:
            raise_with_largest(s.walk.g, short)
    if failure:
        raise_error(gpu, failure)
    if s.walk.failure.finding.kind:
        raise_anomaly(s.walk.g, &s.walk.failure.finding)
    return 0


cdef int extend_all(Pass* s, size_t* needed) noexcept nogil:
    cdef int k = 0, error = extend_mirrors(s.d, &k)
    needed[0] = s.values_needed if k == VALUES else s.scratch_needed if k == SCRATCH else s.walk.g.arenas[k].top
    # For tests: what the pass takes, and what it must not use, is NaN, as in arenas on the host.
    if not error and s.walk.g.values.poison:
        error = poison_mirror(&s.walk.g.values, &s.d.mirrors[VALUES], s.values_from)
        if not error:
            error = poison_mirror(&s.walk.g.scratch, &s.d.mirrors[SCRATCH], s.scratch_from)
    return error


cdef int by_place(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<const Range*>a).device_ptr
    cdef uint64_t y = (<const Range*>b).device_ptr
    return (x > y) - (x < y)


cdef size_t join_ranges(Range* r, size_t n) noexcept nogil:
    """Join ranges of inputs if only alignment gaps are between them."""
    cdef size_t i, k = 0
    cdef uint64_t gap
    qsort(r, n, sizeof(Range), by_place)
    for i in range(1, n):
        gap = r[i].device_ptr - r[k].device_ptr - r[k].n
        if gap < <uint64_t>ALIGN:
            r[k].n += gap
            if <const char*>r[k].host_ptr + r[k].n == <const char*>r[i].host_ptr:
                r[k].n += r[i].n
                continue                        # otherwise two segments of an arena meet there
        k += 1
        r[k] = r[i]
    return k + 1 if n else 0


cdef int upload(Pass* s) noexcept nogil:
    """Send inputs and tables, in one buffer."""
    cdef Arena* tables = &s.walk.g.tables
    cdef Mirror* mirror = &s.d.mirrors[TABLES]
    cdef Range* r = <Range*>s.d.ranges.base
    cdef const Segment* part
    cdef size_t begin = s.tables_from, end, copied
    s.d.ranges.top = join_ranges(r, s.d.ranges.top // sizeof(Range)) * sizeof(Range)
    while begin < tables.top:                   # from segment to segment
        part = segment_at(tables, begin)
        end = copied = tables.top
        if part < tables.segments + tables.now:
            end = copied = part[1].begin
            if continues_part(tables, mirror, part):  # copying the unused end too joins it with the next segment
                copied = part.begin + part.bytes
        r = <Range*>array_push(&s.d.ranges, sizeof(Range))
        if r == NULL:
            return failed(s.d.gpu, 2, -1)
        r.host_ptr = part.p + (begin - part.begin)
        r.device_ptr = address_in(tables, mirror, r.host_ptr)
        r.n = copied - begin
        begin = end
    return send_ranges(s.d.gpu, <Range*>s.d.ranges.base, s.d.ranges.top // sizeof(Range))


cdef int run_commands(Pass* s) noexcept nogil:
    cdef Gpu* gpu = s.d.gpu
    cdef Command* c = s.first
    cdef GpuOp* gpu_op
    cdef uint64_t begun
    # While commands are timed, each one is waited for.
    cdef bint timed = profiling != 0
    # While numbers are checked, each batch is waited for.
    cdef bint checked = checking != 0
    cdef bint listed = not timed and not checked
    cdef uint32_t section = 0, member = 0
    if listed:
        begin_listing(gpu)
        note_moves(gpu, &sections[gpu.number], NULL, 0)
    if timed:
        wait(gpu)
    while c != NULL and not gpu.error:
        begun = now() if timed else 0
        gpu_op = gpu_op_at(c.op)
        gpu.items = c.items
        gpu.op = c.op
        if listed and c.section != section:
            if section:
                end_section(gpu, &sections[gpu.number])
            if c.section:
                begin_section(gpu, &sections[gpu.number])
            section = c.section
            member = NO_MEMBER
        if section and c.member != member:
            begin_member(gpu, &sections[gpu.number])
            member = c.member
        if c.kind == MOVES:
            move(gpu, c)
        elif c.kind == FILL:
            fill(gpu, c.n, c.x, c.p)
        elif c.kind == PRODUCT:
            multiply_factors(gpu, c)
        elif c.kind == FORWARD:
            gpu_op.forward(gpu, &c.call)
        elif c.kind == SUMS_ONLY:
            gpu_op.sums(gpu, &c.call)
        elif c.kind == CELLS:
            launch_cells(gpu, c)
        elif c.kind == BEGIN:
            gpu_op.begin_backward(gpu, &c.call)
        else:
            gpu_op.backward(gpu, &c.call, c.i)
        if timed:
            wait(gpu)
            if c.kind == PRODUCT:
                note(WEIGHT_GRADIENTS, True, 1, begun)
            elif c.kind == FORWARD or c.kind == SUMS_ONLY or c.kind == BACKWARD:
                note_call(s.walk.g, c.first, c.members, c.kind == BACKWARD, c.nodes, begun)
        if checked and c.batch != NO_BATCH and (c.next == NULL or c.next.batch != c.batch) and look(s, c.batch):
            return gpu.error
        c = c.next
    if section:
        end_section(gpu, &sections[gpu.number])
    if checked:
        look_at_collected(s)
    return run_listed(gpu, &s.d.replays) if listed else gpu.error


# ---- checks: the numbers are fetched, then checked as on the CPU -----------------------

cdef int bring(Pass* s, const float* source, const float* host_ptr, size_t n) noexcept nogil:
    """Start fetching n numbers from the device."""
    if n == 0 or s.d.gpu.error:
        return s.d.gpu.error
    return fetch_bytes(s.d.gpu, <void*>host_ptr, <Address><uintptr_t>source, n * sizeof(float))


cdef int bring_node(Pass* s, uint32_t number, bint gradient) noexcept nogil:
    """Start fetching the value or the gradient of a node."""
    cdef Node* x = &nodes_of(s.walk.g)[number]
    cdef Param* p
    cdef float* v = x.val
    if v == NULL:
        p = <Param*>x.object
        if not p.device:
            return 0
        return bring(s, p.device_grad if gradient else p.device_value, p.grad if gradient else p.value, p.size)
    if gradient:
        v = gradient_of_node(s.walk.g, x)
    elif x.batch == NO_BATCH:                   # an input
        return 0
    return bring(s, device_ptr(s.walk.g, s.d, v), v, total_of(&x.dim))


cdef bint look(Pass* s, uint32_t number) noexcept nogil:
    """Check the numbers that a batch has just computed; True if there is something to report."""
    cdef Graph* g = s.walk.g
    cdef const Batch* batch = &batches_of(g)[number]
    cdef Node* x
    cdef uint8_t* state = state_of(g)
    cdef bint forward = not s.walk.going_back
    cdef uint32_t i, j, arg
    if forward:
        bring(s, device_ptr(g, s.d, batch.y), batch.y, batch.bytes // sizeof(float))
    else:
        for j in range(batch.count):
            x = &nodes_of(g)[order_of(g)[batch.first + j]]
            for i in range(x.nargs):
                arg = args_of(g, x)[i]
                if state[arg] & NEEDS_GRAD and (nodes_of(g)[arg].val != NULL or state[arg] & TRAINABLE):
                    bring_node(s, arg, True)
    wait(s.d.gpu)
    if s.d.gpu.error:
        return True
    if not (bad_values(g, batch, True, &s.walk.failure.finding) if forward
            else bad_gradients(g, batch, &s.walk.failure.finding)):
        return False
    bring_all(s, batch)
    if not forward:
        return True
    # Infinities that come from an input are not reported.  Check again, now that the arguments have been fetched.
    s.walk.failure.finding.kind = 0
    return bad_values(g, batch, g.check_validity, &s.walk.failure.finding)


cdef void bring_all(Pass* s, const Batch* batch) noexcept nogil:
    """Fetch what the error message describes: the arguments, values and gradients of the nodes of a batch."""
    cdef Graph* g = s.walk.g
    cdef Node* x
    cdef uint32_t i, j, number
    for j in range(batch.count):
        number = order_of(g)[batch.first + j]
        x = &nodes_of(g)[number]
        for i in range(x.nargs):
            bring_node(s, args_of(g, x)[i], False)
        bring_node(s, number, False)
        if state_of(g)[number] & LIVE:
            bring_node(s, number, True)
    wait(s.d.gpu)


cdef void look_at_collected(Pass* s) noexcept nogil:
    """Check the collected gradients of weights, which the pass has multiplied at the end."""
    cdef const Collected* x = s.walk.collecting.first
    cdef Graph* g = s.walk.g
    cdef uint32_t i
    while x != NULL and not s.d.gpu.error:
        bring(s, x.p.device_grad, x.p.grad, x.p.size)
        wait(s.d.gpu)
        if not s.d.gpu.error and bad_collected(g, x.p, &s.walk.failure.finding):
            for i in range(g.n_batches):
                bring_all(s, &batches_of(g)[i])
            bad_collected(g, x.p, &s.walk.failure.finding)       # now with the values of the nodes that use it
            return
        x = x.next


cdef int multiply_factors(Gpu* gpu, const Command* c) noexcept nogil:
    """Add the product of the collected factors of a parameter, or the sum of the columns of the left one."""
    cdef Axes kept = strided(c.rows, 1), reduced = strided(c.n, c.rows)
    if c.right != NULL:
        return gemm(gpu, 0, 1, c.rows, c.cols, c.n, 1, c.left, c.rows, c.right, c.cols, 1, c.p, c.rows)
    return contract(gpu, &kept, &reduced, 1, c.left, c.p, 1)


# So many numbers of a move, a block should move at most: 32 for each thread.
cdef enum:
    LONG_MOVE = 1 << 13


cdef int move(Gpu* gpu, const Command* c) noexcept nogil:
    """Run a group of moves: the blocks of one row of the grid share a move, different rows run different moves."""
    cdef size_t most = 16 * gpu.multiprocessors, wide = max(most // c.count, <size_t>1)
    cdef size_t longest = min((c.n + LONG_MOVE - 1) // LONG_MOVE, <size_t>64)
    cdef unsigned rows = min(c.count, <uint32_t>65535)
    cdef bint recorded = gpu.records != NULL
    if wide < longest:                          # each row of blocks runs several moves, most of which are short
        wide = longest
        rows = <unsigned>min(<size_t>rows, max(2 * most // wide, <size_t>1))
    wide = min((c.n + 1023) // 1024, wide)
    if recorded and join_moves(gpu, &sections[gpu.number], <const Move*>c.table, c.count):
        return gpu.error
    if c.cols:
        launch(gpu, MOVE_FEW, <unsigned>wide, rows, 256, 0, c.count, beginning_of(c.p, c.cols))
    else:
        launch(gpu, MOVE, <unsigned>wide, rows, 256, 0, c.p, c.count)
    if recorded and not gpu.error:
        note_moves(gpu, &sections[gpu.number], <const Move*>c.table, c.count)
    return gpu.error


# ---- launches of several calls, joined while they are recorded --------------------------------
#
# A section is a sequence of calls whose members do not depend on each other (include/dynet_cy/launch_sections.h).  When
# it ends, launches of the same kernel become one launch of its group kernel, and small products one launch.

cdef extern from "dynet_cy/launch_sections.h" nogil:
    """
    static const char *const dy_grouped[] = {
    #define GROUPED(name) #name,
    #include "dynet_cy/grouped.def"
        NULL
    };
    """
    const char** dy_grouped
    # derived: structs of Section
    ctypedef struct Section "dy_section":
        const uint16_t* grouped
        int multiply
        size_t begin "from"
        size_t last
        uint32_t count
        size_t n
        size_t capacity
        size_t* at
        char* records
        size_t bytes
        const Move* moves
        size_t n_moves
        size_t moves_at
    # end of structs
    # derived: functions of begin_section, begin_member, end_section, bint join_moves, note_moves
    void begin_section "dy_begin_section"(Gpu* gpu, Section* s)
    void begin_member "dy_begin_member"(Gpu* gpu, Section* s)
    void end_section "dy_end_section"(Gpu* gpu, Section* s)
    bint join_moves "dy_join_moves"(Gpu* gpu, const Section* s, const Move* moves, size_t count)
    void note_moves "dy_note_moves"(const Gpu* gpu, Section* s, const Move* moves, size_t count)
    # end of functions


cdef int GROUPS = module_at(b"groups")
cdef uint16_t[2048] grouped                    # by number of a kernel: that of its group kernel, or 0
memset(grouped, 0, sizeof(grouped))
cdef Section[MOST_GPUS] sections                # of each device, the one that is recorded, and its memory
memset(sections, 0, sizeof(sections))


cdef int MULTIPLY = kernel_at(GROUPS, b"multiply_group")
_group_kernels = {}                             # numbers of group kernels, by the names of the kernels
cdef int i = 0
while dy_grouped[i] != NULL:
    _group_kernels[<bytes>dy_grouped[i]] = kernel_at(GROUPS, b"grouped_" + <bytes>dy_grouped[i])
    i += 1
for i in range(MOST_GPUS):
    sections[i].grouped = grouped
    sections[i].multiply = MULTIPLY


cdef int note_kernels() except -1:
    """Find the kernels that have a group kernel, before these are loaded: by then all kernels are registered."""
    cdef int k
    for k in range(MAX_KERNELS):
        if kernel_names[k] != NULL:
            grouped[k] = _group_kernels.get(<bytes>kernel_names[k], 0)
    return 0


# ---- LSTM cells --------------------------------------------------------------------------------
#
# They are launched together with the product that was recorded right before them if that computes the sums of their
# gates, or the gradients of their outputs: a step of an LSTM is then one launch in each direction.  Most products of
# steps have few columns.  Then a launch takes longer than what it computes, and the kernels of cuda/steps.cu need not
# be as fast as cuBLAS.  Without them, an update of the tagger has 282 products besides its launches instead of 52,
# sequence to sequence 505 instead of 326, and the kernels take 5 and 14 % longer on an H100.

cdef extern from "dynet_cy/cell_steps.h" nogil:
    # derived: structs of Products = dy_cell_products, Table = dy_cell_table
    ctypedef struct Products "dy_cell_products":
        const float* a
        const float* b
        int64_t stride_a
        int64_t stride_b
        uint32_t lda
        uint32_t ldb
        uint32_t k
        uint32_t n
        uint32_t count
        uint32_t acc
        uint32_t first[2]

    ctypedef struct Table "dy_cell_table":
        const void* lines
        size_t n
        size_t h
        int back
    # end of structs
    # derived: functions of bint product_of_cells, drop_record, blocks_of_cells
    bint product_of_cells "dy_product_of_cells"(const Gpu* gpu, const Table* t, double most, Products* found)
    void drop_record "dy_drop_record"(Gpu* gpu)
    unsigned blocks_of_cells "dy_blocks_of_cells"(const Gpu* gpu, const Table* t, const Products* p)
    # end of functions


cdef int STEPS = module_at(b"steps")
cdef int[2] STEP = [kernel_at(STEPS, b"lstm_step_forward"), kernel_at(STEPS, b"lstm_step_backward")]
cdef int[2] FEW = [kernel_at(STEPS, b"few_lstm_steps_forward"), kernel_at(STEPS, b"few_lstm_steps_backward")]

# Larger products fill a device alone, and cuBLAS computes them faster; this many multiplications.
cdef Number most_multiplied = 1 << 25
add_tunable("gpu.steps.most_multiplied", &most_multiplied)


cdef int launch_cells(Gpu* gpu, const Command* c) noexcept nogil:
    cdef Table table
    cdef Products products
    if c.table == NULL or gpu.records == NULL or gpu.error:
        return alone(gpu, c)
    table.lines = c.table
    table.n = c.rows
    table.h = c.n
    table.back = c.back
    if not product_of_cells(gpu, &table, most_multiplied, &products):
        return alone(gpu, c)
    drop_record(gpu)
    cdef unsigned n = blocks_of_cells(gpu, &table, &products)
    if c.cols:
        return launch(gpu, FEW[c.back], n, 1, 256, 0, value_at(&products), c.rows, c.n, beginning_of(c.p, c.cols))
    return launch(gpu, STEP[c.back], n, 1, 256, 0, value_at(&products), c.rows, c.n, c.p)


cdef int alone(Gpu* gpu, const Command* c) noexcept nogil:
    """The elementwise steps only."""
    if c.cols:
        return launch_each(gpu, <int>c.i, c.rows * c.n, c.rows * c.n, c.n, beginning_of(c.p, c.cols))
    return launch_each(gpu, <int>c.i, c.rows * c.n, c.rows * c.n, c.n, c.p)
